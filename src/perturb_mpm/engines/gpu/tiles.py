"""Tiles of consecutive voxels and the lattice rows they touch, as small dense matrices.

Voxels that are close in the image touch the same vertices. A tile of T voxels and its rows, its E
entries, make a dense block that the tensor cores multiply:

    partials[e] = Σ_t splats[e, t]·Q[t],    received[t] = Σ_e slices[e, t]·rows[vertices[e]]

A splat is done in two stages: each tile sums up what its voxels bring to a row, as shares of the
tile's own mass there, and then every row sums up its tiles.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from perturb_mpm.engines.gpu.chain import LatticeFilter, Sparse

if TYPE_CHECKING:
    from perturb_mpm.engines.gpu.memory import BatchLayout

TILE = 64
STEP = 32
# A row's tiles are summed up in lists of this length at most, so that no list keeps others waiting.
PIECE = 32
LANES = 128
NARROW = 16  # of one problem, and the fewest that tensor cores multiply
WARPS = 4


@dataclass(frozen=True)
class Corners:
    """The corners of all tiles on one lattice."""

    entry: torch.Tensor  # (tiles, T·p) int16: number of its vertex among the tile's, −1 for none
    counts: torch.Tensor  # (tiles,) int64: how many vertices


@dataclass(frozen=True)
class Entries:
    """Memory for E entries: what ``Tiles`` holds, and what each tile brings to its vertices."""

    vertices: torch.Tensor  # (E,) int32
    slices: torch.Tensor  # (E, T)
    splats: torch.Tensor  # (E, T)
    mass: torch.Tensor  # (E,) float32

    @classmethod
    def empty(cls, count: int, dtype: torch.dtype, device: torch.device) -> Entries:
        """Return memory for so many entries."""
        slices, splats = (torch.empty((count, TILE), dtype=dtype, device=device) for _ in range(2))
        vertices = torch.empty(count, dtype=torch.int32, device=device)
        return cls(vertices, slices, splats, torch.empty(count, device=device))


def number_entries(columns: torch.Tensor, vertices: int, tiles: int) -> Corners:
    """Give numbers to the vertices of each tile; ``columns`` (N, p) are those of all voxels."""
    n, p = columns.shape
    padded = columns.new_full((tiles * TILE, p), vertices)
    padded[:n] = columns
    ordered, order = torch.sort(padded.view(tiles, TILE * p), dim=1)
    real = ordered < vertices
    new = real.clone()
    new[:, 1:] &= ordered[:, 1:] != ordered[:, :-1]
    number = torch.where(real, new.cumsum(1, dtype=torch.int16) - 1, -1).short()
    entry = torch.empty_like(number).scatter_(1, order, number)
    return Corners(entry, new.sum(1))


@triton.jit
def _fill(
    entry, counts, columns, given_slices, given_splats, totals, begins, ends, vertices, slices,
    splats, masses, weight, first_row, voxels,
    P: tl.constexpr, TILE: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0).to(tl.int64)
    begin, end = tl.load(begins + tile), tl.load(ends + tile)
    voxel = tile * TILE + tl.arange(0, TILE)
    real = voxel < voxels
    total = tl.load(totals + voxel)
    scale = weight * tl.where(total > 0, 1.0 / tl.where(total > 0, total, 1.0), 0.0)
    for j in range(P):
        at = voxel * P + j
        number = tl.load(entry + at)
        row = tl.load(columns + at, mask=real, other=0) + first_row
        tl.store(vertices + begin + number, row, mask=number >= 0)
    count = tl.load(counts + tile)
    for start in range(0, (end - begin).to(tl.int32), STEP):
        number = start + tl.arange(0, STEP)
        sliced = tl.zeros((STEP, TILE), tl.float32)
        sent = tl.zeros((STEP, TILE), tl.float32)
        for j in range(P):
            at = voxel * P + j
            hit = tl.load(entry + at)[None, :] == number[:, None]
            share = tl.load(given_slices + at, mask=real, other=0.0) * scale
            sliced += tl.where(hit, share[None, :], 0.0)
            brought = tl.load(given_splats + at, mask=real, other=0.0)
            sent += tl.where(hit, brought[None, :], 0.0)
        mass = tl.sum(sent, axis=1)
        inverse = tl.where(mass > 0, 1.0 / tl.where(mass > 0, mass, 1.0), 0.0)
        position = begin + number
        inside = position < end
        nothing = tl.full((STEP,), -1, tl.int32)
        tl.store(vertices + position, nothing, mask=inside & (number >= count))
        tl.store(masses + position, mass, mask=inside)
        dense = position[:, None] * TILE + tl.arange(0, TILE)[None, :]
        tl.store(slices + dense, sliced.to(slices.dtype.element_ty), mask=inside[:, None])
        sent = (sent * inverse[:, None]).to(splats.dtype.element_ty)
        tl.store(splats + dense, sent, mask=inside[:, None])


def fill_entries(
    entries: Entries,
    corners: Corners,
    lattice_filter: LatticeFilter,
    totals: torch.Tensor,
    weight: float,
    first_row: int,
    limits: tuple[torch.Tensor, torch.Tensor],
) -> None:
    """Fill the entries of a filter, which begin and end in each tile where ``limits`` say.

    ``totals`` (tiles·T,) are the row sums of its group. Entries beyond its own are empty.
    """
    n, p = lattice_filter.columns.shape
    _fill[(len(corners.counts),)](
        corners.entry, corners.counts, lattice_filter.columns, lattice_filter.slices,
        lattice_filter.splats, totals, *limits, entries.vertices, entries.slices, entries.splats,
        entries.mass, weight, first_row, n,
        P=p, TILE=TILE, STEP=STEP, num_warps=4,
    )  # fmt: skip


def cut_lists(
    bounds: torch.Tensor, sizes: Sequence[int], columns: torch.Tensor, shares: torch.Tensor
) -> list[tuple[Sparse, ...]]:
    """Return a matrix of the lists of each lattice, long lists in pieces.

    The lists of all rows lie between the ``bounds`` (all rows + 1,) of columns and shares; the
    lattices have ``sizes`` rows. The pieces of a long list become rows behind those of its lattice,
    and a second matrix, which works in place, adds them up.
    """
    matrices: list[tuple[Sparse, ...]] = []
    for size, first in zip(sizes, itertools.accumulate(sizes, initial=0)):
        begin, end = bounds[first : first + size], bounds[first + 1 : first + size + 1]
        pieces = -(-(end - begin) // PIECE)  # (rows,)
        row = torch.repeat_interleave(pieces)  # (all pieces,)
        within = torch.arange(len(row), device=row.device) - (pieces.cumsum(0) - pieces)[row]
        starts = begin[row] + PIECE * within
        stops = torch.minimum(starts + PIECE, end[row])
        long = pieces > 1
        behind = size + torch.arange(int(pieces[long].sum()), device=row.device)
        targets = row.clone()
        targets[long[row]] = behind
        cut = [Sparse(targets.int(), starts.int(), stops.int(), columns, shares)]
        if len(behind):
            ends = pieces[long].cumsum(0)
            whole, first_piece = torch.nonzero(long)[:, 0].int(), (ends - pieces[long]).int()
            ones = torch.ones(len(behind), device=row.device)
            cut.append(Sparse(whole, first_piece, ends.int(), behind.int(), ones))
        matrices.append(tuple(cut))
    return matrices


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
    entries = Entries.empty(total, dtype, totals.device)
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


def count_rows(lattice_filter: LatticeFilter, outer: Sequence[Sparse]) -> int:
    """Return how many rows a filter takes, the pieces of long lists included."""
    return lattice_filter.vertices + (len(outer[1].columns) if len(outer) > 1 else 0)


@triton.jit
def slice_tile(
    vertices, slices, rows, first, stop, lanes, inside, stride,
    TILE: tl.constexpr, STEP: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Return Σ_e slices[e, t]·rows[vertices[e]] of a tile, (T, lanes)."""
    total = tl.zeros((TILE, LANES), tl.float32)
    voxel = tl.arange(0, TILE)
    for start in range(first, stop, STEP):
        entry = start + tl.arange(0, STEP)
        vertex = tl.load(vertices + entry)
        weight = tl.load(slices + entry.to(tl.int64)[None, :] * TILE + voxel[:, None])
        values = tl.load(
            rows + vertex.to(tl.int64)[:, None] * stride + lanes[None, :],
            mask=(vertex >= 0)[:, None] & inside[None, :],
            other=0.0,
        )
        total = tl.dot(weight, values, total, input_precision="ieee")
    return total


@triton.jit
def _splat(
    marginals, vertices, splats, starts, partials, groups, blocks, stride, width,
    TILE: tl.constexpr, STEP: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    tile, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    lanes = block * LANES + tl.arange(0, LANES)
    inside = lanes < width
    voxel = (tile * TILE + tl.arange(0, TILE)).to(tl.int64)
    values = tl.load(
        marginals + voxel[:, None] * stride + lanes[None, :], mask=inside[None, :], other=0.0
    )
    first, stop = tl.load(starts + tile * groups), tl.load(starts + (tile + 1) * groups)
    for start in range(first, stop, STEP):
        entry = start + tl.arange(0, STEP)
        real = tl.load(vertices + entry) >= 0
        share = tl.load(splats + entry.to(tl.int64)[:, None] * TILE + tl.arange(0, TILE)[None, :])
        total = tl.dot(share, values, input_precision="ieee")
        tl.store(
            partials + entry.to(tl.int64)[:, None] * stride + lanes[None, :],
            total.to(partials.dtype.element_ty),
            mask=real[:, None] & inside[None, :],
        )


def splat(tiles: Tiles, marginals: torch.Tensor, partials: torch.Tensor, width: int) -> None:
    """Write what every tile sends to each of its entries, (E, stride)."""
    lanes = LANES if width > NARROW else NARROW
    blocks = triton.cdiv(width, lanes)
    if tiles.entries:
        _splat[(tiles.count * blocks,)](
            marginals, tiles.vertices, tiles.splats, tiles.starts, partials, tiles.groups, blocks,
            marginals.stride(0), width,
            TILE=TILE, STEP=STEP, LANES=lanes, num_warps=WARPS,
        )  # fmt: skip


@triton.jit
def _slice(
    rows, vertices, slices, starts, messages, group, groups, blocks, first_lane, stride, width,
    out_stride,
    TILE: tl.constexpr, STEP: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    tile, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    out_lanes = block * LANES + tl.arange(0, LANES)
    inside = out_lanes < width
    lanes = first_lane + out_lanes
    first = tl.load(starts + tile * groups + group)
    stop = tl.load(starts + tile * groups + group + 1)
    total = slice_tile(
        vertices, slices, rows, first, stop, lanes, inside, stride, TILE, STEP, LANES
    )
    voxel = (tile * TILE + tl.arange(0, TILE)).to(tl.int64)
    position = voxel[:, None] * out_stride + out_lanes[None, :]
    tl.store(messages + position, total, mask=inside[None, :])


def slice_group(
    tiles: Tiles, rows: torch.Tensor, group: int, layout: BatchLayout, first: int, width: int
) -> torch.Tensor:
    """Return the group's weighted means at every voxel, (tiles·T, width), of channels from first.

    They are to be multiplied by the voxel's row sum.
    """
    messages = torch.empty((layout.rows, width), dtype=torch.float32, device=rows.device)
    lanes = layout.lanes if width > NARROW else NARROW
    blocks = triton.cdiv(width, lanes)
    _slice[(layout.tiles * blocks,)](
        rows, tiles.vertices, tiles.slices, tiles.starts, messages, group, tiles.groups, blocks,
        first, rows.stride(0), width, messages.stride(0),
        TILE=TILE, STEP=STEP, LANES=lanes, num_warps=4,
    )  # fmt: skip
    return messages
