"""Every engine against the reference: one body, one tolerance for each engine and accuracy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

import perturb_mpm as pm
from helpers.interpreter import need_gpu_or_interpreter
from helpers.problems import (
    NORMALIZATIONS,
    four_axes,
    masked_volume,
    matrix_for_one_kernel,
    random_problem,
)
from perturb_mpm.engines import Solver, prepare


@dataclass(frozen=True)
class Contender:
    engine: str
    accuracy: str
    tolerance: float
    """The largest difference from the reference of any marginal."""

    def prepare(self, crf: pm.DenseCRF, batch: int = 4) -> Solver:
        return prepare(crf, self.engine, self.accuracy, batch=batch)


CONTENDERS = [
    Contender("reference", "exact", 1e-12),
    Contender("cpu", "exact", 1e-5),
    Contender("gpu", "exact", 1e-5),
]


@pytest.fixture(params=CONTENDERS, ids=lambda c: f"{c.engine}-{c.accuracy}")
def contender(request: pytest.FixtureRequest) -> Contender:
    chosen: Contender = request.param
    if chosen.engine == "cpu":
        pytest.importorskip("numba", reason="engine cpu needs numba")
    if chosen.engine == "gpu":
        need_gpu_or_interpreter()
    return chosen


def features_on_a_line() -> pm.DenseCRF:
    rng = np.random.default_rng(1)
    kernel = pm.FeatureKernel(rng.normal(size=(5, 40)), sigma=0.9, weight=1.2)
    return pm.DenseCRF(unary=rng.normal(size=(7, 40)), kernels=[kernel])


def no_kernels() -> pm.DenseCRF:
    return pm.DenseCRF(unary=np.random.default_rng(4).normal(size=(3, 5)))


def one_voxel() -> pm.DenseCRF:
    return pm.DenseCRF(unary=[[0.3], [0.1]], kernels=[pm.SpatialKernel(sigma=1.0)])


PROBLEMS = [
    masked_volume,
    features_on_a_line,
    four_axes,
    matrix_for_one_kernel,
    no_kernels,
    one_voxel,
]


@pytest.fixture(params=PROBLEMS, ids=lambda make: make.__name__)
def crf(request: pytest.FixtureRequest) -> pm.DenseCRF:
    make: Callable[[], pm.DenseCRF] = request.param
    return make()


def perturbed(crf: pm.DenseCRF, problems: int, seed: int = 0) -> np.ndarray:
    noise = np.random.default_rng(seed).gumbel(size=(problems, *crf.energies.shape))
    return crf.energies - noise


def check_agreement(solver: Solver, truth: Solver, tolerance: float) -> None:
    marginals, expected = solver.marginals(), truth.marginals()
    np.testing.assert_allclose(marginals, expected, rtol=0, atol=tolerance)
    np.testing.assert_allclose(marginals.sum(axis=1), 1, rtol=0, atol=1e-5)
    pairwise = truth.pairwise()
    scale = max(1.0, float(np.abs(pairwise).max()))
    np.testing.assert_allclose(solver.pairwise(), pairwise, rtol=0, atol=10 * tolerance * scale)
    labels = solver.labels()
    assert labels.dtype == np.uint8
    chosen = np.take_along_axis(expected, labels[:, np.newaxis].astype(int), axis=1)[:, 0]
    np.testing.assert_allclose(chosen, expected.max(axis=1), rtol=0, atol=2 * tolerance)


@pytest.mark.parametrize("update", ["parallel", "convergent"])
@pytest.mark.parametrize("damping", [0.0, 0.4])
def test_a_batch_of_problems_equals_the_reference(
    contender: Contender, crf: pm.DenseCRF, update: str, damping: float
) -> None:
    energies = perturbed(crf, 3)
    solver, truth = contender.prepare(crf), prepare(crf, "reference", batch=3)
    assert (solver.engine, solver.accuracy) == (contender.engine, contender.accuracy)
    assert solver.batch >= 3
    for each in (solver, truth):
        each.load(energies)
    check_agreement(solver, truth, contender.tolerance)
    for _ in range(5):
        change, expected = solver.step(update, damping), truth.step(update, damping)
        check_agreement(solver, truth, contender.tolerance)
        for name in ("maximum", "foreground"):
            assert getattr(change, name).shape == (3,)
        np.testing.assert_allclose(
            change.maximum, expected.maximum, rtol=0, atol=2 * contender.tolerance
        )
        np.testing.assert_allclose(
            change.foreground, expected.foreground, rtol=0, atol=2 * contender.tolerance
        )


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_every_normalization(contender: Contender, normalization: str) -> None:
    crf, _ = random_problem(7, (5, 6), 3, normalization=normalization)
    solver, truth = contender.prepare(crf), prepare(crf, "reference", batch=1)
    for each in (solver, truth):
        each.load(crf.energies[np.newaxis])
        each.step()
        each.step()
    check_agreement(solver, truth, contender.tolerance)


def test_the_reference_pairwise_term_is_the_double_loop() -> None:
    for normalization in NORMALIZATIONS:
        crf, oracle = random_problem(8, (3, 4), 3, normalization=normalization)
        solver = prepare(crf, "reference", batch=1)
        solver.load(crf.energies[np.newaxis])
        q = solver.marginals()[0]
        np.testing.assert_allclose(solver.pairwise()[0], oracle.pairwise(q), atol=1e-12)


def test_a_batch_gives_what_its_problems_give_alone(contender: Contender) -> None:
    crf = masked_volume()
    energies = perturbed(crf, 4)
    together, alone = contender.prepare(crf, batch=4), contender.prepare(crf, batch=1)
    together.load(energies)
    changes = [together.step() for _ in range(3)]
    for b in range(4):
        alone.load(energies[b : b + 1])
        own = [alone.step() for _ in range(3)]
        np.testing.assert_allclose(alone.marginals()[0], together.marginals()[b], atol=1e-6)
        assert own[-1].maximum[0] == pytest.approx(changes[-1].maximum[b], abs=1e-6)


def test_a_given_start_is_taken(contender: Contender) -> None:
    crf = masked_volume()
    start = np.random.default_rng(5).dirichlet(np.ones(3), size=(2, crf.grid.voxels))
    start = np.swapaxes(start, 1, 2)  # (B, L, N)
    solver, truth = contender.prepare(crf), prepare(crf, "reference", batch=2)
    for each in (solver, truth):
        each.load(perturbed(crf, 2), start)
    np.testing.assert_allclose(solver.marginals(), start, rtol=0, atol=1e-6)
    for each in (solver, truth):
        each.step()
    check_agreement(solver, truth, contender.tolerance)


def test_loading_again_starts_afresh(contender: Contender) -> None:
    crf = masked_volume()
    solver, fresh = contender.prepare(crf), contender.prepare(crf)
    solver.load(perturbed(crf, 4, seed=1))
    solver.step()
    for each in (solver, fresh):
        each.load(perturbed(crf, 2, seed=2))
        each.step()
    np.testing.assert_array_equal(solver.marginals(), fresh.marginals())


def test_what_the_solver_returns_is_the_callers_to_change(contender: Contender) -> None:
    crf = masked_volume()
    solver = contender.prepare(crf)
    energies = perturbed(crf, 2)
    solver.load(energies)
    before = solver.marginals().copy()
    energies[...] = 0
    solver.marginals()[...] = 0
    solver.pairwise()[...] = 0
    np.testing.assert_array_equal(solver.marginals(), before)


def kinds(array: np.ndarray) -> dict[str, np.ndarray]:
    """The same values in every guise an array may come in."""
    read_only = array.copy()
    read_only.flags.writeable = False
    return {
        "float64": array.astype(np.float64),
        "float32": array.astype(np.float32),
        "int64": array.astype(np.int64),
        "uint8": array.astype(np.uint8),
        "big-endian float": array.astype(">f8"),
        "big-endian int": array.astype(">i2"),
        "Fortran order": np.asfortranarray(array),
        "strided": np.repeat(array, 2, axis=-1)[..., ::2],
        "reversed": array[..., ::-1].copy()[..., ::-1],
        "read-only": read_only,
    }


@pytest.mark.parametrize("kind", list(kinds(np.zeros((1, 1)))))
def test_every_kind_of_array_gives_the_same_result(contender: Contender, kind: str) -> None:
    rng = np.random.default_rng(6)
    unary = rng.integers(0, 5, size=(3, 6, 5)).astype(float)
    images = rng.integers(0, 200, size=(2, 6, 5)).astype(float)
    mask = rng.integers(0, 2, size=(6, 5)).astype(float)
    matrix = np.array([[0.0, 1.0, 2.0], [1.0, 0.0, 1.0], [2.0, 1.0, 0.0]])

    def marginals(*arrays: np.ndarray) -> np.ndarray:
        unary, images, mask, matrix = arrays
        crf = pm.DenseCRF(
            unary=unary,
            kernels=[pm.BilateralKernel(images, sigma_space=3.0, sigma_intensity=1.0)],
            compatibility=matrix,
            mask=mask,
        )
        solver = contender.prepare(crf)
        solver.load(crf.energies[np.newaxis])
        solver.step()
        return solver.marginals()

    plain = (unary, images, mask, matrix)
    guises = [kinds(array)[kind] for array in plain]
    before = [guise.copy() for guise in guises]
    np.testing.assert_allclose(marginals(*guises), marginals(*plain), rtol=0, atol=1e-6)
    for guise, old in zip(guises, before):
        np.testing.assert_array_equal(guise, old)


def test_the_names_of_engines_are_checked() -> None:
    crf = one_voxel()
    with pytest.raises(ValueError, match="engine must be one of auto, reference, cpu, gpu, got"):
        prepare(crf, "cuda")
    with pytest.raises(ValueError, match="accuracy must be one of plain, calibrated, accurate"):
        prepare(crf, "reference", "best")


def test_a_batch_too_large_or_of_another_shape_is_refused() -> None:
    crf = masked_volume()
    solver = prepare(crf, "reference", batch=2)
    for wrong in (perturbed(crf, 3), crf.energies, perturbed(crf, 1)[:, :, 1:]):
        with pytest.raises(ValueError, match=r"energies must be \(B, 3, \d+\) with B at most 2"):
            solver.load(wrong)
    with pytest.raises(ValueError, match="marginals must have the shape of energies"):
        solver.load(perturbed(crf, 2), perturbed(crf, 1))
