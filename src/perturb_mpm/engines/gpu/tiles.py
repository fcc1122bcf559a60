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

TILE = 64
STEP = 32
# A row's tiles are summed up in lists of this length at most, so that no list keeps others waiting.
PIECE = 32


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


@dataclass(frozen=True)
class _Corners:
    """The corners of all tiles on one lattice, in each tile ordered by their vertices."""

    vertices: torch.Tensor  # (tiles, T·p) int32; V where a tile has no voxel
    order: torch.Tensor  # (tiles, T·p) int64: which corner of the tile each is
    entry: torch.Tensor  # (tiles, T·p) int64: number of its vertex among the tile's
    counts: torch.Tensor  # (tiles,): how many vertices


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
    corners = [_corners(f.columns, f.vertices, count) for f in filters]
    first_counts = torch.zeros(count, dtype=torch.int64, device=totals.device)
    sizes = torch.stack(
        [sum((corners[m].counts for m in members), start=first_counts) for members in groups],
        1,
    )  # (tiles, G)
    sizes = -(-sizes // STEP) * STEP
    ends = sizes.reshape(-1).cumsum(0)
    first = torch.cat([ends.new_zeros(1), ends])
    total = int(ends[-1])
    device = totals.device
    # One entry more takes what the missing voxels of the last tile would write.
    vertices = torch.full((total + 1,), -1, dtype=torch.int32, device=device)
    slices = torch.zeros((total + 1, TILE), dtype=dtype, device=device)
    splats = torch.zeros((total + 1, TILE), dtype=torch.float32, device=device)
    for g, members in enumerate(groups):
        base = first[:-1].reshape(count, len(groups))[:, g]
        scale = _inverse(totals[g]).reshape(count, TILE)
        for m in members:
            f, c = filters[m], corners[m]
            p = f.columns.shape[1]
            at = torch.where(c.vertices < f.vertices, base[:, None] + c.entry, total)
            vertices[at.reshape(-1)] = (c.vertices + starts[m]).reshape(-1)
            place = (at * TILE + c.order // p).reshape(-1)
            sliced = _by_tile(f.slices, count) * (weights[m] * scale).repeat_interleave(p, 1)
            slices.view(-1)[place] = sliced.gather(1, c.order).reshape(-1).to(dtype)
            splats.view(-1)[place] = _by_tile(f.splats, count).gather(1, c.order).reshape(-1)
            base = base + c.counts
    vertices[total] = -1
    mass = splats.sum(1)  # (E + 1,): what a tile brings to the vertex
    splats = (splats * _inverse(mass)[:, None]).to(dtype)
    tiles = Tiles(len(groups), vertices[:total], slices[:total], splats[:total], first.int())
    outer = [_outer(tiles.vertices, mass[:total], f, start) for f, start in zip(filters, starts)]
    return tiles, outer


def _corners(columns: torch.Tensor, vertices: int, tiles: int) -> _Corners:
    n, p = columns.shape
    padded = columns.new_full((tiles * TILE, p), vertices)
    padded[:n] = columns
    ordered, order = torch.sort(padded.reshape(tiles, TILE * p), dim=1)
    new = torch.ones_like(ordered, dtype=torch.bool)
    new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    new &= ordered < vertices
    counts = new.sum(1)
    # Summed up over all tiles at once, which is far quicker than tile by tile.
    entry = new.reshape(-1).cumsum(0).reshape(new.shape) - 1 - (counts.cumsum(0) - counts)[:, None]
    return _Corners(ordered, order, entry, counts)


def _by_tile(values: torch.Tensor, tiles: int) -> torch.Tensor:
    """Return (N, p) values as (tiles, T·p), zero where there is no voxel."""
    n, p = values.shape
    padded = values.new_zeros((tiles * TILE, p))
    padded[:n] = values
    return padded.reshape(tiles, TILE * p)


def _inverse(values: torch.Tensor) -> torch.Tensor:
    return torch.where(values > 0, 1 / values, 0.0)


def _outer(
    vertices: torch.Tensor, mass: torch.Tensor, lattice_filter: LatticeFilter, start: int
) -> tuple[Sparse, ...]:
    """Return the matrices from entries to a lattice's rows, long lists in pieces.

    The pieces of a long list lie behind the rows of the lattice; a second matrix, which works in
    place, adds them up.
    """
    count = lattice_filter.vertices
    mine = torch.nonzero((vertices >= start) & (vertices < start + count))[:, 0]
    vertex, order = torch.sort(vertices[mine] - start, stable=True)
    entries = mine[order]
    vertex = vertex.long()
    lengths = torch.bincount(vertex, minlength=count)
    first = lengths.cumsum(0) - lengths  # (V,)
    share = (mass[entries] / lattice_filter.mass[vertex]).nan_to_num_(posinf=0.0).float()
    within = torch.arange(len(entries), device=vertices.device) - first[vertex]
    begins = torch.nonzero(within % PIECE == 0)[:, 0]  # (pieces,)
    owner = vertex[begins]
    long = lengths[owner] > PIECE
    extra = long.cumsum(0) - 1 + count
    pieces = Sparse(
        torch.where(long, extra, owner).int(),
        torch.cat([begins, begins.new_tensor([len(entries)])]).int(),
        entries.int(),
        share,
    )
    if not bool(long.any()):
        return (pieces,)
    several = torch.nonzero(lengths > PIECE)[:, 0]
    per_vertex = -(-lengths[several] // PIECE)
    pointers = torch.cat([per_vertex.new_zeros(1), per_vertex.cumsum(0)])
    behind = torch.arange(int(pointers[-1]), device=vertices.device) + count
    sums = Sparse(several.int(), pointers.int(), behind.int(), torch.ones_like(behind).float())
    return pieces, sums


def rows_of(lattice_filter: LatticeFilter, outer: Sequence[Sparse]) -> int:
    """Return how many rows a filter takes, the pieces of long lists included."""
    return lattice_filter.vertices + (len(outer[1].columns) if len(outer) > 1 else 0)
