"""Frozen voxels on every engine: what the reference makes of them, whatever the batch."""

from __future__ import annotations

import numpy as np
import pytest

import perturb_mpm as pm
from helpers.problems import masked_volume, matrix_for_one_kernel, smooth_problem
from perturb_mpm.engines import FrozenVoxels, Solver, prepare
from perturb_mpm.noise import Perturbation


def freeze_half(crf: pm.DenseCRF, steps: int = 3, seed: int = 0) -> FrozenVoxels:
    """Half of the voxels, and energies and marginals that are nobody's average: any will do."""
    rng = np.random.default_rng(seed)
    active = np.flatnonzero(rng.random(crf.grid.voxels) < 0.5)
    energies = rng.normal(size=(steps, crf.n_labels, len(active)))
    marginals = rng.dirichlet(np.ones(crf.n_labels), size=(steps, len(active)))
    return FrozenVoxels(
        active,
        energies.astype(np.float32),
        marginals.transpose(0, 2, 1).astype(np.float32),
        rng.normal(size=crf.energies.shape).astype(np.float32),
    )


def follow(
    solver: Solver, frozen: FrozenVoxels, steps: int, sharpness: float = 1.0
) -> list[np.ndarray]:
    solver.freeze(frozen)
    solver.perturb(Perturbation(5, 0.8), np.array([4, 0, 9]), sharpness=sharpness)
    found = [solver.marginals()]
    for _ in range(steps):
        solver.step(sharpness=sharpness)
        found.append(solver.marginals())
    return [*found, solver.labels(), solver.conditional() / 2.0**30]


@pytest.mark.parametrize("sharpness", [1.0, 1.3])
@pytest.mark.parametrize("make", [masked_volume, matrix_for_one_kernel])
def test_exact_filters_follow_the_reference(make: object, sharpness: float) -> None:
    crf = make()  # type: ignore[operator]
    frozen = freeze_half(crf)
    wanted = follow(prepare(crf, "reference", batch=3), frozen, 5, sharpness)
    found = follow(prepare(crf, "cpu", "exact", batch=3), frozen, 5, sharpness)
    for ours, theirs in zip(found[:-2], wanted[:-2]):
        np.testing.assert_allclose(ours, theirs, atol=2e-5)
    np.testing.assert_array_equal(found[-2], wanted[-2])
    np.testing.assert_allclose(found[-1], wanted[-1], atol=6e-5)


def test_a_centred_problem_follows_the_reference() -> None:
    base = masked_volume()
    crf = pm.DenseCRF(
        base.grid.scatter(base.energies, 0),
        base.kernels,
        spacing=base.grid.spacing,
        mask=base.grid.mask,
        centring=0.7,
    )
    frozen = freeze_half(crf)
    wanted = follow(prepare(crf, "reference", batch=3), frozen, 4)
    found = follow(prepare(crf, "cpu", "exact", batch=3), frozen, 4)
    for ours, theirs in zip(found, wanted):
        np.testing.assert_allclose(ours, theirs, atol=6e-5)


@pytest.mark.parametrize("compact", [False, True])
def test_a_lattice_among_active_voxels_is_the_whole_lattice(compact: bool) -> None:
    """Energies and marginals that belong together cancel: nothing is lost by leaving rows out."""
    crf = smooth_problem()
    rng = np.random.default_rng(1)
    active = np.flatnonzero(rng.random(crf.grid.voxels) < 0.6)
    others = np.setdiff1d(np.arange(crf.grid.voxels), active)
    solver = prepare(crf, "cpu", batch=2, compact=compact)
    average = rng.dirichlet(np.ones(crf.n_labels), size=crf.grid.voxels).T.astype(np.float32)
    solver.load(crf.energies[np.newaxis], average[np.newaxis])
    energies = solver.pairwise()[0]
    frozen = FrozenVoxels(
        active, energies[np.newaxis][..., active], average[np.newaxis][..., active], energies
    )
    solver.freeze(frozen)
    solver.perturb(Perturbation(2), np.arange(2))
    start = solver.marginals()
    solver.step()
    found = solver.marginals()
    mixed = start.copy()
    mixed[:, :, others] = average[:, others]
    solver.load(Perturbation(2).energies(crf.energies, crf.grid, np.arange(2)), mixed)
    solver.step()
    wanted = solver.marginals()
    tolerance = 2e-3 if compact else 2e-5
    np.testing.assert_allclose(found[..., active], wanted[..., active], atol=tolerance)
    assert np.abs(wanted - start)[..., active].max() > 0.1


@pytest.mark.parametrize("compact", [False, True])
def test_neither_batch_nor_threads_change_a_bit(compact: bool) -> None:
    crf = smooth_problem()
    frozen = freeze_half(crf)
    numbers = np.arange(7)
    whole = None
    for batch, threads in ((7, 1), (7, 2), (3, 2), (1, 1)):
        solver = prepare(crf, "cpu", batch=batch, threads=threads, compact=compact)
        solver.freeze(frozen)
        marginals, labels, total = [], [], 0
        for first in range(0, 7, batch):
            solver.perturb(Perturbation(3), numbers[first : first + batch])
            for left in (2, 1, 0):
                change = solver.step(watched=left == 0)
            assert (change.switched <= len(frozen.active) / crf.grid.voxels).all()
            marginals.append(solver.marginals())
            labels.append(solver.labels())
            total = total + solver.conditional()
        found = np.concatenate(marginals), np.concatenate(labels), total
        whole = whole or found
        for ours, theirs in zip(found, whole):
            np.testing.assert_array_equal(ours, theirs)


def test_problems_with_and_without_frozen_voxels_take_turns_in_one_memory() -> None:
    crf, numbers = smooth_problem(), np.array([4, 0, 9])
    frozen = freeze_half(crf)

    def draw(solver: Solver, *, freezes: bool) -> list[np.ndarray]:
        solver.freeze(frozen if freezes else None)
        solver.perturb(Perturbation(3), numbers)
        solver.step()
        return [solver.marginals(), solver.labels()]

    both = prepare(crf, "cpu", batch=3, compact=True)
    for freezes in (True, False, False, True):
        alone = draw(prepare(crf, "cpu", batch=3, compact=True), freezes=freezes)
        for ours, theirs in zip(draw(both, freezes=freezes), alone):
            np.testing.assert_array_equal(ours, theirs)
    assert both._whole.buffers.rows.size == 0  # the frozen problems have its memory now


@pytest.mark.parametrize("engine", ["reference", "cpu"])
def test_some_of_the_problems_are_counted(engine: str) -> None:
    crf = masked_volume()
    solver = prepare(crf, engine, "exact", batch=4)
    for frozen in (None, freeze_half(crf)):
        solver.freeze(frozen)
        solver.perturb(Perturbation(1), np.arange(4))
        solver.step()
        labels = solver.labels()
        chosen = np.array([True, False, False, True])
        counts = np.zeros(crf.energies.shape, dtype=np.uint32)
        sizes = solver.count_votes(counts, chosen)
        for l in range(crf.n_labels):
            np.testing.assert_array_equal(counts[l], (labels[chosen] == l).sum(axis=0))
            np.testing.assert_array_equal(sizes[:, l], (labels == l).sum(axis=1))
        some = solver.conditional(chosen) + solver.conditional(~chosen)
        np.testing.assert_array_equal(some, solver.conditional())


@pytest.mark.parametrize("damping", [0.5, -0.4])
def test_damped_updates_follow_the_reference(damping: float) -> None:
    crf = masked_volume()
    frozen = freeze_half(crf)
    found = []
    for engine in ("reference", "cpu"):
        solver = prepare(crf, engine, "exact", batch=3)
        solver.freeze(frozen)  # type: ignore[attr-defined]
        solver.perturb(Perturbation(5, 0.8), np.array([4, 0, 9]))
        for _ in range(3):
            change = solver.step(damping=damping)
        found.append((solver.marginals(), change.maximum))
    for ours, theirs in zip(found[1], found[0]):
        np.testing.assert_allclose(ours, theirs, atol=2e-5)


@pytest.mark.parametrize("compact", [False, True])
def test_samples_that_others_left_go_on_as_before(compact: bool) -> None:
    crf = smooth_problem()
    solver = prepare(crf, "cpu", batch=5, compact=compact)
    solver.freeze(freeze_half(crf))  # type: ignore[attr-defined]
    going = np.array([True, False, False, True, False])
    found = []
    for narrow in (False, True):
        solver.perturb(Perturbation(3), np.arange(5))
        solver.step()
        if narrow:
            assert solver.drop_converged(going)  # type: ignore[attr-defined]
        solver.step()
        found.append((solver.marginals(), solver.labels()))
    for whole, some in zip(*found):
        np.testing.assert_array_equal(some, whole[going])


def test_pairwise_energies_need_every_voxel() -> None:
    crf = masked_volume()
    solver = prepare(crf, "cpu", batch=1)
    solver.freeze(freeze_half(crf))
    solver.perturb(Perturbation(1), np.arange(1))
    with pytest.raises(ValueError, match="pairwise needs every voxel"):
        solver.pairwise()
