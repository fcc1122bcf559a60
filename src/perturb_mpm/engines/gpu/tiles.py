"""Tiles of consecutive voxels and the lattice rows they touch, as small dense matrices.

Voxels that are close in the image touch the same vertices. A tile of T voxels and its rows make a
dense block that the tensor cores multiply (``tile_kernels.py``). A splat
is done in two stages: each tile sums up what its voxels bring to a row, as shares of the tile's own
mass there, and then every row sums up its tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from perturb_mpm.engines.gpu.chain import LatticeFilter
from perturb_mpm.engines.gpu.combine_kernel import Sparse
from perturb_mpm.engines.gpu.entry_kernels import (
    STEP,
    TILE,
    Entries,
    cut_lists,
    fill_entries,
    number_entries,
)


@dataclass(frozen=True)
class Tiles:
    """E entries of all tiles."""

    groups: int  # G
    vertices: torch.Tensor  # (E,) int32: the row of each entry; −1 fills up
    slices: torch.Tensor  # (E, T): shares of the voxel's row sum
    splats: torch.Tensor  # (E, T): shares of the tile's mass at the vertex
    starts: torch.Tensor  # (tiles·G + 1,) int32: where the entries of each tile and group start

    @property
    def count(self) -> int:
        """The number of tiles."""
        return (len(self.starts) - 1) // max(1, self.groups)

    @property
    def entries(self) -> int:
        """E, the number of entries."""
        return len(self.vertices)

    @property
    def nbytes(self) -> int:
        """The memory they take."""
        return self.splats.nbytes + sum(part.nbytes for part in self.slice_parts)

    @property
    def slice_parts(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """What a slice needs."""
        return self.vertices, self.slices, self.starts

    def owners(self) -> torch.Tensor:
        """Return the tile of each entry, (E,)."""
        sizes = self.starts[:: self.groups].diff().long()
        return torch.repeat_interleave(torch.arange(self.count, device=sizes.device), sizes)


def make_tiles(
    filters: Sequence[LatticeFilter],
    weights: Sequence[float],
    groups: Sequence[Sequence[int]],
    totals: torch.Tensor,
    starts: Sequence[int],
    dtype: torch.dtype,
) -> tuple[Tiles, list[tuple[Sparse, ...]]]:
    """Lay out the entries of all filters, and return each filter's outer splat beside them.

    ``groups`` lists the filters of each group, ``totals`` (G, tiles·T) are the groups' row sums,
    and ``starts`` says where the rows of each filter start among all rows.
    """
    count = totals.shape[1] // TILE
    corners = [number_entries(f.columns, f.vertices, count) for f in filters]
    nothing = torch.zeros(count, dtype=torch.int64, device=totals.device)
    sizes = torch.stack(
        [sum((corners[m].counts for m in members), start=nothing) for members in groups], 1
    )  # (tiles, G)
    first = torch.zeros(count * len(groups) + 1, dtype=torch.int64, device=totals.device)
    first[1:] = (-(-sizes // STEP) * STEP).reshape(-1).cumsum(0)
    total = int(first[-1])
    entries = Entries.room(total, dtype, totals.device)
    for g, members in enumerate(groups):
        begin, stop = (each[g :: len(groups)].contiguous() for each in (first[:-1], first[1:]))
        for m in members:
            end = stop if m == members[-1] else begin + corners[m].counts
            limits = (begin, end)
            fill_entries(entries, corners[m], filters[m], totals[g], weights[m], starts[m], limits)
            begin = end
    tiles = Tiles(len(groups), entries.vertices, entries.slices, entries.splats, first.int())
    return tiles, _outer(entries, filters)


def _outer(entries: Entries, filters: Sequence[LatticeFilter]) -> list[tuple[Sparse, ...]]:
    """Return the matrices from entries to each lattice's rows."""
    if not filters:
        return []
    vertex, order = torch.sort(entries.vertices, stable=True)
    mass = torch.cat([f.mass for f in filters])
    shares = (entries.mass[order] / mass[vertex]).nan_to_num_(posinf=0.0).float()
    rows = torch.arange(len(mass) + 1, dtype=torch.int32, device=mass.device)
    bounds = torch.searchsorted(vertex, rows)
    return cut_lists(bounds, [f.vertices for f in filters], order.int(), shares)


def rows_of(lattice_filter: LatticeFilter, outer: Sequence[Sparse]) -> int:
    """Return how many rows a filter takes, the pieces of long lists included."""
    return lattice_filter.vertices + (len(outer[1].columns) if len(outer) > 1 else 0)
