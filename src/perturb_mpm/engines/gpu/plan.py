"""How many problems fit into the device's memory."""

from __future__ import annotations

from dataclasses import replace

import torch

from perturb_mpm.engines.gpu.layout import Layout
from perturb_mpm.engines.gpu.room import Needs, Pool
from perturb_mpm.engines.memory import require

DEFAULT_BATCH = 256
# What is left of the budget for arrays that come and go.
SHARE_OF_BUDGET = 0.9
REMEDY = "use a larger memory_budget, a tighter mask, or larger sigmas"


def bytes_for(layout: Layout, needs: Needs, item: int) -> int:
    """Return how much memory the problems of a layout take."""
    rows = 2 * layout.rows + needs.rows + needs.spare + needs.partials
    # Exact messages are made in two copies, from a copy of the marginals.
    exact = needs.exact_rows and layout.rows * (4 * needs.exact_rows + 4 + item)
    return layout.stride * (rows * item + exact) + layout.rows * layout.problems


def choose_batch(
    layout: Layout, needs: Needs, wanted: int | None, shared: int, item: int, budget: int
) -> int:
    """Return how many problems to solve at once, and raise MemoryError where not one fits.

    ``shared`` is the size in bytes of what all problems share, ``item`` that of a value in a row.
    """
    budget = int(SHARE_OF_BUDGET * budget)
    least = replace(layout, problems=1 if wanted is None else wanted)
    require(
        shared + bytes_for(least, needs, item),
        budget,
        f"batch {least.problems} of {layout.n_labels} labels on {layout.voxels} voxels and "
        f"{needs.rows} lattice rows",
        "use a smaller batch, " + REMEDY.removeprefix("use ") if least.problems > 1 else REMEDY,
    )
    if wanted is not None:
        return wanted
    fits = 1
    for problems in range(1, DEFAULT_BATCH + 1):
        if shared + bytes_for(replace(layout, problems=problems), needs, item) <= budget:
            fits = problems
    return fits


def take_pool(
    layout: Layout, needs: Needs, batch: int, dtype: torch.dtype, device: torch.device
) -> tuple[int, Pool]:
    """Take the memory of a batch, a smaller one where the device has less than it said."""
    while True:
        try:
            return batch, Pool(replace(layout, problems=batch), needs, dtype, device)
        except torch.OutOfMemoryError:
            if batch == 1:
                raise
            torch.cuda.empty_cache()
            batch = max(1, batch * 3 // 4)


def require_for_build(voxels: int, features: int, budget: int) -> None:
    """Raise MemoryError where a lattice of so many features could not even be built."""
    # Of each corner: its key and place twice while they are sorted, weights, shares and columns.
    needed = voxels * (16 * features + 64 * (features + 1))
    require(needed, budget, f"building a kernel of {features} features on {voxels} voxels", REMEDY)
