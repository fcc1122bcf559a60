"""Tiles of consecutive voxels and the lattice rows they touch, as small dense matrices.

Voxels that are close in the image touch the same vertices. A tile of T voxels and its rows, its
entries, make a dense block that the tensor cores multiply (``tile_kernels.py``). A splat is done in
two stages: each tile sums up what its voxels bring to a row, as shares of the tile's own mass
there, and then every row sums up its tiles.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from perturb_mpm.engines.gpu.chain import LatticeFilter
from perturb_mpm.engines.gpu.combine_kernel import Sparse
from perturb_mpm.engines.gpu.device import is_interpreted

TILE = 64
STEP = 32
# A row's tiles are summed up in lists of this length at most, so that no list keeps others waiting.
PIECE = 32
BLOCK = 2**14 if is_interpreted() else 2**7


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


@triton.jit
def _number(ordered, order, entry, counts, vertices, CORNERS: tl.constexpr, BLOCK: tl.constexpr):
    tile = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    here = tile * CORNERS + at
    inside = at < CORNERS
    vertex = tl.load(ordered + here, mask=inside, other=vertices)
    before = tl.load(ordered + here - 1, mask=inside & (at > 0), other=-1)
    new = ((vertex != before) & (vertex < vertices)).to(tl.int32)
    number = tl.where(vertex < vertices, tl.cumsum(new, axis=0) - 1, -1)
    corner = tl.load(order + here, mask=inside, other=0)
    tl.store(entry + tile * CORNERS + corner, number.to(tl.int16), mask=inside)
    tl.store(counts + tile, tl.sum(new, axis=0).to(tl.int64))


def number_entries(columns: torch.Tensor, vertices: int, tiles: int) -> Corners:
    """Give numbers to the vertices of each tile; ``columns`` (N, p) are those of all voxels."""
    n, p = columns.shape
    padded = columns.new_full((tiles * TILE, p), vertices)
    padded[:n] = columns
    ordered, order = torch.sort(padded.view(tiles, TILE * p), dim=1)
    entry = torch.empty((tiles, TILE * p), dtype=torch.int16, device=columns.device)
    counts = torch.empty(tiles, dtype=torch.int64, device=columns.device)
    _number[(tiles,)](
        ordered,
        order,
        entry,
        counts,
        vertices,
        CORNERS=TILE * p,
        BLOCK=triton.next_power_of_2(TILE * p),
        num_warps=4,
    )
    return Corners(entry, counts)


@triton.jit
def _fill(
    entry,
    counts,
    columns,
    given_slices,
    given_splats,
    totals,
    begins,
    ends,
    vertices,
    slices,
    splats,
    masses,
    weight,
    first_row,
    voxels,
    P: tl.constexpr,
    TILE: tl.constexpr,
    STEP: tl.constexpr,
):
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
        corners.entry,
        corners.counts,
        lattice_filter.columns,
        lattice_filter.slices,
        lattice_filter.splats,
        totals,
        *limits,
        entries.vertices,
        entries.slices,
        entries.splats,
        entries.mass,
        weight,
        first_row,
        n,
        P=p,
        TILE=TILE,
        STEP=STEP,
        num_warps=4,
    )


@triton.jit(do_not_specialize=["first_row", "rows_before", "extra_before", "long_before"])
def _pieces(
    bounds, sums, targets, starts, stops, long_targets, long_starts, long_stops,
    every, count, first_row, rows_before, extra_before, long_before,
    PIECE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    vertex = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = vertex < count
    at = first_row + vertex
    begin = tl.load(bounds + at, mask=real, other=0)
    end = tl.load(bounds + at + 1, mask=real, other=0)
    pieces = (end - begin + PIECE - 1) // PIECE
    long = pieces > 1
    row = tl.load(sums + at, mask=real, other=0) - rows_before - pieces
    extra = tl.load(sums + every + at, mask=long, other=0) - extra_before - pieces
    for k in range(tl.max(pieces, axis=0).to(tl.int32)):
        one = k < pieces
        start = begin + k * PIECE
        target = tl.where(long, count + extra + k, vertex)
        tl.store(targets + row + k, target.to(tl.int32), mask=one)
        tl.store(starts + row + k, start.to(tl.int32), mask=one)
        tl.store(stops + row + k, tl.minimum(start + PIECE, end).to(tl.int32), mask=one)
    number = tl.load(sums + 2 * every + at, mask=long, other=1) - long_before - 1
    tl.store(long_targets + number, vertex, mask=long)
    tl.store(long_starts + number, extra.to(tl.int32), mask=long)
    tl.store(long_stops + number, (extra + pieces).to(tl.int32), mask=long)


def cut_lists(
    bounds: torch.Tensor, sizes: Sequence[int], columns: torch.Tensor, shares: torch.Tensor
) -> list[tuple[Sparse, ...]]:
    """Return a matrix of the lists of each lattice, long lists in pieces.

    The lists of all rows lie between the ``bounds`` (all rows + 1,) of columns and shares; the
    lattices have ``sizes`` rows. The pieces of a long list become rows behind those of its lattice,
    and a second matrix, which works in place, adds them up.
    """
    device = bounds.device
    pieces = -(-bounds.diff() // PIECE)  # (all rows,)
    long = pieces > 1
    counted = (pieces, torch.where(long, pieces, 0), long)
    # One by one: along the rows of a matrix each sum keeps a single multiprocessor busy.
    sums = torch.stack([each.cumsum(0) for each in counted])  # (3, all rows)
    ends = list(itertools.accumulate(sizes))
    # A slice, for where there is not one row yet: its sum is then 0.
    at_ends = torch.stack([sums[:, max(0, end - 1) : end].sum(1) for end in ends]).tolist()
    totals = [(0, 0, 0), *(tuple(each) for each in at_ends)]
    matrices: list[tuple[Sparse, ...]] = []
    for f, size in enumerate(sizes):
        rows, extra, several = (b - a for a, b in zip(totals[f], totals[f + 1], strict=True))
        lists = torch.empty((3, rows), dtype=torch.int32, device=device)
        long_lists = torch.empty((3, several), dtype=torch.int32, device=device)
        _pieces[(triton.cdiv(size, BLOCK),)](
            bounds,
            sums,
            *lists,
            *long_lists,
            len(pieces),
            size,
            ends[f] - size,
            *totals[f],
            PIECE=PIECE,
            BLOCK=BLOCK,
            num_warps=4,
        )
        cut = _sparse_from_lists(lists, columns, shares)
        behind = torch.arange(extra, dtype=torch.int32, device=device) + size
        ones = torch.ones(extra, device=device)
        matrices.append((cut, _sparse_from_lists(long_lists, behind, ones)) if extra else (cut,))
    return matrices


def _sparse_from_lists(
    lists: torch.Tensor, columns: torch.Tensor, coefficients: torch.Tensor
) -> Sparse:
    """Return a matrix from targets, starts and stops, (3, R)."""
    targets, starts, stops = lists
    return Sparse(targets, starts, stops, columns, coefficients)


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
