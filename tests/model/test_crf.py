from __future__ import annotations

import numpy as np
import pytest

import perturb_mpm as pm
from helpers.oracle import Oracle, gaussian
from helpers.problems import NORMALIZATIONS, random_problem
from perturb_mpm.model import crf as crf_module


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@pytest.mark.parametrize("self_term", [False, True])
def test_energy_is_the_sum_over_voxels_and_pairs(normalization: str, self_term: bool) -> None:
    crf, oracle = random_problem(
        3, (3, 4), 3, normalization=normalization, weight=2.0, self_term=self_term
    )
    for seed in range(5):
        x = np.random.default_rng(seed).integers(3, size=(3, 4))
        assert crf.energy(x) == pytest.approx(oracle.energy(x.ravel()), rel=1e-12)


def test_energy_of_two_voxels_by_hand() -> None:
    crf = pm.DenseCRF(
        unary=[[1.0, 2.0], [3.0, 5.0]],
        kernels=[pm.SpatialKernel(sigma=2.0, weight=3.0, normalization="none")],
        spacing=4.0,
    )
    assert crf.energy([0, 0]) == pytest.approx(3.0)
    assert crf.energy([0, 1]) == pytest.approx(6.0 + 3.0 * np.exp(-2.0))


def test_a_matrix_with_a_diagonal_counts_pairs_and_no_self_pairs() -> None:
    matrix = np.array([[0.5, 2.0], [2.0, -1.0]])
    crf = pm.DenseCRF(
        unary=np.zeros((2, 2)),
        kernels=[pm.SpatialKernel(sigma=1.0, normalization="none")],
        compatibility=matrix,
        self_term=True,
    )
    k = np.exp(-0.5)
    assert crf.energy([0, 0]) == pytest.approx(0.5 * k)
    assert crf.energy([1, 1]) == pytest.approx(-1.0 * k)
    assert crf.energy([1, 0]) == pytest.approx(2.0 * k)


def test_labels_outside_the_mask_do_not_count() -> None:
    mask = np.array([True, True, False])
    crf = pm.DenseCRF(unary=np.arange(6.0).reshape(2, 3), mask=mask)
    assert crf.energy([0, 1, 0]) == crf.energy([0, 1, 77]) == 4.0


def test_large_problems_go_through_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def prepare(crf: pm.DenseCRF, engine: str, accuracy: str, batch: int) -> object:
        asked.append((engine, accuracy))
        return real(crf, engine="reference", batch=batch)

    from perturb_mpm import engines

    real = engines.prepare
    monkeypatch.setattr(engines, "prepare", prepare)
    monkeypatch.setattr(crf_module, "EXACT_VOXELS", 11)
    crf, oracle = random_problem(3, (3, 4), 3)
    x = np.ones((3, 4), dtype=int)
    assert crf.energy(x) == pytest.approx(oracle.energy(x.ravel()))
    crf.energy(x, engine="cpu", accuracy="exact")
    monkeypatch.setattr(crf_module, "EXACT_VOXELS", 12)
    crf.energy(x)
    assert asked == [("auto", "calibrated"), ("cpu", "exact"), ("reference", "calibrated")]


def test_kernels_carry_their_weight_and_their_own_compatibility() -> None:
    matrix = np.array([[0.0, 1.0, 2.0], [1.0, 0.0, 1.0], [2.0, 1.0, 0.0]])
    crf = pm.DenseCRF(
        unary=np.zeros((3, 5)),
        kernels=[
            pm.SpatialKernel(sigma=1.0, weight=2.0),
            pm.SpatialKernel(sigma=1.0, weight=3.0, compatibility=matrix),
            pm.SpatialKernel(sigma=1.0, weight=3.0, compatibility=1.0 - np.eye(3)),
            pm.SpatialKernel(sigma=1.0, weight=3.0, compatibility=-np.eye(3)),
        ],
    )
    assert [term.potts_weight for term in crf.terms] == [2.0, None, 3.0, None]
    np.testing.assert_array_equal(crf.terms[0].compatibility, 2.0 * (1 - np.eye(3)))
    np.testing.assert_array_equal(crf.terms[1].compatibility, 3.0 * matrix)
    np.testing.assert_array_equal(crf.terms[0].features(), np.arange(5.0)[:, np.newaxis])


def test_the_crf_hands_its_compatibility_to_the_kernels_without_one() -> None:
    matrix = np.array([[0.0, 4.0], [4.0, 1.0]])
    kernel = pm.SpatialKernel(sigma=1.0, weight=0.5)
    crf = pm.DenseCRF(unary=np.zeros((2, 3)), kernels=[kernel], compatibility=matrix)
    np.testing.assert_array_equal(crf.terms[0].compatibility, matrix / 2)


def test_energies_are_those_inside_the_mask() -> None:
    unary = np.arange(24.0).reshape(2, 3, 4)
    mask = np.zeros((3, 4), dtype=np.uint8)
    mask[1, 1:3] = 4
    crf = pm.DenseCRF(unary=unary, mask=mask)
    assert (crf.n_labels, crf.shape, crf.grid.voxels) == (2, (3, 4), 2)
    np.testing.assert_array_equal(crf.energies, [[5, 6], [17, 18]])
    assert crf.energies.flags.c_contiguous
    assert not crf.energies.flags.writeable


@pytest.mark.parametrize("shape", [(7,), (3, 4), (2, 3, 4), (2, 2, 3, 2)])
def test_one_to_four_axes(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    unary = rng.normal(size=(2, *shape))
    crf = pm.DenseCRF(
        unary=unary, kernels=[pm.SpatialKernel(sigma=1.0, normalization="none")], spacing=1.0
    )
    positions = np.argwhere(np.ones(shape)).astype(float)
    oracle = Oracle(unary.reshape(2, -1), [gaussian(positions, "none")], [1.0 - np.eye(2)])
    x = rng.integers(2, size=shape)
    assert crf.energy(x) == pytest.approx(oracle.energy(x.ravel()))


def test_the_callers_arrays_are_neither_changed_nor_shared() -> None:
    unary = np.zeros((2, 3))
    matrix = np.array([[0.0, 1.0], [1.0, 0.0]])
    mask = np.ones(3, dtype=bool)
    crf = pm.DenseCRF(
        unary=unary, kernels=[pm.SpatialKernel(sigma=1.0)], compatibility=matrix, mask=mask
    )
    for mine in (unary, matrix, mask):
        mine[...] = 9
    assert not crf.energies.any()
    assert crf.terms[0].potts_weight == 1.0
    assert unary.flags.writeable
    assert mask.flags.writeable


def test_repr_says_what_the_problem_is() -> None:
    crf, _ = random_problem(0, (3, 4), 3)
    assert "labels=3, shape=(3, 4)" in repr(crf)
    assert "array" not in repr(pm.FeatureKernel(np.zeros((1, 3))))
