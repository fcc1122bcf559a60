"""Edits answered from the solution before them: on every engine what the reference makes of them.

The reference itself is held against solving everything again.
"""

from __future__ import annotations

import copy

import numpy as np
import pytest
from numpy.typing import NDArray

import perturb_mpm as pm
from helpers.problems import masked_volume, matrix_for_one_kernel, smooth_problem
from perturb_mpm.engines import FREE, FreezingSolver, FrozenVoxels, prepare, to_log_odds
from perturb_mpm.noise import Perturbation

SAMPLES = np.array([4, 0, 9])
CONVERGED = 60


def centred_volume() -> pm.DenseCRF:
    base = masked_volume()
    return pm.DenseCRF(
        base.grid.scatter(base.energies, 0),
        base.kernels,
        spacing=base.grid.spacing,
        mask=base.grid.mask,
        centring=0.7,
    )


def editable(
    crf: pm.DenseCRF, engine: str, accuracy: str = "exact", **more: object
) -> FreezingSolver:
    solver = prepare(crf, engine, accuracy, **more)  # type: ignore[arg-type]
    assert isinstance(solver, FreezingSolver)
    return solver


def some_edit(crf: pm.DenseCRF, share: float = 0.1) -> NDArray[np.int16]:
    """Labels at some voxels, (N,)."""
    rng = np.random.default_rng(7)
    given = np.full(crf.grid.voxels, FREE, dtype=np.int16)
    chosen = rng.random(crf.grid.voxels) < share
    given[chosen] = rng.integers(0, crf.n_labels, size=chosen.sum())
    return given


def solved(
    solver: FreezingSolver, lengths: object, updates: int, sharpness: float = 1.0
) -> NDArray[np.floating]:
    perturbation = Perturbation(5, 0.8, lengths=lengths)  # type: ignore[arg-type]
    solver.perturb(perturbation, SAMPLES, sharpness=sharpness)
    for _ in range(updates):
        solver.step(sharpness=sharpness)
    return solver.marginals()


def answer(
    solver: FreezingSolver,
    voxels: NDArray[np.int64],
    fixed: NDArray[np.int16],
    base: NDArray[np.float16],
    updates: int,
    sharpness: float = 1.0,
) -> NDArray[np.floating]:
    """Return the marginals (B, L, A) of a restricted problem after so many updates."""
    problem = solver.restrict(voxels)
    problem.load(base, fixed, sharpness=sharpness)
    for _ in range(updates):
        problem.step(sharpness=sharpness)
    return problem.marginals()


def with_labels(crf: pm.DenseCRF, given: NDArray[np.int16]) -> pm.DenseCRF:
    """The same CRF in which given labels alone are possible; what it is centred on stays."""
    energies = crf.energies.copy()
    labels = np.arange(crf.n_labels)[:, np.newaxis]
    energies[:, given != FREE] = np.where(labels == given, 0.0, 1e4)[:, given != FREE]
    other = copy.copy(crf)
    other.energies = energies
    return other


@pytest.mark.parametrize("lengths", [0.0, 2.0])
@pytest.mark.parametrize("make", [masked_volume, matrix_for_one_kernel, centred_volume])
def test_where_all_had_converged_an_edit_is_what_solving_everything_again_gives(
    make: object, lengths: float
) -> None:
    crf = make()  # type: ignore[operator]
    given = some_edit(crf)
    solver = editable(crf, "reference")
    before = solved(solver, lengths, CONVERGED)
    everywhere = np.arange(crf.grid.voxels)
    found = answer(solver, everywhere, given, solver.log_odds(everywhere), CONVERGED)
    again = solved(editable(with_labels(crf, given), "reference"), lengths, CONVERGED)
    np.testing.assert_allclose(found, again, atol=2e-3)  # log-odds are kept in 16 bits
    assert np.abs(found - before)[:, :, given == FREE].max() > 0.05  # neighbours did follow


def test_what_had_not_converged_is_moved_by_the_edit_alone() -> None:
    crf = masked_volume()
    solver = editable(crf, "reference")
    before = solved(solver, 0.0, 1)
    everywhere = np.arange(crf.grid.voxels)
    nothing = np.full(crf.grid.voxels, FREE, dtype=np.int16)
    found = answer(solver, everywhere, nothing, solver.log_odds(everywhere), 5)
    np.testing.assert_allclose(found, before, atol=2e-3)
    solver.step()
    assert np.abs(solver.marginals() - before).max() > 0.05  # one more update would have moved it


@pytest.mark.parametrize("sharpness", [1.0, 1.3])
@pytest.mark.parametrize("make", [masked_volume, matrix_for_one_kernel])
def test_exact_filters_follow_the_reference(make: object, sharpness: float) -> None:
    crf = make()  # type: ignore[operator]
    given = some_edit(crf)
    voxels = np.flatnonzero(np.random.default_rng(1).random(crf.grid.voxels) < 0.7)
    answers = []
    for engine in ("reference", "cpu"):
        solver = editable(crf, engine)
        solved(solver, 0.0, 4, sharpness)
        before = solver.log_odds(voxels)
        answers.append(answer(solver, voxels, given[voxels], before, 4, sharpness=sharpness))
        np.testing.assert_array_equal(
            answers[-1].argmax(axis=1)[:, given[voxels] != FREE],
            np.repeat(given[voxels][given[voxels] != FREE][np.newaxis], len(SAMPLES), 0),
        )
    np.testing.assert_allclose(answers[1], answers[0], atol=2e-3)


@pytest.mark.parametrize("engine", ["reference", "cpu"])
@pytest.mark.parametrize("make", [masked_volume, matrix_for_one_kernel])
def test_reach_is_the_difference_of_pairwise_energies(make: object, engine: str) -> None:
    crf = make()  # type: ignore[operator]
    solver = editable(crf, engine)
    rng = np.random.default_rng(2)
    q = rng.dirichlet(np.ones(crf.n_labels), size=crf.grid.voxels).T  # (L, N)
    voxels = np.array([11, 3, 7])
    other = q.copy()
    other[:, voxels] = rng.dirichlet(np.ones(crf.n_labels), size=3).T
    sent = []
    for marginals in (q, other):
        solver.load(crf.energies[np.newaxis], marginals[np.newaxis])
        sent.append(solver.pairwise()[0])
    found = solver.reach(voxels, other[:, voxels] - q[:, voxels])
    difference = sent[1] - sent[0]
    np.testing.assert_allclose(found - found[0], difference - difference[0], atol=2e-5)
    assert np.abs(difference).max() > 0.1


@pytest.mark.parametrize("compact", [False, True])
def test_a_lattice_among_some_voxels_is_the_whole_lattice(compact: bool) -> None:
    crf = smooth_problem()
    given = some_edit(crf, 0.02)
    solver = editable(crf, "cpu", "calibrated", batch=3, compact=compact)
    before = solved(solver, 0.0, 4)
    everywhere = np.arange(crf.grid.voxels)
    base = solver.log_odds(everywhere)
    whole = answer(solver, everywhere, given, base, 1)
    moved = np.abs(whole - before).max(axis=(0, 1)) > (2e-3 if compact else 1e-3)
    chosen = np.flatnonzero((given != FREE) | moved)
    assert 0.02 < len(chosen) / len(everywhere) < 0.95
    part = answer(solver, chosen, given[chosen], base[chosen], 1)
    fixed = given != FREE
    np.testing.assert_array_equal(
        whole[:, :, fixed], np.eye(crf.n_labels)[given[fixed]].T[None].repeat(3, 0)
    )
    np.testing.assert_allclose(part, whole[:, :, chosen], atol=1e-3 if compact else 1e-5)
    reach = solver.reach(chosen, (whole - before)[0][:, chosen])
    assert reach.shape == crf.energies.shape


@pytest.mark.parametrize("compact", [False, True])
def test_neither_batch_nor_threads_change_a_bit(compact: bool) -> None:
    crf = smooth_problem()
    given = some_edit(crf, 0.02)
    voxels = np.flatnonzero((np.arange(crf.grid.voxels) % 3 > 0) | (given != FREE))
    answers = []
    for threads in (1, 2):
        solver = editable(crf, "cpu", "plain", batch=3, threads=threads, compact=compact)
        solved(solver, 0.0, 3)
        before = solver.log_odds(voxels)
        whole = answer(solver, voxels, given[voxels], before, 4)
        parts = [answer(solver, voxels, given[voxels], before[:, :, [b]], 4) for b in range(3)]
        answers += [whole, np.concatenate(parts)]
    for each in answers[1:]:
        np.testing.assert_array_equal(each, answers[0])


@pytest.mark.parametrize("engine", ["reference", "cpu"])
def test_log_odds_are_those_of_active_voxels(engine: str) -> None:
    crf = masked_volume()
    active = np.arange(0, crf.grid.voxels, 3)
    average = np.full((1, crf.n_labels, len(active)), 1 / crf.n_labels, dtype=np.float32)
    solver = editable(crf, engine)
    last = np.zeros_like(crf.energies)
    solver.freeze(FrozenVoxels(active, np.zeros_like(average), average, last))
    solved(solver, 0.0, 1)
    wanted = to_log_odds(solver.marginals()[:, :, active].transpose(2, 1, 0))
    np.testing.assert_allclose(solver.log_odds(active), wanted, atol=0.02)
    with pytest.raises(ValueError, match="log_odds must be asked of active voxels"):
        solver.log_odds(active + 1)
