"""The entries of tiles: which vertices a tile touches, and their dense matrices.

``tiles.py`` says what they are for.
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
from perturb_mpm.engines.gpu.device import interpreted

TILE = 64
STEP = 32
# A row's tiles are summed up in lists of this length at most, so that no list keeps others waiting.
PIECE = 32
BLOCK = 2**14 if interpreted() else 2**7


@dataclass(frozen=True)
class Corners:
    """The corners of all tiles on one lattice."""

    entry: torch.Tensor  # (tiles, T·p) int16: number of its vertex among the tile's, −1 for none
    counts: torch.Tensor  # (tiles,) int64: how many vertices


@dataclass(frozen=True)
class Entries:
    """Room for E entries: what ``Tiles`` holds, and what each tile brings to its vertices."""

    vertices: torch.Tensor  # (E,) int32
    slices: torch.Tensor  # (E, T)
    splats: torch.Tensor  # (E, T)
    mass: torch.Tensor  # (E,) float32

    @classmethod
    def room(cls, count: int, dtype: torch.dtype, device: torch.device) -> Entries:
        """Return room for so many entries."""
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
        place = begin + number
        inside = place < end
        nothing = tl.full((STEP,), -1, tl.int32)
        tl.store(vertices + place, nothing, mask=inside & (number >= count))
        tl.store(masses + place, mass, mask=inside)
        dense = place[:, None] * TILE + tl.arange(0, TILE)[None, :]
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
        cut = _of_lists(lists, columns, shares)
        behind = torch.arange(extra, dtype=torch.int32, device=device) + size
        ones = torch.ones(extra, device=device)
        matrices.append((cut, _of_lists(long_lists, behind, ones)) if extra else (cut,))
    return matrices


def _of_lists(lists: torch.Tensor, columns: torch.Tensor, coefficients: torch.Tensor) -> Sparse:
    """Return a matrix from targets, starts and stops, (3, R)."""
    targets, starts, stops = lists
    return Sparse(targets, starts, stops, columns, coefficients)
