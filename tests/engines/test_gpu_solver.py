"""The GPU engine as a whole: the CPU engine's results, the same bits however it runs, its plan."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch", reason="engine gpu needs torch")
pytest.importorskip("triton", reason="engine gpu needs triton")

import torch

import perturb_mpm as pm
from helpers.interpreter import need_gpu_or_interpreter
from helpers.problems import four_axes, masked_volume, matrix_for_one_kernel, smooth_problem
from perturb_mpm.engines import gpu, prepare
from perturb_mpm.engines import lattice as keys
from perturb_mpm.engines.gpu import device as devices
from perturb_mpm.engines.gpu import memory as plan
from perturb_mpm.engines.gpu import solver as solvers
from perturb_mpm.engines.gpu.chain import factorize
from perturb_mpm.engines.gpu.lattice import build
from perturb_mpm.engines.gpu.messages import kernel_features, morton_order, upload_images
from perturb_mpm.engines.lattice import BLURS
from perturb_mpm.engines.lattice import morton_order as order_in_numpy
from perturb_mpm.noise.perturbation import Perturbation

pytestmark = pytest.mark.slow
DEVICE = need_gpu_or_interpreter()

LATTICES = ("plain", "calibrated", "accurate")
NOISE = Perturbation(
    5, 0.9, antithetic=True, lengths=((math.inf, 0.2), (3.0, 0.5), (0.7, 0.2), (0.0, 0.1))
)


def small() -> pm.DenseCRF:
    return smooth_problem((6, 6, 5), n_labels=4)  # two tiles


@pytest.mark.parametrize("accuracy", [*LATTICES, "exact"])
def test_the_results_are_those_of_the_cpu_engine(accuracy: str) -> None:
    """The same vertices, the same scale chosen, the same noise: float32 agrees to its rounding."""
    crf = small()
    solvers = [prepare(crf, engine, accuracy, batch=3) for engine in ("gpu", "cpu")]
    for solver in solvers:
        solver.perturb(NOISE, np.array([0, 3, 2**32 - 1]))
        changes = [solver.step() for _ in range(2)]
    ours, theirs = solvers
    np.testing.assert_allclose(ours.marginals(), theirs.marginals(), rtol=0, atol=3e-6)
    np.testing.assert_allclose(ours.pairwise(), theirs.pairwise(), rtol=0, atol=2e-5)
    np.testing.assert_allclose(
        ours.conditional() / 2**30, theirs.conditional() / 2**30, rtol=0, atol=1e-5
    )
    assert (ours.labels() == theirs.labels()).mean() > 0.999
    assert changes[-1].maximum.shape == (3,)


@pytest.mark.parametrize("problem", [masked_volume, four_axes, matrix_for_one_kernel])
def test_lattices_of_other_problems_are_those_of_the_cpu_engine(problem: object) -> None:
    crf = problem()  # type: ignore[operator]
    marginals = []
    for engine in ("gpu", "cpu"):
        solver = prepare(crf, engine, "plain", batch=2)
        solver.load(np.stack([crf.energies, -crf.energies]))
        solver.step()
        solver.step(damping=0.2)
        marginals.append(solver.marginals())
    np.testing.assert_allclose(*marginals, rtol=0, atol=3e-6)


@pytest.mark.parametrize(
    ("accuracy", "compact"), [("plain", True), ("plain", False), ("exact", True)]
)
def test_the_same_bits_in_any_batch(accuracy: str, compact: bool) -> None:
    crf = small()
    samples = np.array([7, 0, 3])

    def solved(some: np.ndarray) -> np.ndarray:
        solver = prepare(crf, "gpu", accuracy, batch=len(some), compact=compact)
        solver.perturb(Perturbation(5), some)
        solver.step(watched=False)
        solver.step()
        return np.concatenate([solver.marginals(), solver.labels()[:, np.newaxis]], axis=1)

    together = solved(samples)
    np.testing.assert_array_equal(together[::-1], solved(samples[::-1].copy()))
    parts = np.concatenate([solved(samples[:1]), solved(samples[1:])])
    np.testing.assert_array_equal(together, parts)


def test_halves_change_marginals_by_little() -> None:
    crf = small()
    results = []
    for compact in (False, True):
        solver = prepare(crf, "gpu", "plain", batch=2, compact=compact)
        solver.perturb(Perturbation(5), np.arange(2))
        solver.step()
        results.append(solver.marginals())
    difference = np.abs(results[0] - results[1]).max()
    assert 0 < difference < 3e-3


def test_sampling_counts_what_the_solver_votes() -> None:
    crf = small()
    options = {"seed": 3, "iterations": 1, "accuracy": "plain"}
    whole = pm.sample(crf, 6, engine="gpu", **options)
    parts = pm.sample(crf, 6, engine="gpu", batch=4, **options)
    cpu = pm.sample(crf, 6, engine="cpu", **options)
    np.testing.assert_array_equal(whole.counts, parts.counts)
    np.testing.assert_array_equal(whole.volumes, parts.volumes)
    assert (whole.labels == cpu.labels).mean() > 0.99
    assert whole.parameters["engine"] == "gpu"


def test_more_votes_than_a_byte_holds_are_counted() -> None:
    """A batch of 256 problems counts in more than 8 bits."""
    unary = np.random.default_rng(0).random((2, 3, 4))
    crf = pm.DenseCRF(unary=unary, kernels=[pm.SpatialKernel(sigma=1.0, weight=1.0)])
    options = {"seed": 1, "iterations": 1, "accuracy": "plain"}
    gpu_s, cpu_s = (pm.sample(crf, 256, engine=engine, **options) for engine in ("gpu", "cpu"))
    assert (gpu_s.counts.sum(axis=0) == 256).all()
    # A sample may fall on either side of a tie.
    np.testing.assert_allclose(gpu_s.counts, cpu_s.counts.astype(int), rtol=0, atol=1)


def test_the_gpu_engine_does_without_numba() -> None:
    """It takes seconds to import, and compiles nothing here."""
    program = """
import importlib, pkgutil, sys
import numpy as np
import perturb_mpm as pm
from helpers.interpreter import need_gpu_or_interpreter
from perturb_mpm.engines import gpu, prepare
need_gpu_or_interpreter()
for module in pkgutil.iter_modules(gpu.__path__, gpu.__name__ + "."):
    importlib.import_module(module.name)
crf = pm.DenseCRF(unary=np.zeros((2, 3, 4)), kernels=[pm.SpatialKernel(sigma=1.0, weight=1.0)])
prepare(crf, "gpu", "plain")
print(sorted(name for name in sys.modules if name == "numba" or ".engines.cpu" in name))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.stdout.strip() == "[]"


def test_features_and_order_are_those_of_the_cpu_engine() -> None:
    crf = masked_volume()
    index = torch.from_numpy(np.array(crf.grid.index)).to(DEVICE)
    order = morton_order(crf.grid, index)
    np.testing.assert_array_equal(order.cpu().numpy(), order_in_numpy(crf.grid))
    for term in crf.terms:
        images = upload_images(term, order.device)
        ours = kernel_features(term, order, index[order], images).cpu().numpy()
        np.testing.assert_allclose(ours, term.features()[order.cpu().numpy()], rtol=0, atol=1e-12)


def test_constant_channels_have_no_features() -> None:
    crf = pm.DenseCRF(
        unary=np.zeros((2, 6)), kernels=[pm.BilateralKernel(np.full((1, 6), 0.1), 3.0, 1.0)]
    )
    order = torch.arange(6, device=DEVICE)
    images = upload_images(crf.terms[0], order.device)
    assert (kernel_features(crf.terms[0], order, order, images)[:, 1] == 0).all()


def test_hashed_keys_give_the_same_lattice(monkeypatch: pytest.MonkeyPatch) -> None:
    features = torch.from_numpy(np.random.default_rng(0).normal(scale=0.5, size=(200, 6)))
    features = features.to(DEVICE, torch.float32)
    filters = [factorize(build(features, BLURS["calibrated"]), "symmetric", 1.0)]
    monkeypatch.setattr(keys, "MARGIN", 2**12)  # a box that does not fit into 62 bits
    filters.append(factorize(build(features, BLURS["calibrated"]), "symmetric", 1.0))
    assert filters[0].vertices == filters[1].vertices
    for name in ("total", "diagonal"):
        torch.testing.assert_close(getattr(filters[0], name), getattr(filters[1], name))


def test_the_batch_follows_the_memory() -> None:
    crf = small()
    assert prepare(crf, "gpu", "plain").batch == plan.DEFAULT_BATCH
    sizes = [prepare(crf, "gpu", "plain", memory=b).batch for b in ("2 MB", "4 MB")]
    assert 1 <= sizes[0] < sizes[1] < plan.DEFAULT_BATCH


def test_what_cannot_fit_fails_with_its_size_and_a_remedy() -> None:
    with pytest.raises(MemoryError, match=r"needs .* GB, memory allows .* GB: use a larger"):
        prepare(small(), "gpu", "plain", memory="100 kB")
    with pytest.raises(MemoryError, match=r"batch 500 .* needs .* use a smaller batch"):
        prepare(small(), "gpu", "plain", batch=500, memory="3 MB")


def test_a_device_with_less_memory_than_it_said_gets_smaller_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    class Full(plan.BatchMemory):
        def __init__(self, layout: object, *arguments: object) -> None:
            asked.append(layout.problems)  # type: ignore[attr-defined]
            if layout.problems > 100:  # type: ignore[attr-defined]
                raise torch.OutOfMemoryError
            super().__init__(layout, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(plan, "BatchMemory", Full)
    crf = small()
    solver = prepare(crf, "gpu", "plain")
    assert asked == [0]  # of a batch when one asks for it
    assert solver.batch == 84
    assert asked == [0, 200, 150, 112, 84]
    solver.load(crf.energies[np.newaxis])
    with pytest.raises(ValueError, match="energies must hold at most 84 problems, got 85"):
        solver.load([crf.energies] * 85)
    with pytest.raises(ValueError, match=r"energies must hold arrays of shape \(4, "):
        solver.load(crf.energies[np.newaxis, :2])


@pytest.mark.parametrize("where", ["lattice_filters", "update_marginals"])
def test_a_device_that_others_have_filled_is_a_memory_error(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_arguments: object, **_options: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    monkeypatch.setattr(solvers, where, full)
    with pytest.raises(MemoryError, match=r"the GPU has no memory left .* share as `memory`"):
        prepare(small(), "gpu", "plain").step()


def test_auto_takes_the_gpu_for_large_problems_only(monkeypatch: pytest.MonkeyPatch) -> None:
    crf = small()
    monkeypatch.setattr(devices, "_has_driver", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert devices.is_worth_it(devices.WORTH_IT)
    assert not devices.is_worth_it(devices.WORTH_IT - 1)
    assert prepare(crf).engine == "cpu"
    monkeypatch.setattr(devices, "_has_driver", lambda: False)
    assert not devices.is_worth_it(devices.WORTH_IT)
    monkeypatch.undo()
    monkeypatch.setattr(gpu, "is_worth_it", lambda voxels: voxels == crf.grid.voxels)
    assert prepare(crf, accuracy="plain").engine == "gpu"


@pytest.mark.parametrize(
    ("engine", "voxels", "loaded"),
    [("auto", 100_000, True), ("auto", 99_999, False), ("gpu", 1, True), ("cpu", 100_000, False)],
)
def test_a_gpu_is_loaded_beside_what_is_computed(engine: str, voxels: int, loaded: bool) -> None:
    code = f"""
import sys, threading
from perturb_mpm.engines import Compute, load_ahead
from perturb_mpm.engines.gpu import device
device._has_driver = lambda: True
load_ahead(Compute({engine!r}), {voxels})
for thread in threading.enumerate():
    if thread.name == "perturb-mpm-load":
        thread.join()
print("perturb_mpm.engines.gpu.solver" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(loaded)]


def test_missing_packages_and_devices_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    crf = small()
    for package in ("torch", "triton"):
        with monkeypatch.context() as without:
            without.setitem(sys.modules, package, None)
            message = rf"\"gpu\" needs the package {package}: pip install 'perturb-mpm\[gpu\]'"
            with pytest.raises(ImportError, match=message):
                prepare(crf, "gpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    with pytest.raises(RuntimeError, match=r'needs an NVIDIA GPU .*: use engine="cpu", or "auto"'):
        prepare(crf, "gpu")


def test_energies_beyond_halves_stay_finite() -> None:
    unary = np.array([[0.0, 1e30, -1e30, 70000.0], [1e30, 0.0, 1e30, 0.0], [1.0, 2.0, 3.0, 4.0]])
    crf = pm.DenseCRF(unary=unary, kernels=[pm.SpatialKernel(sigma=1.0, weight=2.0)])
    for compact in (False, True):
        solver = prepare(crf, "gpu", "plain", batch=1, compact=compact)
        solver.load(crf.energies[np.newaxis])
        solver.step()
        assert np.isfinite(solver.marginals()).all()
        np.testing.assert_array_equal(solver.labels()[0], [0, 1, 0, 1])


def test_without_noise_every_sample_is_the_problem_itself() -> None:
    crf = small()
    solver = prepare(crf, "gpu", "plain", batch=2)
    solver.perturb(replace(NOISE, scale=0.0), np.arange(2))
    start = solver.marginals()
    solver.load(np.stack([crf.energies, crf.energies]))
    np.testing.assert_allclose(start, solver.marginals(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("accuracy", ["plain", "exact"])
def test_every_voxel_is_updated_where_hold_asks_for_less(accuracy: str) -> None:
    crf = small()
    options = {"seed": 3, "iterations": 2, "engine": "gpu", "accuracy": accuracy}
    frozen, full = (pm.sample(crf, 5, hold=hold, **options) for hold in (0.05, 0.0))
    np.testing.assert_array_equal(frozen.counts, full.counts)
    np.testing.assert_array_equal(frozen.volumes, full.volumes)
    assert frozen.active_share == 1.0
    reason = frozen.parameters["hold"]["every_voxel"]
    assert reason == "the GPU engine updates every voxel"


@pytest.mark.parametrize("estimator", ["votes", "conditional"])
def test_each_sample_converges_by_itself_as_on_the_cpu(estimator: str) -> None:
    crf = small()
    options = {"iterations": 12, "tolerance": 0.02, "estimator": estimator, "accuracy": "plain"}
    ours = pm.sample(crf, 6, engine="gpu", batch=4, **options)
    assert pm.sample(crf, 6, engine="gpu", **options) == ours
    theirs = pm.sample(crf, 6, engine="cpu", **options)
    apart = np.abs(ours.counts.astype(int) - theirs.counts.astype(int)).sum() / 2
    assert apart <= 0.002 * 6 * crf.grid.voxels
    if estimator == "conditional":
        np.testing.assert_allclose(ours.marginals, theirs.marginals, atol=0.01)
