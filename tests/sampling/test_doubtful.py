"""Voxels left out because they are certain: the others keep what they send, samples their votes."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter

import perturb_mpm as pm
from perturb_mpm.engines import prepare
from perturb_mpm.engines.cpu import surroundings_of
from perturb_mpm.engines.reference import kernel_matrix, softmax
from perturb_mpm.model import fingerprint

SHAPE = (14, 13, 12)
LABELS = 3
SAMPLES = {"samples": 64, "seed": 3, "noise_length": 4.0, "iterations": 40, "tolerance": 1e-5}


def problem(
    centring: float = 1.0, normalization: str = "symmetric", weight: float = 1.0
) -> pm.DenseCRF:
    """Return a CRF of a network's kind: borders are in doubt, the rest is certain."""
    rng = np.random.default_rng(0)
    logits = 500 * gaussian_filter(rng.normal(size=(LABELS, *SHAPE)), (0, 3, 3, 3))
    logits[0] += 2
    image = logits.argmax(axis=0) + rng.normal(0, 0.3, SHAPE)
    kernels = [
        pm.SpatialKernel(2.0, weight=0.4 * weight, normalization=normalization),
        pm.BilateralKernel(image[np.newaxis], 6.0, 0.7, weight=weight, normalization=normalization),
    ]
    mask = np.ones(SHAPE, dtype=bool)
    mask[:2, :3] = False
    unary = pm.unary_from_logits(logits)
    return pm.DenseCRF(unary, kernels, spacing=(1.0, 1.0, 1.5), mask=mask, centring=centring)


def exact_among(crf: pm.DenseCRF, voxels: np.ndarray) -> pm.DenseCRF:
    """Return the CRF of some voxels, with what the others send by all pairs."""
    others = np.setdiff1d(np.arange(crf.grid.voxels), voxels)
    given = softmax(-crf.energies, axis=0)[:, others]
    sent, outside = np.zeros((LABELS, len(voxels))), []
    for term in crf.terms:
        raw = kernel_matrix(replace(term, normalization="none"))
        outside.append(raw[np.ix_(voxels, others)].sum(axis=1))
        kernel = kernel_matrix(term)[np.ix_(voxels, others)]
        sent += (1 - crf.centring) * term.compatibility @ (given @ kernel.T)
    return crf.among(voxels, sent, outside)


@pytest.mark.parametrize("centring", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("normalization", ["symmetric", "after"])
def test_among_is_the_whole_with_the_others_clamped(centring: float, normalization: str) -> None:
    """Every engine's all pairs, against the reference with the other voxels set back each time."""
    crf = problem(centring, normalization)
    voxels = pm.doubtful(crf, 0.05).crf.grid.index
    voxels = np.searchsorted(crf.grid.index, voxels)
    part = exact_among(crf, voxels)
    noise = np.random.default_rng(1).normal(size=(1, LABELS, len(voxels)))
    energies = crf.energies[np.newaxis].copy()
    energies[:, :, voxels] += noise
    whole = prepare(crf, "reference")
    whole.load(crf.energies[np.newaxis])
    q = clamped = whole.marginals()
    for _ in range(30):
        whole.load(energies, q)
        whole.step()
        q = clamped.copy()
        q[:, :, voxels] = whole.marginals()[:, :, voxels]
    for engine in ("reference", "cpu"):
        solver = prepare(part, engine, accuracy="exact")
        solver.load(part.energies + noise, q[:, :, voxels])
        solver.step()
        np.testing.assert_allclose(solver.marginals(), q[:, :, voxels], atol=1e-4)
    blind = copy.copy(part)  # without the others in the row sums it is another model
    blind.terms = tuple(replace(term, outside=None) for term in part.terms)
    solver = prepare(blind, "reference")
    solver.load(blind.energies + noise, q[:, :, voxels])
    solver.step()
    assert np.abs(solver.marginals() - q[:, :, voxels]).max() > 1e-2


def test_walks_give_what_all_pairs_give(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to the lattice's error, however the image is cut into parts."""
    crf = problem(centring=0.0)
    found = pm.doubtful(crf, 0.01)
    voxels = np.flatnonzero(found.settled == 255)
    exact = exact_among(crf, voxels)
    for ours, wanted in zip(found.crf.terms, exact.terms, strict=True):
        assert ours.outside is not None
        assert wanted.outside is not None
        error = np.abs(ours.outside - wanted.outside).mean() / wanted.outside.mean()
        assert error < 0.05
    sent = found.crf.energies - crf.energies[:, voxels]
    wanted_sent = exact.energies - crf.energies[:, voxels]
    difference = (sent - sent[0]) - (wanted_sent - wanted_sent[0])
    assert np.sqrt((difference**2).mean()) < 0.02 * np.abs(wanted_sent).max()

    monkeypatch.setattr("perturb_mpm.engines.cpu.surroundings.PART", 100)
    again = pm.doubtful(crf, 0.01)
    np.testing.assert_allclose(again.crf.energies, found.crf.energies, atol=1e-5)


def test_a_table_of_vertices_grows_with_the_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    crf = problem(centring=0.0)
    settled = pm.doubtful(crf, 0.01).settled != 255

    def marginals(some: slice | np.ndarray) -> np.ndarray:
        return softmax(-np.asarray(crf.energies[:, some], dtype=np.float32), axis=0)

    results = []
    for size in (1 << 16, 1 << 6):
        monkeypatch.setattr("perturb_mpm.engines.cpu.surroundings.FIRST_SLOTS", size)
        monkeypatch.setattr("perturb_mpm.engines.cpu.surroundings.PART", 64)
        results.append(surroundings_of(crf.terms[1], settled, marginals, 1, sends=True))
    np.testing.assert_array_equal(results[0].sent, results[1].sent)
    np.testing.assert_array_equal(results[0].outside, results[1].outside)


@pytest.mark.parametrize("centring", [0.5, 1.0])
def test_samples_are_those_of_every_voxel(centring: float) -> None:
    crf = problem(centring)
    part = pm.doubtful(crf, 1e-3)
    assert part.share < 0.7
    full = pm.sample(crf, **SAMPLES, engine="cpu")
    ours = part.complete(pm.sample(part.crf, **SAMPLES, engine="cpu"))
    moved = np.abs(full.voxel_counts.astype(int) - ours.voxel_counts).sum() / 2
    assert moved <= 5e-4 * full.voxel_counts.sum()
    away = np.abs(full.volumes.mean(axis=0) - ours.volumes.mean(axis=0))
    assert (away <= 0.1 * full.volumes.std(axis=0)).all()
    other = pm.sample(crf, **{**SAMPLES, "seed": 4}, engine="cpu")  # what a wrong noise would do
    assert np.abs(full.voxel_counts.astype(int) - other.voxel_counts).sum() / 2 > 20 * moved


def test_the_whole_posterior_by_hand() -> None:
    p = np.full((2, 8), 1e-9)
    p[1, :3] = p[0, 5:] = 1.0
    p[:, 3:5] = 0.5
    crf = pm.DenseCRF(pm.unary_from_probabilities(p, clip=1e-9), spacing=2.0)
    part = pm.doubtful(crf)
    assert part.settled.tolist() == [1, 1, 1, 255, 255, 0, 0, 0]
    assert part.missed < 1e-7
    drawn = pm.sample(part.crf, samples=10, seed=1, estimator="conditional")
    whole = part.complete(drawn)
    np.testing.assert_array_equal(whole.voxel_counts[:, [0, 7]], [[0, 10], [10, 0]])
    np.testing.assert_array_equal(whole.voxel_counts[:, 3:5], drawn.voxel_counts)
    np.testing.assert_array_equal(whole.volumes, drawn.volumes + 6.0)
    np.testing.assert_allclose(whole.marginals[:, 0], [0, 1])
    full = pm.sample(crf, samples=10, seed=1, estimator="conditional")
    np.testing.assert_array_equal(whole.voxel_counts, full.voxel_counts)


def test_one_voxel_stays_where_none_is_in_doubt() -> None:
    p = np.full((2, 4), 1e-9)
    p[1] = 1.0
    p[:, 2] = 1e-7, 1 - 1e-7
    part = pm.doubtful(pm.DenseCRF(pm.unary_from_probabilities(p, clip=1e-9)))
    assert part.settled.tolist() == [1, 1, 255, 1]


def test_what_is_left_out_is_part_of_the_problem() -> None:
    """Two problems that differ in it alone must not merge."""
    crf = problem()
    voxels = np.arange(40)
    sent = np.zeros((LABELS, 40))
    outside = [np.ones(40), np.ones(40)]
    first = crf.among(voxels, sent, outside)
    assert fingerprint(first) != fingerprint(crf.among(voxels, sent, [np.ones(40), np.zeros(40)]))
    assert fingerprint(first) == fingerprint(crf.among(voxels, sent, outside))


@pytest.mark.parametrize("epsilon", [0.0, -1e-3, 0.1, float("nan")])
def test_bad_values_of_epsilon_are_refused(epsilon: float) -> None:
    with pytest.raises(ValueError, match="epsilon must be"):
        pm.doubtful(problem(), epsilon)


@pytest.mark.parametrize("normalization", ["before", "none"])
def test_kernels_without_a_bound_are_refused(normalization: str) -> None:
    with pytest.raises(ValueError, match=rf'must be "symmetric" or "after".*"{normalization}"'):
        pm.doubtful(problem(normalization=normalization))


def test_a_posterior_of_another_grid_is_refused() -> None:
    part = pm.doubtful(problem(), 1e-3)
    other = pm.sample(pm.doubtful(problem(), 1e-2).crf, samples=2, iterations=1, engine="cpu")
    with pytest.raises(ValueError, match="`posterior` must be of the doubtful voxels"):
        part.complete(other)
