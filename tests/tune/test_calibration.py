"""Calibrate: temperature and bias that made the labels are found."""

from __future__ import annotations

import math

import pytest

from helpers.labelled_cases import miscalibrated_case
from perturb_mpm.run import RunSettings
from perturb_mpm.tune.calibration import Calibrate, halve, observe
from perturb_mpm.tune.problem import LabelledProblem
from perturb_mpm.tune.study import Folds

START = RunSettings()


def test_temperature_and_bias_are_found_that_made_the_labels() -> None:
    problems = [LabelledProblem(str(i), miscalibrated_case(i, 1.8, -0.4), START) for i in range(6)]
    seen = {i: observe(each, START, everywhere=True) for i, each in enumerate(problems)}
    found = Calibrate(seen, START).fit(range(6))
    assert found.unary.temperature == pytest.approx(1.8, rel=0.05)
    assert found.unary.bias is not None
    assert found.unary.bias[1] == pytest.approx(-0.4, abs=0.1)
    expected = sum(each.marginals(found.changed(strength=0.0))[1].sum() for each in problems)
    true = sum(each.truth.sum() for each in problems)
    assert expected == pytest.approx(true, rel=0.02)  # over all voxels
    assert halve(found).unary.temperature == pytest.approx(
        math.sqrt(found.unary.temperature), rel=1e-3
    )
    near = {i: observe(each, START, everywhere=False) for i, each in enumerate(problems)}
    assert Calibrate(near, START, with_bias=False).fit(range(6)).unary.bias is None


def test_a_fold_has_no_part_in_the_temperature_of_its_cases() -> None:
    cases = [miscalibrated_case(i, 1.0 if i else 4.0, 0.0) for i in range(6)]  # the first is odd
    problems = [LabelledProblem(str(i), case, START) for i, case in enumerate(cases)]
    seen = {i: observe(each, START, everywhere=True) for i, each in enumerate(problems)}
    fitted = Calibrate(seen, START, with_bias=False).cross_fit(Folds.deal(6, 6))
    assert fitted.without[0].unary.temperature == pytest.approx(1.0, rel=0.05)
    assert all(each.unary.temperature > 1.2 for each in (fitted.overall, *fitted.without[1:]))


def test_cases_without_an_observation_do_not_count() -> None:
    problems = [LabelledProblem(str(i), miscalibrated_case(i, 1.5, 0.0), START) for i in range(3)]
    seen = {i: observe(problems[i], START, everywhere=True) for i in (0, 2)}
    stage = Calibrate(seen, START, with_bias=False)
    assert stage.fit([0, 1, 2]) == stage.fit([0, 2])
