"""Held voxels on every engine: what the reference makes of them, whatever the batch."""

from __future__ import annotations

import numpy as np
import pytest

import perturb_mpm as pm
from helpers.problems import masked_volume, matrix_for_one_kernel, smooth_problem
from perturb_mpm.engines import Hold, Solver, prepare
from perturb_mpm.engines.cpu import held as held_module
from perturb_mpm.noise import Perturbation


def held_half(crf: pm.DenseCRF, steps: int = 3, seed: int = 0) -> Hold:
    """Half of the voxels, and energies and marginals that are nobody's average: any will do."""
    rng = np.random.default_rng(seed)
    active = np.flatnonzero(rng.random(crf.grid.voxels) < 0.5)
    energies = rng.normal(size=(steps, crf.n_labels, len(active)))
    marginals = rng.dirichlet(np.ones(crf.n_labels), size=(steps, len(active)))
    return Hold(
        active,
        energies.astype(np.float32),
        marginals.transpose(0, 2, 1).astype(np.float32),
        rng.normal(size=crf.energies.shape).astype(np.float32),
    )


def followed(solver: Solver, held: Hold, steps: int, sharpness: float = 1.0) -> list[np.ndarray]:
    solver.hold(held)
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
    held = held_half(crf)
    wanted = followed(prepare(crf, "reference", batch=3), held, 5, sharpness)
    found = followed(prepare(crf, "cpu", "exact", batch=3), held, 5, sharpness)
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
    held = held_half(crf)
    wanted = followed(prepare(crf, "reference", batch=3), held, 4)
    found = followed(prepare(crf, "cpu", "exact", batch=3), held, 4)
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
    held = Hold(
        active, energies[np.newaxis][..., active], average[np.newaxis][..., active], energies
    )
    solver.hold(held)
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
    held = held_half(crf)
    numbers = np.arange(7)
    whole = None
    for batch, threads in ((7, 1), (7, 2), (3, 2), (1, 1)):
        solver = prepare(crf, "cpu", batch=batch, threads=threads, compact=compact)
        solver.hold(held)
        marginals, labels, total = [], [], 0
        for first in range(0, 7, batch):
            solver.perturb(Perturbation(3), numbers[first : first + batch])
            for left in (2, 1, 0):
                change = solver.step(watched=left == 0)
            assert (change.switched <= len(held.active) / crf.grid.voxels).all()
            marginals.append(solver.marginals())
            labels.append(solver.labels())
            total = total + solver.conditional()
        found = np.concatenate(marginals), np.concatenate(labels), total
        whole = whole or found
        for ours, theirs in zip(found, whole):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("engine", ["reference", "cpu"])
def test_some_of_the_problems_are_counted(engine: str) -> None:
    crf = masked_volume()
    solver = prepare(crf, engine, "exact", batch=4)
    for held in (None, held_half(crf)):
        solver.hold(held)
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


def rivals(labels: int) -> np.ndarray:
    """Return unaries of voxels with one likely label and another that is 0 to 20 nats behind it."""
    rng = np.random.default_rng(1)
    unary = np.full((40, 40, labels), 30.0)
    unary[..., 0] = 0
    unary[..., 1] = rng.uniform(0, 20, size=(40, 40))
    return rng.permuted(unary, axis=-1).transpose(2, 0, 1)


@pytest.mark.parametrize("centring", [0.0, 0.7])
@pytest.mark.parametrize("antithetic", [False, True])
@pytest.mark.parametrize("compact", [False, True])
def test_votes_seen_from_random_bits_are_those_of_the_noise(
    compact: bool, antithetic: bool, centring: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gaps of which some decide a vote whatever the noise and some do not."""
    rng = np.random.default_rng(2)
    crf = pm.DenseCRF(rivals(6), [pm.SpatialKernel(2.0, weight=1.0)], centring=centring)
    nobody = np.arange(1)
    zeros = np.zeros((1, 6, 1), dtype=np.float32)
    last = rng.normal(size=crf.energies.shape).astype(np.float32)
    everywhere = np.arange(crf.grid.voxels - 1)
    for scale in (1.0, 0.6, 0.0):
        noise = Perturbation(7, scale, antithetic=antithetic)
        solver = prepare(crf, "cpu", batch=16, compact=compact)
        solver.hold(Hold(nobody, zeros, zeros + 1 / 6, last))
        voxels = solver._active  # type: ignore[attr-defined]
        solver.perturb(noise, np.arange(16))
        quick = solver.labels()[:, 1:]  # voxel 0 is active, and was not updated
        doubtful = len(voxels._vote_where_certain(noise)) / crf.grid.voxels
        assert 0.1 < doubtful < 0.5 if scale else doubtful < 0.02
        monkeypatch.setattr(voxels, "_vote_where_certain", lambda _: everywhere)
        solver.perturb(noise, np.arange(16))
        np.testing.assert_array_equal(quick, solver.labels()[:, 1:])
        assert (quick != quick[0]).any() == (scale > 0)


def test_a_bound_that_is_too_high_loses_votes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control of the test above: then it would have seen it."""
    crf = pm.DenseCRF(rivals(3))
    zeros = np.zeros((1, 3, 1), dtype=np.float32)
    votes = []
    for lowest in (held_module.LOWEST_GUMBEL, 4.0):
        monkeypatch.setattr(held_module, "LOWEST_GUMBEL", lowest)
        solver = prepare(crf, "cpu", batch=16)
        solver.hold(Hold(np.arange(1), zeros, zeros + 1 / 3, np.zeros_like(crf.energies)))
        solver.perturb(Perturbation(7), np.arange(16))
        votes.append(solver.labels()[:, 1:])
    assert (votes[0] != votes[1]).any()


def test_pairwise_energies_need_every_voxel() -> None:
    crf = masked_volume()
    solver = prepare(crf, "cpu", batch=1)
    solver.hold(held_half(crf))
    solver.perturb(Perturbation(1), np.arange(1))
    with pytest.raises(ValueError, match="pairwise needs every voxel"):
        solver.pairwise()
