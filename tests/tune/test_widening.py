"""Widen: intervals hold 95 of 100 true volumes of cases that they were not learned from."""

from __future__ import annotations

import numpy as np
import pytest

from perturb_mpm.tune.folds import CrossFit, Folds
from perturb_mpm.tune.scores import VolumePrediction
from perturb_mpm.tune.study import VolumeTable
from perturb_mpm.tune.widening import Widen

MM = 5.0


def narrow_intervals(cases: int, seed: int, *, factor: float) -> Widen:
    """Intervals whose ends lie ``factor`` standard deviations of their error from the middle."""
    rng = np.random.default_rng(seed)
    true = rng.uniform(5, 50, cases)
    middle = np.log(true + 0.1) + rng.normal(0, 0.2, cases)
    lower, upper = (np.exp(middle + side * factor * 0.2) - 0.1 for side in (-1, 1))
    rows = {
        i: {"ball": VolumePrediction(float(lower[i]), float(upper[i]), float(true[i]), 0.0)}
        for i in range(cases)
    }
    return Widen(VolumeTable({MM: rows}, ("ball",)))


@pytest.mark.parametrize("factor", [0.5, 4.0], ids=["too narrow", "too wide"])
def test_intervals_hold_95_of_100_truths_of_cases_left_out(factor: float) -> None:
    cases, folds = 400, Folds.deal(400, 5)
    widen = narrow_intervals(cases, 0, factor=factor)
    lengths = CrossFit(MM, (MM,) * cases)
    learned = folds.cross_fit(widen.fit, lengths)
    inside = [widen.score(i, MM, learned.without[i])["ball"].inside for i in range(cases)]
    assert np.mean(inside) == pytest.approx(0.95, abs=0.025)
    before = [widen.score(i, MM, {})["ball"].inside for i in range(cases)]
    assert abs(np.mean(before) - 0.95) > 0.04  # what is learned did that


def test_few_cases_promise_nothing() -> None:
    widen = narrow_intervals(19, 1, factor=0.5)
    assert widen.fit(range(18), MM) == {}
    assert set(widen.fit(range(19), MM)) == {"ball"}


def test_a_fold_has_no_part_in_the_interval_of_its_cases() -> None:
    widen = narrow_intervals(40, 2, factor=2.0)
    rows = widen.volumes.predictions[MM]
    far = {i: {"ball": VolumePrediction(1.0, 1.1, 90.0, 0.0)} for i in range(0, 40, 4)}
    odd = Widen(VolumeTable({MM: {**rows, **far}}, ("ball",)))
    folds, lengths = Folds.deal(40, 4), CrossFit(MM, (MM,) * 40)
    ours, theirs = (folds.cross_fit(each.fit, lengths) for each in (widen, odd))
    assert theirs.without[0] == ours.without[0]  # its fold is all that is odd
    assert theirs.without[1]["ball"].amount > 1 + ours.without[1]["ball"].amount
    assert theirs.overall["ball"].amount > 1 + ours.overall["ball"].amount
