"""Volumes: the correlation length that scores best, and intervals of cases left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from helpers.labelled_cases import miscalibrated_case
from perturb_mpm.files import Case
from perturb_mpm.progress import Silent
from perturb_mpm.run import RunSettings, build_crf, build_sampler
from perturb_mpm.tune.problem import VolumePrediction
from perturb_mpm.tune.study import CrossFit, Folds, TuningOptions, VolumeTable, prepare_study
from perturb_mpm.tune.volumes import (
    LENGTHS,
    halfway_length,
    learn_widenings,
    lengths_near,
    search_valley,
    widen_intervals,
)

MM = 5.0
BARE = RunSettings(kernels=()).changed(strength=0.0)


def volume_table(crps: Sequence[float], cases: int) -> VolumeTable:
    """The same score of every case at each of LENGTHS."""
    return VolumeTable(
        {
            mm: {i: {"ball": VolumePrediction(1.0, 2.0, 1.5, each)} for i in range(cases)}
            for mm, each in zip(LENGTHS, crps, strict=True)
        },
        ("ball",),
    )


def case_with_errors(seed: int, length_mm: float) -> Case:
    """A case whose truth is one sample under noise of this correlation length."""
    case = miscalibrated_case(seed, 1.0, 0.0)
    soft = case.probabilities**0.25
    case = replace(case, probabilities=soft / soft.sum(axis=0))
    settings = BARE.changed(noise_length=length_mm, samples=1, seed=100 + seed, iterations=0)
    drawn = build_sampler(build_crf(case, settings), settings).draw()
    return replace(case, truth=drawn.counts.argmax(axis=0).astype(np.uint8))


@pytest.mark.parametrize("true_mm", [2.0, 10.0])
def test_the_length_that_made_the_errors_is_preferred(true_mm: float) -> None:
    cases = {f"p{i}": case_with_errors(i, true_mm) for i in range(20)}
    study = prepare_study(cases, BARE, TuningOptions(folds=5, samples=32), Silent())
    table = study.draw_volumes([BARE] * 20, [2.0, 10.0, 40.0], 32)
    assert table.best_length(range(20)) == true_mm


def test_few_cases_are_believed_half_way() -> None:
    table = volume_table([0.1 + step for step in range(len(LENGTHS))], 5)
    assert table.best_length(range(5)) == LENGTHS[0]
    assert halfway_length(table, LENGTHS, range(5)) == LENGTHS[2]  # the assumed one is 1.0
    rising = volume_table([1.0 - 0.1 * step for step in range(len(LENGTHS))], 5)
    assert halfway_length(rising, LENGTHS, range(5)) == LENGTHS[5]


def test_a_fold_has_no_part_in_the_length_of_its_cases() -> None:
    table = volume_table([0.5] * 6 + [0.4], 4)
    odd = {"ball": VolumePrediction(1.0, 2.0, 1.5, -9.0)}
    table = replace(table, predictions={**table.predictions, 0.25: dict(table.predictions[0.25])})
    table.predictions[0.25][0] = odd  # type: ignore[index]
    chosen = Folds.deal(4, 4).cross_fit(table.best_length)
    assert chosen.without[0] == 2.0
    assert chosen.overall == chosen.without[1] == 0.25


@pytest.mark.parametrize("steeper", [0.4, 3.0], ids=["too short is worse", "too long is worse"])
@pytest.mark.parametrize("best", range(len(LENGTHS)))
def test_the_search_for_a_length_finds_the_valley(best: int, steeper: float) -> None:
    tried: set[float] = set()

    def loss(length: float) -> float:
        beyond = LENGTHS.index(length) - best
        return max(steeper * beyond, -beyond)

    def best_length(lengths: Sequence[float]) -> float:
        tried.update(lengths)
        return min(lengths, key=loss)

    assert search_valley(LENGTHS, best_length) == best
    assert len(tried) <= 5


def test_lengths_are_tried_on_both_sides_of_the_best() -> None:
    assert lengths_near([1.0, 4.0, 9.0, 16.0], 1, with_ends=False) == [2.0, 4.0, 6.0]
    assert lengths_near([1.0, 4.0, 9.0, 16.0], 1, with_ends=True) == [1.0, 2.0, 4.0, 6.0, 9.0]
    assert lengths_near([1.0, 4.0, 9.0], 2, with_ends=False) == [6.0, 9.0]


def narrow_intervals(cases: int, seed: int, *, factor: float) -> VolumeTable:
    """Intervals whose ends lie ``factor`` standard deviations of their error from the middle."""
    rng = np.random.default_rng(seed)
    true = rng.uniform(5, 50, cases)
    middle = np.log(true + 0.1) + rng.normal(0, 0.2, cases)
    lower, upper = (np.exp(middle + side * factor * 0.2) - 0.1 for side in (-1, 1))
    rows = {
        i: {"ball": VolumePrediction(float(lower[i]), float(upper[i]), float(true[i]), 0.0)}
        for i in range(cases)
    }
    return VolumeTable({MM: rows}, ("ball",))


@pytest.mark.parametrize("factor", [0.5, 4.0], ids=["too narrow", "too wide"])
def test_intervals_contain_95_of_100_truths_of_cases_left_out(factor: float) -> None:
    cases, folds = 400, Folds.deal(400, 5)
    table = narrow_intervals(cases, 0, factor=factor)
    lengths = CrossFit(MM, (MM,) * cases)
    learned = folds.cross_fit(partial(learn_widenings, table), lengths)
    rows = table.predictions[MM]
    inside = [widen_intervals(rows[i], learned.without[i])["ball"].inside for i in range(cases)]
    assert np.mean(inside) == pytest.approx(0.95, abs=0.025)
    before = [widen_intervals(rows[i], {})["ball"].inside for i in range(cases)]
    assert abs(np.mean(before) - 0.95) > 0.04  # what is learned did that


def test_few_cases_promise_nothing() -> None:
    table = narrow_intervals(19, 1, factor=0.5)
    assert learn_widenings(table, range(18), MM) == {}
    assert set(learn_widenings(table, range(19), MM)) == {"ball"}


def test_a_fold_has_no_part_in_the_interval_of_its_cases() -> None:
    table = narrow_intervals(40, 2, factor=2.0)
    rows = table.predictions[MM]
    far = {i: {"ball": VolumePrediction(1.0, 1.1, 90.0, 0.0)} for i in range(0, 40, 4)}
    odd = VolumeTable({MM: {**rows, **far}}, ("ball",))
    folds, lengths = Folds.deal(40, 4), CrossFit(MM, (MM,) * 40)
    ours, theirs = (
        folds.cross_fit(partial(learn_widenings, each), lengths) for each in (table, odd)
    )
    assert theirs.without[0] == ours.without[0]  # its fold is all that is odd
    assert theirs.without[1]["ball"].amount > 1 + ours.without[1]["ball"].amount
    assert theirs.overall["ball"].amount > 1 + ours.overall["ball"].amount
