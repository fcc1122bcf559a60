from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import perturb_mpm as pm
from helpers.oracle import softmax
from helpers.problems import random_problem, semimetric
from perturb_mpm.engines import prepare
from perturb_mpm.engines.convergent import check_convergent, solve_matrix, solve_potts


def tug_of_war(weight: float = 10.0) -> pm.DenseCRF:
    """Two strongly coupled voxels of opposite mind: in parallel, each takes over the other's."""
    kernel = pm.SpatialKernel(sigma=10.0, weight=weight, normalization="none")
    return pm.DenseCRF(unary=[[0.0, 0.5], [0.4, 0.0]], kernels=[kernel])


def test_parallel_updates_oscillate_under_strong_coupling_and_say_so() -> None:
    with pytest.warns(pm.ConvergenceWarning, match=r"oscillates between two states.*damping"):
        q = pm.mean_field(tug_of_war(), iterations=500, tolerance=1e-6, engine="reference")
    assert not q.converged
    assert q.change > 0.9
    assert q.iterations == 500


def test_the_convergent_update_converges_where_parallel_ones_oscillate() -> None:
    crf = tug_of_war()
    q = pm.mean_field(crf, iterations=500, tolerance=1e-12, update="convergent", engine="reference")
    assert q.converged
    np.testing.assert_array_equal(q.labels, 1)  # (1, 1) costs 0.4, (0, 0) costs 0.5
    k = 10.0 * np.exp(-0.5 / 100)
    energies = np.array([[0.0, 0.5], [0.4, 0.0]])
    fixed = softmax(-energies - k * (1 - q.marginals[:, ::-1]))
    np.testing.assert_allclose(q.marginals, fixed, rtol=0, atol=1e-10)


def test_damping_settles_the_oscillation() -> None:
    q = pm.mean_field(tug_of_war(), iterations=500, tolerance=1e-9, damping=0.5, engine="reference")
    assert q.converged


@given(
    seed=st.integers(0, 10_000),
    weight=st.sampled_from([0.5, 5.0, 15.0, 40.0]),
    normalization=st.sampled_from(["symmetric", "none"]),
    matrix=st.booleans(),
    self_term=st.booleans(),
    damping=st.sampled_from([0.0, 0.5]),
)
def test_the_free_energy_never_rises(
    seed: int, weight: float, normalization: str, matrix: bool, self_term: bool, damping: float
) -> None:
    crf, _ = random_problem(
        seed,
        (3, 3),
        3,
        weight=weight,
        normalization=normalization,
        matrix=matrix,
        self_term=self_term,
    )
    solver = prepare(crf, "reference")
    solver.load(crf.energies[np.newaxis])
    free = [free_energy(solver.marginals(), crf.energies, solver.pairwise())]
    for _ in range(8):
        solver.step("convergent", damping)
        free.append(free_energy(solver.marginals(), crf.energies, solver.pairwise()))
    assert np.diff(free).max() <= 1e-9 * max(1.0, np.abs(free).max())


def free_energy(q: np.ndarray, energies: np.ndarray, pairwise: np.ndarray) -> float:
    log_q = np.log(np.maximum(q, 1e-300))
    return float((q * (energies + log_q + pairwise / 2)).sum())


def test_parallel_updates_do_raise_the_free_energy() -> None:
    crf = tug_of_war()
    solver = prepare(crf, "reference")
    solver.load(crf.energies[np.newaxis])
    free = []
    for _ in range(8):
        solver.step("parallel")
        free.append(free_energy(solver.marginals(), crf.energies, solver.pairwise()))
    assert np.diff(free).max() > 0.1


def test_with_the_self_term_kept_it_is_the_parallel_update() -> None:
    crf, _ = random_problem(0, (3, 4), 3, weight=3.0, self_term=True)
    solvers = {}
    for update in ("parallel", "convergent"):
        solvers[update] = prepare(crf, "reference")
        solvers[update].load(crf.energies[np.newaxis])
        solvers[update].step(update)
    np.testing.assert_array_equal(
        solvers["convergent"].marginals(), solvers["parallel"].marginals()
    )


@pytest.mark.parametrize("coupling", [0.0, 1e-320, 1e-9, 0.3, 2.0, 15.0, 300.0, 1e4])
@pytest.mark.parametrize("spread", [0.0, 1.0, 30.0, 1000.0])
def test_potts_equation_is_solved(coupling: float, spread: float) -> None:
    logits = spread * np.random.default_rng(0).normal(size=(2, 4, 7))
    q = solve_potts(logits, np.full(7, coupling))
    np.testing.assert_allclose(q.sum(axis=1), 1, rtol=1e-12)
    exponent = np.swapaxes(logits - coupling * q, 0, 1)  # labels first
    # The right side multiplies an error of q by up to the coupling.
    tolerance = 1e-12 * (1 + coupling + spread)
    np.testing.assert_allclose(np.swapaxes(q, 0, 1), softmax(exponent), rtol=0, atol=tolerance)


@given(seed=st.integers(0, 1000), coupling=st.floats(0, 20), spread=st.floats(0, 30))
def test_the_matrix_equation_is_solved(seed: int, coupling: float, spread: float) -> None:
    rng = np.random.default_rng(seed)
    logits = spread * rng.normal(size=(2, 4, 5))
    matrices = [semimetric(rng, 4), 1.0 - np.eye(4)]
    diagonals = [coupling * rng.random(5), coupling * rng.random(5)]
    q = solve_matrix(logits, matrices, diagonals)
    exponent = logits + sum(k * (mu @ q) for mu, k in zip(matrices, diagonals))
    np.testing.assert_allclose(
        np.swapaxes(q, 0, 1), softmax(np.swapaxes(exponent, 0, 1)), rtol=0, atol=1e-10
    )


def test_both_solvers_agree_on_potts() -> None:
    rng = np.random.default_rng(1)
    logits, coupling = 3 * rng.normal(size=(1, 3, 20)), 15 * rng.random(20)
    np.testing.assert_allclose(
        solve_matrix(logits, [1.0 - np.eye(3)], [coupling]),
        solve_potts(logits, coupling),
        rtol=0,
        atol=1e-11,
    )


def refused(**options: object) -> pm.DenseCRF:
    kernel = pm.SpatialKernel(sigma=1.0, **options)
    return pm.DenseCRF(unary=np.zeros((3, 4)), kernels=[pm.SpatialKernel(sigma=2.0), kernel])


@pytest.mark.parametrize("normalization", ["before", "after"])
def test_asymmetric_kernels_are_refused(normalization: str) -> None:
    crf = refused(normalization=normalization)
    message = rf'needs normalization "symmetric" or "none", got "{normalization}" in kernels\[1\]'
    with pytest.raises(ValueError, match=message):
        pm.mean_field(crf, update="convergent", engine="reference")
    solver = prepare(crf, "reference")
    solver.load(crf.energies[np.newaxis])
    with pytest.raises(ValueError, match=message):
        solver.step("convergent")


def test_compatibilities_that_repel_are_refused() -> None:
    crf = refused(compatibility=np.eye(3))
    with pytest.raises(
        ValueError, match=r"semi-definite .* got an eigenvalue of 1 in kernels\[1\]"
    ):
        pm.mean_field(crf, update="convergent", engine="reference")


@given(seed=st.integers(0, 1000), n_labels=st.integers(2, 8))
def test_squared_distances_between_labels_are_accepted(seed: int, n_labels: int) -> None:
    matrix = semimetric(np.random.default_rng(seed), n_labels)
    kernel = pm.SpatialKernel(sigma=1.0, weight=7.0, compatibility=matrix)
    check_convergent(pm.DenseCRF(unary=np.zeros((n_labels, 4)), kernels=[kernel]))
