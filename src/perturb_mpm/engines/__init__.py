"""The engines: how K·Q and the update are computed, chosen by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

from perturb_mpm import checks
from perturb_mpm.engines.memory import resolve_budget
from perturb_mpm.engines.protocol import Accuracy, Solver

if TYPE_CHECKING:
    from perturb_mpm.model.crf import DenseCRF

Engine = Literal["auto", "reference", "cpu", "gpu"]

__all__ = ["Accuracy", "Engine", "Solver", "prepare"]


def prepare(
    crf: DenseCRF,
    engine: Engine = "auto",
    accuracy: Accuracy = "calibrated",
    *,
    batch: int | None = None,
    threads: int | None = None,
    memory_budget: int | str | None = None,
    compact: bool = False,
) -> Solver:
    """Build the kernels of ``crf`` on an engine, ready to solve batches of problems.

    Parameters
    ----------
    crf
        The model.
    engine
        "reference" (NumPy, float64, all pairs), "cpu" (Numba, threads), "gpu" (PyTorch and
        Triton, one NVIDIA GPU) or "auto": the GPU where there is one and the problem is large
        enough, else the CPU.
    accuracy
        The filter of the ``cpu`` and ``gpu`` engines: "plain", "calibrated", "accurate" or
        "exact". The ``reference`` engine is always exact.
    batch
        The most problems solved at once; planned from the memory budget where it is None.
    threads
        How many threads the ``cpu`` engine uses; all cores where it is None.
    memory_budget
        Bytes, or a text such as "4 GB"; 60 % of the free memory where it is None. On the ``gpu``
        engine it is the device's memory, 80 % of what is free where it is None.
    compact
        Let an engine keep values in 16 bits: half the memory and faster, marginals good to about
        1e-3. Meant for many noisy problems.
    """
    checks.choice(engine, "engine", get_args(Engine))
    checks.choice(accuracy, "accuracy", get_args(Accuracy))
    if batch is not None:
        batch = checks.integer(batch, "batch", minimum=1)
    if threads is not None:
        threads = checks.integer(threads, "threads", minimum=1)
    budget = resolve_budget(memory_budget)
    if engine == "gpu" or (engine == "auto" and _gpu_is_worth_it(crf)):
        from perturb_mpm.engines import gpu

        # The budget is the device's own here, and so is what is free where none is given.
        own = None if memory_budget is None else budget
        return gpu.prepare(crf, accuracy, batch, own, compact=compact)
    if engine == "reference":
        from perturb_mpm.engines import reference

        return reference.prepare(crf, batch, budget)

    from perturb_mpm.engines import cpu

    return cpu.prepare(crf, accuracy, batch, threads, budget, compact=compact)


def _gpu_is_worth_it(crf: DenseCRF) -> bool:
    from perturb_mpm.engines import gpu

    return gpu.is_worth_it(crf.grid.voxels)
