"""The engines: how K·Q and the update are computed, chosen by name."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from perturb_mpm.engines.compute import (
    KEEPS_FREED_MEMORY,
    MOST_ITERATIONS,
    Compute,
    Engine,
    available_bytes,
    available_cores,
    give_back,
    keep_freed_memory,
    require,
    resolve_budget,
)
from perturb_mpm.engines.convergent import check_convergent, convergent_marginals
from perturb_mpm.engines.lattice import BLURS, morton_order, published_gain
from perturb_mpm.engines.protocol import (
    FRACTION_BITS,
    FREE,
    LEAST_MARGINAL,
    Accuracy,
    AccuracyWarning,
    Change,
    FreezingSolver,
    FrozenVoxels,
    NarrowingSolver,
    Problems,
    RestrictedProblem,
    ReweighingSolver,
    Solver,
    Update,
    Updates,
    change_between,
    count_votes,
    fixed_point,
    to_log_odds,
)
from perturb_mpm.engines.reference import kernel_matrix, softmax

if TYPE_CHECKING:
    from perturb_mpm.model import DenseCRF

__all__ = [
    "KEEPS_FREED_MEMORY",
    "Accuracy",
    "available_bytes",
    "available_cores",
    "BLURS",
    "Change",
    "change_between",
    "check_convergent",
    "compile_ahead",
    "Compute",
    "convergent_marginals",
    "count_votes",
    "Engine",
    "fixed_point",
    "FRACTION_BITS",
    "FREE",
    "LEAST_MARGINAL",
    "FreezingSolver",
    "FrozenVoxels",
    "give_back",
    "keep_freed_memory",
    "kernel_matrix",
    "load_ahead",
    "morton_order",
    "MOST_ITERATIONS",
    "NarrowingSolver",
    "ReweighingSolver",
    "prepare",
    "prepare_with",
    "Problems",
    "published_gain",
    "AccuracyWarning",
    "require",
    "resolve_budget",
    "RestrictedProblem",
    "softmax",
    "Solver",
    "to_log_odds",
    "Update",
    "Updates",
]


def prepare(
    crf: DenseCRF,
    engine: Engine = "auto",
    accuracy: Accuracy = "calibrated",
    *,
    batch: int | None = None,
    threads: int | None = None,
    memory: int | str | None = None,
    kernel_cache: str | Path | None = None,
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
        The most problems solved at once; planned from the memory where it is None.
    threads
        How many threads the ``cpu`` engine uses; all cores where it is None.
    memory
        Bytes, or a text such as "4 GB"; 60 % of the free memory where it is None. On the ``gpu``
        engine it is the device's memory, 80 % of what is free where it is None.
    kernel_cache
        A folder in which the ``cpu`` engine keeps what it prepared, up to 8 GB, for the next time
        that the same kernels on the same images are asked for; changes no result.
    compact
        Let an engine keep values in 16 bits: half the memory and faster, marginals good to about
        1e-3. Meant for many noisy problems.

    Examples
    --------
    >>> crf = pm.DenseCRF(pm.unary_from_logits(np.zeros((2, 3))))
    >>> solver = pm.prepare(crf, engine="reference", batch=4)
    >>> solver.batch
    4
    """
    compute = Compute(engine, accuracy, batch, threads, memory, kernel_cache)
    return prepare_with(crf, compute, compact=compact)


def prepare_with(crf: DenseCRF, compute: Compute, *, compact: bool = False) -> Solver:
    """Do what ``prepare`` does, with its arguments as one object."""
    engine, accuracy, batch = compute.engine, compute.accuracy, compute.batch
    # The lattice's own gain stays in the sums of a kernel that is not normalised.
    plain = any(each.normalization == "none" and each.weight > 0 for each in crf.kernels)
    if accuracy == "plain" and engine != "reference" and plain:
        warnings.warn(
            'accuracy "plain" with normalization "none" is far from the Gaussian kernel: its sums '
            'are too small. Use accuracy "calibrated", or normalization "symmetric".',
            AccuracyWarning,
            stacklevel=3,
        )
    if engine == "gpu" or (engine == "auto" and _gpu_is_worth_it(crf)):
        from perturb_mpm.engines import gpu

        # The budget is the device's own here, and so is what is free where none is given.
        own = None if compute.memory is None else resolve_budget(compute.memory)
        return gpu.prepare(crf, accuracy, batch, own, compact=compact)
    budget = resolve_budget(compute.memory)
    if engine == "reference":
        from perturb_mpm.engines import reference

        return reference.prepare(crf, batch, budget)

    from perturb_mpm.engines import cpu

    return cpu.prepare(
        crf,
        accuracy,
        batch,
        compute.threads,
        budget,
        compact=compact,
        kernel_cache=compute.kernel_cache,
    )


def compile_ahead(compute: Compute, *, white: bool) -> None:
    """Compile the CPU engine's kernels in a process beside this one, on the first use of a machine.

    They will draw white noise or correlated.
    """
    if compute.engine in ("auto", "cpu"):
        from perturb_mpm.engines import cpu

        cpu.start_compiling(white=white)


def load_ahead(compute: Compute, voxels: int) -> None:
    """Load what a GPU needs while something else is computed, where the engine will be that one."""
    from perturb_mpm.engines import gpu

    if compute.engine == "gpu" or (compute.engine == "auto" and voxels >= gpu.WORTH_IT):
        gpu.load_ahead()


def _gpu_is_worth_it(crf: DenseCRF) -> bool:
    from perturb_mpm.engines import gpu

    return gpu.is_worth_it(crf.grid.voxels)
