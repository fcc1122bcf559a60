"""Samples that are updated until they settle, each by its own rule."""

from __future__ import annotations

import math

import numpy as np
import pytest

import perturb_mpm as pm
from helpers.problems import masked_volume, smooth_problem
from perturb_mpm.engines import Compute, prepare
from perturb_mpm.noise import Perturbation
from perturb_mpm.sampling import Sampler, Sampling


def weak(strength: float = 0.3, shape: tuple[int, ...] = (10, 12, 9)) -> pm.DenseCRF:
    crf = smooth_problem(shape)
    return pm.DenseCRF(
        crf.grid.scatter(crf.energies, 0),
        [
            pm.SpatialKernel(sigma=2.0, weight=strength),
            pm.SpatialKernel(sigma=5.0, weight=3 * strength),
        ],
        mask=crf.grid.mask,
        centring=1.0,
    )


@pytest.mark.parametrize("accuracy", ["exact", "calibrated"])
def test_going_further_than_the_new_marginals_is_the_same_on_both_engines(accuracy: str) -> None:
    crf = masked_volume()
    solvers = [prepare(crf, "reference", batch=3), prepare(crf, "cpu", accuracy, batch=3)]
    found = []
    for solver in solvers:
        solver.perturb(Perturbation(2), np.arange(3))
        changes = [solver.step(damping=-0.6) for _ in range(3)]
        found.append((solver.marginals(), solver.labels(), changes[-1].switched))
    tolerance = 1e-5 if accuracy == "exact" else 0.05
    np.testing.assert_allclose(found[1][0], found[0][0], atol=tolerance)
    assert (found[1][0] >= 0).all()
    np.testing.assert_allclose(found[1][0].sum(axis=1), 1, atol=1e-5)
    if accuracy == "exact":
        np.testing.assert_array_equal(found[1][1], found[0][1])
        np.testing.assert_allclose(found[1][2], found[0][2], atol=1e-7)


@pytest.mark.parametrize("engine", ["reference", "cpu"])
@pytest.mark.parametrize("noise_length", [0.0, 6.0])
def test_converged_samples_are_those_of_many_iterations(engine: str, noise_length: float) -> None:
    crf = weak(shape=(8, 9, 7))
    options = {"seed": 1, "engine": engine, "accuracy": "exact", "noise_length": noise_length}
    many = pm.sample(crf, 12, iterations=40, **options)
    few = pm.sample(crf, 12, iterations=2, **options)
    converged = pm.sample(crf, 12, iterations=40, tolerance=1e-4, **options)

    def wrong(other: pm.Posterior) -> float:
        apart = np.abs(other.voxel_counts.astype(int) - many.voxel_counts.astype(int)).sum() / 2
        return float(apart / other.voxel_counts.sum())

    assert wrong(converged) <= 2e-4
    assert wrong(few) > 5 * wrong(converged)
    assert converged.label_changes is not None
    assert (converged.label_changes < 2e-3).all()


@pytest.mark.parametrize("hold", [0.0, 0.02])
@pytest.mark.parametrize("estimator", ["votes", "conditional"])
def test_neither_batch_nor_cut_change_when_a_sample_settles(estimator: str, hold: float) -> None:
    crf = weak(0.5)
    options = {"seed": 4, "iterations": 20, "estimator": estimator, "tolerance": 1e-3, "hold": hold}
    kept: list[np.ndarray] = []
    sampler = Sampler(crf, Sampling(**options), Compute(engine="cpu", batch=9, threads=1))
    whole = sampler.draw(9, keep=lambda _, labels: kept.append(labels.copy()))
    parts = [
        pm.sample(crf, range(a, b), engine="cpu", batch=batch, threads=2, **options)
        for a, b, batch in ((0, 2, 1), (2, 9, 3))
    ]
    assert parts[0].merge(parts[1]) == whole
    votes = np.stack([(kept[0] == l).sum(axis=0) for l in range(crf.n_labels)])
    np.testing.assert_array_equal(votes, whole.voxel_counts)


def test_samples_settle_after_different_numbers_of_updates() -> None:
    """Else the test above would see nothing."""
    crf = weak(0.5)
    solver = prepare(crf, "cpu", batch=9, compact=True)
    solver.perturb(Perturbation(4), np.arange(9))
    shares = np.stack([solver.step(damping=-0.35).switched for _ in range(12)])  # (updates, B)
    assert len(set((shares > 1e-3).sum(axis=0))) > 1


def test_no_update_asked_for_and_none_needed() -> None:
    crf = weak()
    none = pm.sample(crf, 3, iterations=0, tolerance=0.01, engine="cpu")
    plain = pm.sample(crf, 3, iterations=0, engine="cpu")
    np.testing.assert_array_equal(none.counts, plain.counts)
    alone = pm.DenseCRF(np.zeros((2, 4, 4)))
    assert pm.sample(alone, 3, tolerance=0.01, engine="cpu").label_changes.tolist() == [0.0] * 3


@pytest.mark.parametrize("bad", [-0.1, 1.0, math.nan])
def test_what_tolerance_must_be(bad: float) -> None:
    with pytest.raises(ValueError, match="tolerance must be"):
        pm.sample(weak(), 2, tolerance=bad)


def test_settled_and_unsettled_samples_do_not_merge() -> None:
    crf = weak()
    one = pm.sample(crf, range(2), engine="cpu", iterations=3, tolerance=0.01)
    other = pm.sample(crf, range(2, 4), engine="cpu", iterations=3)
    with pytest.raises(ValueError, match=r"tolerance 0\.01 against nothing"):
        one.merge(other)
