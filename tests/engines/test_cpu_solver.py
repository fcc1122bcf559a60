"""What the CPU engine promises beyond its results: the same bits however it runs, and its plan."""

from __future__ import annotations

import gc
import logging
import math
import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import perturb_mpm as pm
from helpers.problems import random_problem, smooth_problem
from perturb_mpm.engines import AccuracyWarning, available_cores, prepare
from perturb_mpm.engines.cpu import row_kernels
from perturb_mpm.engines.cpu.batch import SharedMemory
from perturb_mpm.engines.cpu.threads import Threads
from perturb_mpm.engines.protocol import Accuracy
from perturb_mpm.noise import Perturbation

ACCURACIES: tuple[Accuracy, ...] = ("plain", "calibrated", "accurate", "exact")


def many_tiles(accuracy: str) -> pm.DenseCRF:
    """A problem of several tiles, the last not full; all pairs of it are not many."""
    return smooth_problem((11, 12, 9) if accuracy == "exact" else (20, 24, 16))


def perturbed(crf: pm.DenseCRF, problems: int) -> np.ndarray:
    noise = np.random.default_rng(0).gumbel(size=(problems, *crf.energies.shape))
    return (crf.energies - noise).astype(np.float32)


def solve(crf: pm.DenseCRF, energies: np.ndarray, accuracy: str, **options: object) -> np.ndarray:
    solver = prepare(crf, "cpu", accuracy, batch=len(energies), **options)  # type: ignore[arg-type]
    solver.load(energies)
    for _ in range(5):
        solver.step()
    return np.concatenate([solver.marginals(), solver.labels()[:, np.newaxis]], axis=1)


@pytest.mark.parametrize("accuracy", ACCURACIES)
@pytest.mark.parametrize("compact", [False, True])
def test_the_same_bits_for_any_number_of_threads(accuracy: str, compact: bool) -> None:
    crf = many_tiles(accuracy)
    energies = perturbed(crf, 3)
    one, two, five = (
        solve(crf, energies, accuracy, threads=threads, compact=compact) for threads in (1, 2, 5)
    )
    np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(one, five)


@pytest.mark.parametrize("accuracy", ACCURACIES)
@pytest.mark.parametrize("compact", [False, True])
def test_the_same_bits_in_any_batch(accuracy: str, compact: bool) -> None:
    crf = many_tiles(accuracy)
    energies = perturbed(crf, 7)
    together = solve(crf, energies, accuracy, compact=compact)
    alone = np.concatenate(
        [solve(crf, energies[b : b + 1], accuracy, compact=compact) for b in range(7)]
    )
    backwards = solve(crf, energies[::-1], accuracy, compact=compact)[::-1]
    np.testing.assert_array_equal(together, alone)
    np.testing.assert_array_equal(together, backwards)


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("damping", [0.0, -0.6, 0.3])
@pytest.mark.parametrize(("n_labels", "matrix"), [(2, False), (4, True)])
def test_tiles_of_any_width_have_the_same_bits(
    n_labels: int, matrix: bool, damping: float, compact: bool
) -> None:
    crf = random_problem(4, (6, 7, 5), n_labels, matrix=matrix)[0]
    crf = pm.DenseCRF(crf.grid.scatter(crf.energies, 0), crf.kernels, centring=0.5)
    found: list[list[np.ndarray]] = []
    for batch in (11, 5):
        solver = prepare(crf, "cpu", batch=batch, compact=compact)
        seen = []
        for first in range(0, 11, batch):
            numbers = np.arange(first, min(first + batch, 11))
            solver.perturb(Perturbation(3), numbers, sharpness=1.2)
            steps = [
                solver.step(damping=damping, sharpness=1.2, watched=watched)
                for watched in (False, True, True)
            ]
            change = np.array([steps[2].maximum, steps[2].foreground, steps[2].switched]).T
            seen.append((solver.marginals(), solver.labels(), change))
        found.append([np.concatenate(parts) for parts in zip(*seen)])
    for wide, narrow in zip(*found):  # (B, …)
        np.testing.assert_array_equal(wide, narrow)
    labels, change = found[0][1:]
    assert (change[:, 0] > 1e-4).all()
    assert len(np.unique(labels)) == n_labels


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("n_labels", [2, 4])
def test_problems_that_others_left_go_on_as_before(n_labels: int, compact: bool) -> None:
    crf = smooth_problem(n_labels=n_labels)
    solver = prepare(crf, "cpu", batch=7, compact=compact)
    kept = np.array([True, False, False, True, False, True, False])
    found = []
    for narrow in (False, True, True):  # a whole batch must fit again after a narrow one
        solver.perturb(Perturbation(3), np.arange(7))
        solver.step()
        if narrow:
            assert solver.drop_converged(kept)  # type: ignore[attr-defined]
        solver.step()
        if narrow:  # down to one, whose rows are the narrowest
            assert solver.drop_converged(np.array([False, False, True]))  # type: ignore[attr-defined]
        solver.step()
        found.append((solver.marginals(), solver.labels(), solver.conditional()))
    whole = found[0]
    for marginals, labels, _ in found[1:]:
        np.testing.assert_array_equal(marginals, whole[0][[5]])
        np.testing.assert_array_equal(labels, whole[1][[5]])
    alone = found[1][2]
    np.testing.assert_array_equal(alone, found[2][2])
    solver.perturb(Perturbation(3), np.array([5]))
    for _ in range(3):
        solver.step()
    np.testing.assert_array_equal(solver.conditional(), alone)


@pytest.mark.parametrize("kept", [[0], range(3, 32, 4), range(1, 32, 2), range(1, 32)])
def test_problems_move_together_in_place_on_several_threads(kept: Sequence[int]) -> None:
    rng = np.random.default_rng(2)
    unary = rng.gumbel(size=(3, 23, 19, 17))  # more tiles than fit at once, the last not full
    solver = prepare(pm.DenseCRF(unary, [pm.SpatialKernel(2.0)]), "cpu", batch=32, threads=2)
    solver.perturb(Perturbation(4), np.arange(32))
    solver.step()
    before = (solver.marginals()[kept], solver.labels()[kept])
    chosen = np.isin(np.arange(32), kept)
    assert solver.drop_converged(chosen)  # type: ignore[attr-defined]
    for was, now in zip(before, (solver.marginals(), solver.labels()), strict=True):
        np.testing.assert_array_equal(was, now)
    solver.step()
    after = solver.marginals()
    solver.perturb(Perturbation(4), np.array(kept))
    solver.step()
    solver.step()
    np.testing.assert_array_equal(after, solver.marginals())


def test_loaded_problems_that_others_left_go_on_too() -> None:
    crf = smooth_problem()
    energies = perturbed(crf, 4)
    solver = prepare(crf, "cpu", batch=4)
    solver.load(energies)
    solver.step()
    assert solver.drop_converged(np.array([False, True, False, True]))  # type: ignore[attr-defined]
    solver.step()
    found = solver.marginals()
    solver.load(energies[[1, 3]])
    solver.step()
    solver.step()
    np.testing.assert_array_equal(found, solver.marginals())


@pytest.mark.parametrize(
    ("accuracy", "tolerance"), [("plain", 0.004), ("calibrated", 0.0025), ("accurate", 0.0015)]
)
def test_lattices_come_close_to_the_reference_on_smooth_images(
    accuracy: str, tolerance: float
) -> None:
    crf = smooth_problem((14, 16, 12))
    q = pm.mean_field(crf, iterations=60, engine="cpu", accuracy=accuracy)
    truth = pm.mean_field(crf, iterations=60, engine="reference")
    assert np.abs(q.marginals - truth.marginals).mean() < tolerance
    assert q.free_energy == pytest.approx(truth.free_energy, rel=0.01)


@pytest.mark.parametrize("accuracy", ["plain", "calibrated", "accurate"])
def test_compact_values_change_marginals_by_less_than_a_thousandth(accuracy: str) -> None:
    crf = smooth_problem()
    energies = perturbed(crf, 2)
    wide, compact = (solve(crf, energies, accuracy, compact=c) for c in (False, True))
    assert np.abs(wide - compact)[:, :-1].max() < 2e-3
    assert (wide[:, -1] != compact[:, -1]).mean() < 1e-3


def test_an_unwatched_step_moves_the_marginals_alike() -> None:
    crf = smooth_problem()
    energies = perturbed(crf, 2)
    results = []
    for watched in (True, False):
        solver = prepare(crf, "cpu", batch=2)
        solver.load(energies)
        solver.step(watched=watched)
        solver.step()
        results.append((solver.marginals(), solver.labels()))
    np.testing.assert_array_equal(results[0][0], results[1][0])
    np.testing.assert_array_equal(results[0][1], results[1][1])


def test_a_sequence_of_problems_is_taken_one_by_one() -> None:
    crf = smooth_problem()
    energies = perturbed(crf, 3)
    whole, piecewise = prepare(crf, "cpu", batch=3), prepare(crf, "cpu", batch=3)
    whole.load(energies)
    piecewise.load(list(energies))
    np.testing.assert_array_equal(whole.marginals(), piecewise.marginals())


def test_huge_energies_stay_finite() -> None:
    unary = np.array([[0.0, 1e30, -1e30, 70000.0], [1e30, 0.0, 1e30, 0.0], [1.0, 2.0, 3.0, 4.0]])
    crf = pm.DenseCRF(unary=unary, kernels=[pm.SpatialKernel(sigma=1.0, weight=2.0)])
    for compact in (False, True):
        result = solve(crf, crf.energies[np.newaxis], "calibrated", compact=compact)
        assert np.isfinite(result).all()
        np.testing.assert_array_equal(result[0, -1], [0, 1, 0, 1])


def test_exp_is_good_to_a_few_units_in_the_last_place() -> None:
    x = -np.linspace(0, 86, 20001, dtype=np.float32)
    got = np.array([row_kernels.exp_negative(v) for v in x], dtype=np.float64)
    expected = np.exp(x.astype(np.float64))
    assert (np.abs(got - expected) / expected).max() < 4e-7
    assert row_kernels.exp_negative(np.float32(-1e9)) < 2e-38


def test_the_batch_follows_the_memory() -> None:
    crf = smooth_problem()
    assert prepare(crf, "cpu").batch == 32
    sizes = [prepare(crf, "cpu", memory=b).batch for b in ("2.5 MB", "4 MB", "100 MB")]
    assert 1 <= sizes[0] < sizes[1] < sizes[2] == 32


@pytest.mark.parametrize("accuracy", ["calibrated", "exact"])
def test_what_cannot_fit_fails_at_once_with_its_size_and_a_remedy(accuracy: str) -> None:
    crf = smooth_problem()
    with pytest.raises(MemoryError, match=r"needs .* GB, memory allows .* GB: use a larger"):
        prepare(crf, "cpu", accuracy, memory="200 kB")


def test_a_batch_that_does_not_fit_asks_for_a_smaller_one() -> None:
    with pytest.raises(MemoryError, match=r"batch 500 .* needs .* use a smaller batch"):
        prepare(smooth_problem(), "cpu", batch=500, memory="3 MB")


def test_too_many_problems_for_the_batch_are_refused() -> None:
    crf = smooth_problem()
    with pytest.raises(ValueError, match="energies must hold at most 2 problems, got 3"):
        prepare(crf, "cpu", batch=2).load(perturbed(crf, 3))


def test_a_problem_of_another_shape_is_refused() -> None:
    crf = smooth_problem()
    with pytest.raises(ValueError, match=r"energies must hold arrays of shape \(4, .*got \(3, "):
        prepare(crf, "cpu", batch=1).load(perturbed(crf, 1)[:, :3])


def test_votes_are_for_labels_whatever_the_memory_held(monkeypatch: pytest.MonkeyPatch) -> None:
    divide = SharedMemory.divide

    def divide_used(memory: SharedMemory, wanted: Sequence[tuple[int, Any]]) -> list[Any]:
        arrays = divide(memory, wanted)
        for array in arrays:
            array.view(np.uint8)[:] = 255
        return arrays

    monkeypatch.setattr(SharedMemory, "divide", divide_used)
    crf = smooth_problem()
    solver = prepare(crf, "cpu", batch=2)
    with pytest.raises(ValueError, match="energies must hold arrays of shape"):
        solver.load([crf.energies, crf.energies[:1]])  # after the memory was taken
    assert solver.labels().max() < crf.n_labels
    solver.load([crf.energies])
    counts = np.zeros(crf.energies.shape, dtype=np.uint32)
    assert solver.count_votes(counts).sum() == counts.sum() == crf.grid.voxels


def test_before_problems_are_loaded_there_are_no_votes() -> None:
    crf = smooth_problem()
    counts = np.zeros(crf.energies.shape, dtype=np.uint32)
    sizes = prepare(crf, "cpu").count_votes(counts)
    assert sizes.shape == (0, crf.n_labels)
    assert not counts.any()


def test_votes_in_arrays_of_another_shape_are_refused() -> None:
    crf = smooth_problem()
    solver = prepare(crf, "cpu", batch=2)
    solver.load([crf.energies, crf.energies])
    counts = np.zeros(crf.energies.shape, dtype=np.uint32)
    for few in (counts[:-1], counts[:, :-1]):
        with pytest.raises(ValueError, match=r"counts must be of shape .*, got "):
            solver.count_votes(few)
    with pytest.raises(ValueError, match=r"chosen must be of shape \(2,\), got \(1,\)"):
        solver.count_votes(counts, np.ones(1, dtype=np.bool_))
    assert not counts.any()


def test_threads_cover_a_range_once() -> None:
    def mark(seen: np.ndarray, start: int, stop: int) -> int:
        seen[start:stop] += 1
        return stop - start

    for count in (1, 2, 3, 100, 1000):
        for threads in (1, 2, 7):
            seen = np.zeros(count, dtype=int)
            assert sum(Threads(threads).run(mark, count, seen)) == count
            assert (seen == 1).all()
    assert available_cores() >= 1


def test_calibration_leaves_constant_images_alone(caplog: pytest.LogCaptureFixture) -> None:
    """No foreground, no contrast: still an answer, and nothing but the notice of compilation."""
    caplog.set_level(logging.WARNING)
    crf = pm.DenseCRF(
        unary=np.zeros((2, 6, 6)),
        kernels=[pm.BilateralKernel(np.ones((1, 6, 6)), 3.0, 1.0)],
    )
    q = pm.mean_field(crf, engine="cpu")
    np.testing.assert_allclose(q.marginals, 0.5, atol=1e-5)
    assert q.free_energy == pytest.approx(
        pm.mean_field(crf, engine="reference").free_energy, rel=0.05
    )
    assert math.isfinite(q.free_energy)


def test_without_normalisation_the_lattice_has_the_gaussian_s_size() -> None:
    """The plain lattice is too small by a factor, as published; calibration takes it away."""
    smooth = smooth_problem((14, 16, 12))
    kernel = smooth.kernels[1]
    crf = pm.DenseCRF(
        unary=smooth.grid.scatter(smooth.energies, 0.0),
        kernels=[replace(kernel, normalization="none", weight=0.01)],
        mask=smooth.grid.mask,
    )
    sums = {}
    with pytest.warns(AccuracyWarning, match="sums are too small"):
        plain = prepare(crf, "cpu", "plain", batch=1)
    others = (("reference", "exact"), ("cpu", "calibrated"))
    solvers = {accuracy: prepare(crf, engine, accuracy, batch=1) for engine, accuracy in others}
    for accuracy, solver in {**solvers, "plain": plain}.items():
        solver.load(crf.energies[np.newaxis])
        sums[accuracy] = float(solver.pairwise().sum())
    assert sums["calibrated"] == pytest.approx(sums["exact"], rel=0.03)
    assert sums["plain"] < 0.8 * sums["exact"]


def test_a_solver_that_is_let_go_gives_its_memory_back_at_once() -> None:
    crf = smooth_problem()
    solver = prepare(crf, "cpu", "plain", batch=1, compact=False)
    solver.load(crf.energies[np.newaxis])
    memory = weakref.ref(solver._whole)  # type: ignore[attr-defined]
    gc.disable()
    try:
        del solver
        assert memory() is None
    finally:
        gc.enable()
