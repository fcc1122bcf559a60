"""Calibrate: the temperature that made the labels, believed as far as cases left out confirm it."""

from __future__ import annotations

import numpy as np
import pytest

from helpers.labelled_cases import miscalibrated_case
from perturb_mpm.tune.calibration import TEMPERATURES, TemperatureTable, tabulate_temperatures
from perturb_mpm.tune.problem import CaseSamples, LabelledProblem, score_maps
from perturb_mpm.tune.study import Folds

NOTHING = CaseSamples(np.zeros((1, 2)), {}, {}, {}, None)


def valley(best: list[float], grid: float = 1.5, depth: float = 1.0) -> TemperatureTable:
    """A case of each best temperature, whose loss rises with the square of log T on both sides."""
    logs = np.log(TEMPERATURES)
    losses = np.stack([depth * (logs - np.log(each)) ** 2 for each in best])
    return TemperatureTable(losses, np.full(len(best), grid))


def test_the_temperature_is_found_that_made_the_labels() -> None:
    problems = [LabelledProblem(str(i), miscalibrated_case(i, 1.8, 0.0)) for i in range(6)]
    table = tabulate_temperatures(problems, [NOTHING] * 6)
    found = table.learn(range(6), Folds.deal(6, 6), [1.0])
    assert found.temperature == pytest.approx(1.8, rel=0.06)
    # The table has the score that maps have.
    column = int(np.argmin(np.abs(TEMPERATURES - 1.8)))
    maps = problems[0].temper(float(TEMPERATURES[column]))
    wanted = score_maps(problems[0], maps, {"ball": (1,)}, None).log_score_nats
    assert table.losses[0, column] == pytest.approx(wanted, rel=1e-4)


def test_labels_that_agree_are_believed_and_labels_that_do_not_are_not() -> None:
    folds = Folds.deal(6, 6)
    agree = valley([4.0, 4.2, 3.8, 4.1, 3.9, 4.0]).learn(range(6), folds)
    assert agree.share == 1
    assert agree.temperature == pytest.approx(4.0, rel=0.06)
    # One odd case moves what the others prefer, and the grid's own is right for the rest.
    odd = valley([1.5, 1.5, 1.5, 1.5, 1.5, 1.5])
    odd.losses[0] = 20 * (np.log(TEMPERATURES) - np.log(8.0)) ** 2
    doubted = odd.learn(range(1, 6), folds)
    assert doubted.temperature is None or doubted.temperature == pytest.approx(1.5, rel=0.06)
    same = float(TEMPERATURES[20])
    kept = valley([same] * 6, grid=same).learn(range(6), folds)
    assert kept.share == 0  # nothing gained, nothing believed
    assert kept.for_case(1.7) == 1.7


def test_half_the_way_is_taken_where_it_is_best() -> None:
    table = valley([2.0, 5.0, 2.0, 5.0, 2.0, 5.0], grid=1.3)
    costs = [table.left_out_score(range(6), Folds.deal(6, 6), [share]) for share in (0.0, 0.5, 1.0)]
    found = table.learn(range(6), Folds.deal(6, 6))
    assert (0.0, 0.5, 1.0)[int(np.argmin(costs))] == found.share


def test_a_fold_has_no_part_in_the_temperature_of_its_cases() -> None:
    folds = Folds.deal(6, 6)
    usual = valley([2.0, 2.2, 1.9, 2.1, 2.0, 2.3])
    changed = TemperatureTable(usual.losses.copy(), usual.grid)
    changed.losses[0] = 30 * (np.log(TEMPERATURES) - np.log(9.0)) ** 2
    ours, theirs = (
        folds.leave_out(lambda cases, table=table: table.learn(cases, folds))
        for table in (usual, changed)
    )
    assert ours[0] == theirs[0]  # to the last digit: no choice saw the case
    assert ours[1] != theirs[1]
