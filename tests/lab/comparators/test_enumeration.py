from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import perturb_mpm as pm
from helpers.agreement import disagreement, size_distribution
from helpers.oracle import softmax
from helpers.problems import NORMALIZATIONS, random_problem
from lab.comparators import Enumeration, GridCRF, exact


def flat(array: np.ndarray) -> np.ndarray:
    return array.reshape(len(array), -1)


def two_voxels(u: float, cost: float) -> pm.DenseCRF:
    """Two voxels, label 1 costs u in the first, unlike labels cost ``cost``."""
    kernel = pm.SpatialKernel(sigma=1.0, weight=cost / math.exp(-0.5), normalization="none")
    return pm.DenseCRF(unary=[[0.0, 0.0], [u, 0.0]], kernels=[kernel])


def test_two_voxels_by_hand() -> None:
    u, c = 0.7, 1.1
    found = Enumeration(two_voxels(u, c))
    weights = {(0, 0): 1.0, (0, 1): math.exp(-c), (1, 0): math.exp(-u - c), (1, 1): math.exp(-u)}
    z = sum(weights.values())
    assert found.log_z == pytest.approx(math.log(z))
    assert found.marginals[1, 0] == pytest.approx((weights[1, 0] + weights[1, 1]) / z)
    assert found.marginals[1, 1] == pytest.approx((weights[0, 1] + weights[1, 1]) / z)
    assert found.labels.tolist() == [0, 0]
    assert found.energy == 0
    states = np.array(list(weights))
    np.testing.assert_allclose(
        found.probability(states), np.array(list(weights.values())) / z, rtol=1e-12
    )


def test_one_voxel_is_the_softmax() -> None:
    unary = np.array([[0.3], [1.0], [-2.0]])
    found = Enumeration(pm.DenseCRF(unary=unary))
    np.testing.assert_allclose(found.marginals, softmax(-unary), rtol=1e-12)
    assert found.labels.tolist() == [2]


def test_many_labels_and_few_voxels() -> None:
    unary = np.random.default_rng(0).normal(size=(255, 2))
    found = Enumeration(pm.DenseCRF(unary=unary))
    np.testing.assert_allclose(found.marginals, softmax(-unary), rtol=1e-10)


@given(
    seed=st.integers(0, 10_000),
    shape=st.sampled_from([(1, 3), (2, 2), (5,), (2, 3)]),
    n_labels=st.integers(2, 4),
    normalization=st.sampled_from(NORMALIZATIONS),
    matrix=st.booleans(),
    self_term=st.booleans(),
)
def test_it_equals_the_oracle(
    seed: int,
    shape: tuple[int, ...],
    n_labels: int,
    normalization: str,
    matrix: bool,
    self_term: bool,
) -> None:
    crf, oracle = random_problem(
        seed, shape, n_labels, normalization=normalization, matrix=matrix, self_term=self_term
    )
    found = Enumeration(crf)
    table = oracle.all_energies()
    assert found.log_z == pytest.approx(oracle.log_z(), rel=1e-12, abs=1e-12)
    np.testing.assert_allclose(flat(found.marginals), oracle.exact_marginals(), atol=1e-12)
    best = np.unravel_index(table.argmin(), table.shape)
    np.testing.assert_array_equal(found.labels.ravel(), best)
    assert found.energy == pytest.approx(table.min(), abs=1e-12)
    assert crf.energy(found.labels) == pytest.approx(found.energy, abs=1e-12)


def test_rows_are_worked_on_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    crf, oracle = random_problem(4, (2, 4), 3)
    from lab.comparators import enumeration as states

    monkeypatch.setattr(states, "_ENERGIES_AT_ONCE", 100)
    found = Enumeration(crf)
    assert len(found._table.rows()) > 20
    assert found.log_z == pytest.approx(oracle.log_z(), rel=1e-12)
    np.testing.assert_allclose(flat(found.marginals), oracle.exact_marginals(), atol=1e-12)


def test_energies_that_would_overflow() -> None:
    crf = pm.DenseCRF(unary=[[-2000.0, 3000.0], [0.0, 3001.0]])
    found = Enumeration(crf)
    assert found.log_z == pytest.approx(-1000.0 + math.log1p(math.exp(-1.0)))
    np.testing.assert_allclose(found.marginals, softmax(-crf.energies), atol=1e-12)


def test_outside_the_mask_is_label_zero() -> None:
    unary = np.random.default_rng(0).normal(size=(3, 2, 3))
    mask = np.array([[1, 0, 1], [0, 1, 0]])
    crf = pm.DenseCRF(unary=unary, kernels=[pm.SpatialKernel(sigma=1.0)], mask=mask)
    found = Enumeration(crf)
    assert found.labels[mask == 0].tolist() == [0, 0, 0]
    assert found.marginals[:, mask == 0].T.tolist() == [[1, 0, 0]] * 3
    posterior = exact(crf, 30, 1)
    assert posterior.counts[:, mask == 0].T.tolist() == [[30, 0, 0]] * 3


def test_a_grid_crf_couples_neighbours_only() -> None:
    unary = np.random.default_rng(1).normal(size=(2, 3))
    found = Enumeration(GridCRF(unary, weight=0.8, spacing=2.0))
    energies = [
        unary[a, 0] + unary[b, 1] + unary[c, 2] + 0.4 * (a != b) + 0.4 * (b != c)
        for a in (0, 1)
        for b in (0, 1)
        for c in (0, 1)
    ]
    assert found.log_z == pytest.approx(np.log(np.exp(-np.array(energies)).sum()))


def test_samples_follow_the_joint_distribution() -> None:
    from scipy.stats import chisquare

    crf, oracle = random_problem(2, (2, 3), 3, weight=2.0)
    posterior = exact(crf, 20_000, 5)
    truth = oracle.exact_marginals()
    assert disagreement(flat(posterior.marginals), truth, 20_000) < 4
    expected = size_distribution(oracle.all_energies(), label=1)
    voxel = posterior.volumes[0].sum() / 6
    sizes = np.rint(posterior.volumes[:, 1] / voxel).astype(int)
    assert chisquare(np.bincount(sizes, minlength=7), 20_000 * expected).pvalue > 0.01
