"""The CPU engine (Numba)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perturb_mpm.engines.cpu.solver import CpuSolver
    from perturb_mpm.engines.protocol import Accuracy
    from perturb_mpm.model.crf import DenseCRF


def prepare(
    crf: DenseCRF,
    accuracy: Accuracy,
    batch: int | None,
    threads: int | None,
    budget: int,
    *,
    compact: bool,
) -> CpuSolver:
    """Build the filters of ``crf``, after checking that they fit into ``budget`` bytes."""
    from perturb_mpm.engines.cpu.solver import CpuSolver

    return CpuSolver(crf, accuracy, batch, threads, budget, compact=compact)
