"""The GPU engine (PyTorch and Triton)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perturb_mpm.engines.gpu.device import (
    WORTH_IT,
    choose_device,
    free_bytes,
    is_worth_it,
    load_ahead,
    says_when_full,
)

if TYPE_CHECKING:
    from perturb_mpm.engines import Accuracy
    from perturb_mpm.engines.gpu.solver import GpuSolver
    from perturb_mpm.model import DenseCRF

__all__ = ["is_worth_it", "load_ahead", "prepare", "WORTH_IT"]


@says_when_full
def prepare(
    crf: DenseCRF, accuracy: Accuracy, batch: int | None, budget: int | None, *, compact: bool
) -> GpuSolver:
    """Build the filters of ``crf``; ``budget`` is in bytes, None means 80 % of what is free."""
    device = choose_device()
    from perturb_mpm.engines.gpu.solver import GpuSolver

    allowed = free_bytes(device) if budget is None else budget
    return GpuSolver(crf, accuracy, batch, allowed, device, compact=compact)
