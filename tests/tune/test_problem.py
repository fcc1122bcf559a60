"""A labelled case under any settings: marginals and volumes are those of ``run``."""

from __future__ import annotations

import math

import numpy as np
import pytest

from helpers.labelled_cases import layered_case, miscalibrated_case
from perturb_mpm.biomarkers import ConformalWidening
from perturb_mpm.inference import ConvergenceWarning, mean_field
from perturb_mpm.posterior import Posterior
from perturb_mpm.run import RunSettings, build_crf, build_sampler
from perturb_mpm.sampling import Sampler
from perturb_mpm.tune.problem import LabelledProblem, score_volume

START = RunSettings()


def test_marginals_are_those_of_mean_field() -> None:
    case = layered_case(0)
    problem = LabelledProblem("p", case, START)
    for centring in (0.0, 0.5):
        settings = START.changed(
            strength=0.5, centring=centring, temperature=1.4, bias=(0.0, 0.3, 0.1), iterations=4
        )
        with pytest.warns(ConvergenceWarning):
            wanted = mean_field(build_crf(case, settings), 4)
        ours = problem.grid.scatter(problem.marginals(settings), 0)
        np.testing.assert_allclose(ours, wanted.marginals, atol=2e-3)


def test_sampled_volumes_are_those_of_run() -> None:
    case = layered_case(1)
    problem = LabelledProblem("p", case, START)
    for strength in (0.0, 0.35):
        settings = START.changed(strength=strength, iterations=3, temperature=1.3)
        ours = problem.sampled_ml(settings, [5.0, 2.0], 12, 4)
        for volumes, length in zip(ours, [5.0, 2.0], strict=True):
            drawn = settings.changed(samples=12, seed=4, noise_length=length)
            wanted = build_sampler(build_crf(case, drawn), drawn).draw().volumes / 1000
            np.testing.assert_array_equal(volumes, wanted)


def test_only_samples_that_are_missing_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[range] = []
    draw = Sampler.draw

    def watched(self: Sampler, samples: range) -> Posterior:
        asked.append(samples)
        return draw(self, samples)

    case = miscalibrated_case(0, 1.0, 0.0)
    settings = START.changed(strength=0.0)
    wanted = LabelledProblem("p", case, START).sampled_ml(settings, [2.0, 5.0], 12, 4)
    monkeypatch.setattr(Sampler, "draw", watched)
    problem = LabelledProblem("p", case, START)
    few = problem.sampled_ml(settings, [5.0], 8, 4)
    np.testing.assert_array_equal(problem.sampled_ml(settings, [2.0, 5.0], 12, 4), wanted)
    np.testing.assert_array_equal(problem.sampled_ml(settings, [5.0], 8, 4), few)
    np.testing.assert_array_equal(few[0], wanted[1, :8])
    assert asked == [range(8), range(12), range(8, 12)]
    # Another seed or temperature is another draw.
    assert not np.array_equal(problem.sampled_ml(settings, [5.0], 8, 5), few)
    problem.sampled_ml(settings.changed(temperature=2.0), [5.0], 8, 4)
    assert asked[3:] == [range(8), range(8)]


def test_parts_of_a_case_add_up_to_its_volumes() -> None:
    case = miscalibrated_case(0, 1.0, 0.0)
    problem = LabelledProblem("p", case, START)
    settings = START.changed(noise_length=5.0, strength=0.0, samples=8, iterations=0)
    where = np.arange(case.mask.size) % 3 == 0
    everywhere = np.ones(case.mask.size, dtype=bool)
    whole, one, other = (
        problem._sampler(settings, part).draw().volumes for part in (everywhere, where, ~where)
    )
    np.testing.assert_allclose(one + other, whole, rtol=1e-12)


def test_a_volume_is_scored_as_by_hand() -> None:
    found = score_volume(np.array([0.9, 1.9]), 0.9)
    # log 1 = 0 and log 2: E|X − y| = log 2 / 2, half of E|X − X'| is log 2 / 4.
    assert found.crps == pytest.approx(math.log(2) / 4)
    assert found.inside is False
    assert found.widen(ConformalWidening(0.1, 0.1, 0.95, cases=19)).inside
