"""A labelled case: samples, maps and labels are those of ``run``."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from helpers.labelled_cases import layered_case, miscalibrated_case
from perturb_mpm.biomarkers import LearnedLaw
from perturb_mpm.evaluation import dice
from perturb_mpm.run import RunSettings, build_crf, build_sampler, run_case
from perturb_mpm.tune.problem import LabelledProblem, predict

START = RunSettings()
REGIONS = {"all": (1, 2), "core": (2,)}


@pytest.mark.parametrize("strength", [0.0, 0.35])
def test_samples_are_those_of_run(strength: float) -> None:
    case = layered_case(1)
    problem = LabelledProblem("p", case)
    settings = START.changed(
        strength=strength, iterations=3, tolerance=0.0, sampling_temperature=1.3, noise_length=5.0
    )
    found = problem.sample(settings, 12, 4, REGIONS, {})
    drawn = settings.changed(samples=12, seed=4, temperature=problem.grid_temperature)
    kept: list[np.ndarray] = []
    sampler = build_sampler(build_crf(case, drawn), drawn)
    wanted = sampler.draw(keep=lambda _, labels: kept.append(labels.copy())).volumes / 1000
    np.testing.assert_allclose(found.volumes_ml[:, 1:], wanted[:, 1:])
    assert (found.mean_field is None) == (strength == 0)
    maps = problem.blend(found.mean_field, problem.grid_temperature)
    labels = maps.argmax(axis=0)
    for name, members in REGIONS.items():
        mine = np.isin(labels, members)
        each = [dice(mine, np.isin(sample, members)) for sample in np.concatenate(kept)]
        np.testing.assert_allclose(found.dice[name], each)
        assert found.true_dice[name] == dice(mine, np.isin(problem.truth, members))


def test_maps_are_those_of_run(tmp_path: Path) -> None:
    case = layered_case(2)
    problem = LabelledProblem("p", case)
    settings = START.changed(
        strength=0.35, sampling_temperature=1.2, noise_length=5.0, samples=8, keep_strength=True
    )
    found = problem.sample(settings, 8, 0, REGIONS, {})
    learned = settings.changed(temperature=1.7, learned_cases=3)
    run = run_case(case, learned, tmp_path / "run", title="p")
    ours = problem.grid.scatter(problem.blend(found.mean_field, 1.7), 0)
    np.testing.assert_allclose(ours, run.marginals, atol=2e-3)


def test_labels_that_a_network_all_but_excludes_are_tempered_as_run_does(tmp_path: Path) -> None:
    case = layered_case(2)
    excluded = case.probabilities.copy()
    excluded[1:] *= np.where(case.probabilities[0] > 0.9, 1e-7, 1)
    excluded /= excluded.sum(axis=0)
    case = replace(case, probabilities=excluded)
    settings = START.changed(strength=0.0, samples=8, temperature=2.0, noise_length=5.0)
    run = run_case(case, settings, tmp_path / "run", title="p")
    ours = LabelledProblem("p", case).temper(2.0)
    np.testing.assert_allclose(ours, run.voxel_marginals, rtol=1e-4)
    smallest = excluded[1:].min()
    assert smallest < 1e-7  # below the clip, and yet its temperature is that of all others
    assert ours.min() == pytest.approx(max(float(np.sqrt(smallest)), 1e-6), rel=0.1)


def test_a_volume_is_scored_as_by_hand() -> None:
    found = predict(np.array([0.9, 1.9]), 0.9, "volume")
    # log 1 = 0 and log 2: E|X − y| = log 2 / 2, half of E|X − X'| is log 2 / 4.
    assert found.crps == pytest.approx(math.log(2) / 4)
    assert found.inside is False
    wide = predict(np.array([0.9, 1.9]), 0.9, "volume", LearnedLaw("volume", 0.0, 0.1, 1.0, 5))
    assert wide.inside
    assert wide.width > found.width


def test_a_case_without_foreground_is_scored_everywhere() -> None:
    case = miscalibrated_case(0, 1.0, 0.0)
    empty = case.__class__(
        **{
            **vars(case),
            "probabilities": np.stack(
                [np.full(case.mask.shape, 0.9), np.full(case.mask.shape, 0.1)]
            ),
            "truth": np.zeros(case.mask.shape, dtype=np.uint8),
        }
    )
    problem = LabelledProblem("p", empty)
    assert problem.near.all()
    assert problem.grid_temperature == 1
