"""Intervals of cases left out: laws that no case of the fold had a part in, and baselines."""

from __future__ import annotations

import math

import numpy as np
import pytest

from perturb_mpm.tune.intervals import SampledMeasure, fixed_width_volumes, shifted_volumes
from perturb_mpm.tune.study import Folds


def sure_samples(cases: int, seed: int) -> SampledMeasure:
    """Samples that are five times too sure of volumes that they find a fifth too small."""
    rng = np.random.default_rng(seed)
    true = rng.uniform(5, 50, cases)
    middle = np.log(0.8 * true) + rng.normal(0, 0.2, cases)
    samples = [{"ball": np.exp(each + 0.04 * rng.normal(size=60))} for each in middle]
    return SampledMeasure("volume", samples, [{"ball": float(each)} for each in true])


def test_intervals_contain_95_of_100_truths_of_cases_left_out() -> None:
    cases, folds = 120, Folds.deal(120, 4)
    measure = sure_samples(cases, 0)
    laws = folds.leave_out(lambda others: measure.fit(others, ["ball"]))
    found = [measure.predict(i, laws[i], ["ball"])["ball"] for i in range(cases)]
    alone = [measure.predict(i, {}, ["ball"])["ball"] for i in range(cases)]
    assert np.mean([each.inside for each in found]) == pytest.approx(0.95, abs=0.035)
    assert np.mean([each.inside for each in alone]) < 0.4  # what is learned did that
    assert np.mean([each.crps for each in found]) < 0.8 * np.mean([each.crps for each in alone])


def test_a_fold_has_no_part_in_the_interval_of_its_cases() -> None:
    measure = sure_samples(12, 1)
    truth = [dict(each) for each in measure.truth]
    truth[0]["ball"] *= 9
    odd = SampledMeasure("volume", measure.samples, truth)
    ours, theirs = (
        Folds.deal(12, 12).leave_out(lambda others, of=of: of.fit(others, ["ball"]))
        for of in (measure, odd)
    )
    assert ours[0] == theirs[0]
    assert ours[1] != theirs[1]


def test_one_case_teaches_no_law() -> None:
    assert sure_samples(3, 2).fit([1], ["ball"]) == {}


def test_baselines_move_a_volume_by_what_others_missed() -> None:
    missed = np.array([0.0, math.log(2)])
    np.testing.assert_allclose(shifted_volumes(0.9, missed), [0.9, 1.9])
    assert np.median(fixed_width_volumes(0.9, missed)) == pytest.approx(
        math.sqrt(2) - 0.1, rel=0.01
    )
    many = np.random.default_rng(0).normal(0.1, 0.3, 500)
    low, high = np.quantile(fixed_width_volumes(100.0, many), [0.025, 0.975])
    assert math.log(high / low) == pytest.approx(2 * 1.96 * 0.3, rel=0.08)
