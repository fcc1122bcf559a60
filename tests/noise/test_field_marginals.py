"""Without coupling a voxel's marginal under fields is a mixture of softmaxes, by quadrature.

The vote of a voxel follows softmax(−U + Σ_k a_k g_k) for given fields, so that its frequency is the
mean of that over g ~ N(0, 1), one for each field that the voxel has.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest

import perturb_mpm as pm
from helpers.oracle import softmax

ENGINES = [("reference", "exact"), ("cpu", "exact"), ("cpu", "calibrated")]
SAMPLES = 3000
NODES = 24

SHARED = [pm.Field(6.0, 1.5, labels=[1, 2])]
OWN = [pm.Field(6.0, 1.2)]
BOTH = [pm.Field(math.inf, 1.0, labels=[1, 2]), pm.Field(4.0, 0.7)]


def uncoupled(n_labels: int) -> pm.DenseCRF:
    rng = np.random.default_rng(n_labels)
    return pm.DenseCRF(unary=1.5 * rng.normal(size=(n_labels, 4, 3)), spacing=2.0)


def mixture(energies: np.ndarray, fields: Sequence[pm.Field]) -> np.ndarray:
    """Return E_g softmax(−U + Σ_k a_k g_k), (L, N), by Gauss–Hermite quadrature."""
    n_labels = len(energies)
    directions = []  # what one standard normal adds to the labels, (L,) each
    for field in fields:
        if field.labels is None:
            directions += [field.scale * row for row in np.eye(n_labels)]
        else:
            directions.append(field.scale * np.isin(np.arange(n_labels), field.labels))
    # Only the covariance counts, and nothing that all labels share: at most L − 1 axes are left.
    centre = np.eye(n_labels) - 1 / n_labels
    covariance = centre @ sum(np.outer(d, d) for d in directions) @ centre
    values, vectors = np.linalg.eigh(covariance)
    axes = [math.sqrt(v) * vectors[:, k] for k, v in enumerate(values) if v > 1e-12]
    nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
    weights /= weights.sum()
    total = np.zeros_like(energies, dtype=float)
    for chosen in itertools.product(range(NODES), repeat=len(axes)):
        logits = sum((nodes[i] * axis for i, axis in zip(chosen, axes)), np.zeros(n_labels))
        total += math.prod(weights[i] for i in chosen) * softmax(-energies + logits[:, np.newaxis])
    return total


def furthest(posterior: pm.Posterior, truth: np.ndarray) -> float:
    """The largest difference of any frequency, in standard errors of independent votes."""
    frequencies = posterior.grid.gather(posterior.marginals)
    error = np.sqrt(truth * (1 - truth) / posterior.samples) + 1 / posterior.samples
    return float((np.abs(frequencies - truth) / error).max())


def test_quadrature_agrees_with_drawing() -> None:
    crf = uncoupled(3)
    g = np.random.default_rng(0).normal(size=(200_000, 4))
    logits = 1.0 * g[:, :1] * [0, 1, 1] + 0.7 * g[:, 1:]  # (M, L), the fields of BOTH
    drawn = softmax(-crf.energies[:, :, np.newaxis] + logits.T[:, np.newaxis]).mean(axis=2)
    np.testing.assert_allclose(mixture(crf.energies, BOTH), drawn, atol=0.002)


@pytest.mark.parametrize("fields", [SHARED, OWN, BOTH], ids=["shared", "own", "both"])
@pytest.mark.parametrize(("engine", "accuracy"), ENGINES)
def test_votes_follow_the_mixture(fields: list[pm.Field], engine: str, accuracy: str) -> None:
    crf = uncoupled(3)
    truth = mixture(crf.energies, fields)
    posterior = pm.sample(
        crf, SAMPLES, 4, iterations=1, fields=fields, engine=engine, accuracy=accuracy, batch=200
    )
    assert furthest(posterior, truth) < 4
    # Controls: no fields at all, and fields half as strong again, are told apart.
    assert furthest(posterior, softmax(-crf.energies)) > 8
    stronger = [pm.Field(f.length_mm, 1.5 * f.scale, f.labels) for f in fields]
    assert furthest(posterior, mixture(crf.energies, stronger)) > 4


def test_two_labels_with_a_field_each_are_one_of_both_amplitudes() -> None:
    crf = uncoupled(2)
    apart = [pm.Field(5.0, 1.0, labels=[0]), pm.Field(9.0, 0.5, labels=[1])]
    together = mixture(crf.energies, [pm.Field(5.0, math.hypot(1.0, 0.5), labels=[1])])
    np.testing.assert_allclose(mixture(crf.energies, apart), together, atol=1e-9)
    assert furthest(pm.sample(crf, SAMPLES, 4, iterations=1, fields=apart), together) < 4


def test_a_field_that_all_labels_share_changes_nothing() -> None:
    crf = uncoupled(3)
    same = [pm.Field(5.0, 2.0, labels=[0, 1, 2])]
    np.testing.assert_allclose(mixture(crf.energies, same), softmax(-crf.energies), atol=1e-9)
    plain = pm.sample(crf, 500, 4, iterations=1)
    shared = pm.sample(crf, 500, 4, iterations=1, fields=same)
    # But for rounding, at which a vote may turn.
    assert np.abs(plain.counts.astype(int) - shared.counts.astype(int)).sum() <= 2


@pytest.mark.parametrize(("engine", "accuracy"), ENGINES)
def test_the_conditional_estimator_follows_the_mixture(engine: str, accuracy: str) -> None:
    """The voxel's own Gumbel is integrated out, the fields are not: they are what is averaged."""
    crf = uncoupled(3)
    truth = mixture(crf.energies, BOTH)
    posterior = pm.sample(
        crf,
        SAMPLES // 2,
        4,
        iterations=1,
        fields=BOTH,
        estimator="conditional",
        engine=engine,
        accuracy=accuracy,
        batch=200,
    )
    # An average of softmaxes scatters less than votes do.
    assert furthest(posterior, truth) < 4
    assert furthest(posterior, softmax(-crf.energies)) > 6


def coupled(shape: tuple[int, ...] = (8, 7, 6)) -> pm.DenseCRF:
    rng = np.random.default_rng(3)
    return pm.DenseCRF(
        unary=rng.normal(size=(3, *shape)),
        kernels=[
            pm.SpatialKernel(sigma=2.5, weight=1.0),
            pm.BilateralKernel(
                rng.normal(size=(2, *shape)), sigma_space=5.0, sigma_intensity=1.0, weight=2.0
            ),
        ],
        spacing=(1.0, 1.5, 2.0),
        mask=rng.random(shape) < 0.9,
    )


@pytest.mark.parametrize("fields", [SHARED, OWN, BOTH], ids=["shared", "own", "both"])
def test_exact_engines_draw_the_same_samples_with_fields(fields: list[pm.Field]) -> None:
    options = {"samples": 60, "seed": 6, "iterations": 6, "fields": fields}
    ours = pm.sample(coupled(), engine="cpu", accuracy="exact", **options)
    truth = pm.sample(coupled(), engine="reference", **options)
    assert (ours.labels != truth.labels).mean() <= 0.001
    votes = np.abs(ours.counts.astype(int) - truth.counts.astype(int)).sum()
    assert votes <= 2e-4 * 60 * ours.grid.voxels
    other = pm.sample(coupled(), engine="reference", **{**options, "seed": 7})
    assert np.abs(other.counts.astype(int) - truth.counts.astype(int)).sum() > 50 * max(votes, 1)


@pytest.mark.parametrize(("engine", "accuracy"), ENGINES)
def test_fields_are_the_same_at_any_batch_and_cut(engine: str, accuracy: str) -> None:
    options = {"seed": 6, "iterations": 3, "fields": BOTH, "engine": engine, "accuracy": accuracy}
    whole = pm.sample(coupled(), 23, **options)
    for batch in (1, 6, 23):
        assert pm.sample(coupled(), 23, batch=batch, threads=1, **options) == whole
    parts = [pm.sample(coupled(), part, **options) for part in (range(9, 23), range(9))]
    assert parts[0].merge(parts[1]) == whole
