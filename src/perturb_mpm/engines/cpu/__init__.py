"""The CPU engine (Numba)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from perturb_mpm.engines.cpu.chain import factorize, row_sums, transpose
from perturb_mpm.engines.cpu.compile import cache_folder, kernel, start_compiling
from perturb_mpm.engines.cpu.lattice import build
from perturb_mpm.engines.cpu.layout import Taps
from perturb_mpm.engines.cpu.preparation import calibrated_gain, calibrated_scale
from perturb_mpm.engines.cpu.row_kernels import combine
from perturb_mpm.engines.cpu.threads import Threads

if TYPE_CHECKING:
    from perturb_mpm.engines import Accuracy
    from perturb_mpm.engines.cpu.solver import CpuSolver
    from perturb_mpm.model import DenseCRF


def prepare(
    crf: DenseCRF,
    accuracy: Accuracy,
    batch: int | None,
    threads: int | None,
    budget: int,
    *,
    compact: bool,
    kernel_cache: str | Path | None = None,
) -> CpuSolver:
    """Build the filters of ``crf``, after checking that they fit into ``budget`` bytes.

    Those that the folder ``kernel_cache`` has are read, others are written there.
    """
    from perturb_mpm.engines.cpu.solver import CpuSolver
    from perturb_mpm.engines.cpu.store import store_in

    store = store_in(kernel_cache, crf.grid.voxels)
    return CpuSolver(crf, accuracy, batch, threads, budget, compact=compact, store=store)


__all__ = [
    "build",
    "cache_folder",
    "calibrated_gain",
    "calibrated_scale",
    "combine",
    "factorize",
    "kernel",
    "prepare",
    "row_sums",
    "start_compiling",
    "Taps",
    "Threads",
    "transpose",
]
