"""The permutohedral lattice of one kernel, built on the device by sorting keys.

(N, d) feature vectors become the vertices of their simplices, (N, d + 1), and the vertices become
neighbours. Both are those of the CPU engine: the same keys (``engines/lattice``), the same
arithmetic in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from perturb_mpm.engines.gpu.device import is_interpreted, on_device
from perturb_mpm.engines.lattice import Blur, KeyCode, key_code

ELEMENTS = 2**14 if is_interpreted() else 2**9
NO_KEY = 2**63 - 1
WHOLE = tl.constexpr(2.0**23)  # from here on every float32 is whole


@triton.jit
def _nearest(x):
    """Round to the nearest whole number, halves to even."""
    near = tl.where(x >= 0, (x + WHOLE) - WHOLE, (x - WHOLE) + WHOLE)
    return tl.where(tl.abs(x) < WHOLE, near, x)


@triton.jit(do_not_specialize=["copy_stride", "per_copy", "d"])
def _embed(
    features, scales, steps, keys, weights, count, per_copy, copy_stride, d, size, inverse,
    ROWS: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    real = row < count
    source, copy = row % per_copy, row // per_copy
    lane = tl.arange(0, LANES)[None, :]
    elevated = tl.zeros((ROWS, LANES), tl.float32)
    tail = tl.zeros((ROWS,), tl.float32)
    for i in range(d):
        j = d - i
        scale = tl.load(scales + copy * d + j - 1, mask=real, other=0.0)
        term = tl.load(features + source * d + j - 1, mask=real, other=0.0) * scale
        elevated = tl.where(lane == j, (tail - term * j.to(tl.float32))[:, None], elevated)
        tail += term
    elevated = tl.where(lane == 0, tail[:, None], elevated)
    cell = _nearest(elevated * inverse)
    rest = elevated - cell * size
    rank = tl.zeros((ROWS, LANES), tl.int32)
    for k in range(d + 1):
        other = tl.sum(tl.where(lane == k, rest, 0.0), axis=1)[:, None]
        rank += ((other > rest) | ((other == rest) & (lane > k))).to(tl.int32)
    rank += tl.sum(cell, axis=1).to(tl.int32)[:, None]
    turn = (rank < 0).to(tl.int32) - (rank > d).to(tl.int32)
    turn = tl.where(lane <= d, turn, 0)
    rank += turn * (d + 1)
    cell += turn.to(tl.float32)
    share = (elevated - cell * size) * inverse
    rank = tl.where(lane <= d, rank, -1)
    whole = cell.to(tl.int64)
    last = tl.sum(tl.where(lane == d, whole, 0), axis=1)
    along = tl.load(steps + lane, mask=lane <= d, other=0)
    key = tl.sum(tl.where(lane < d, (last[:, None] - whole) * along, 0), axis=1)
    key += copy * copy_stride
    top = tl.sum(tl.where(rank == 0, share, 0.0), axis=1)
    before = tl.zeros((ROWS,), tl.float32)
    for r in range(d + 1):
        holder = rank == d - r
        here = tl.sum(tl.where(holder, share, 0.0), axis=1)
        weight = tl.where(r == 0, here + (1.0 - top), here - before)
        position = row * (d + 1) + r
        tl.store(keys + position, key, mask=real)
        tl.store(weights + position, tl.maximum(weight, 0.0), mask=real)
        key += tl.sum(tl.where(holder, along, 0), axis=1)
        before = here


def embed(
    features: torch.Tensor, scales: torch.Tensor, directions: torch.Tensor, copy_stride: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Find the simplex around each feature vector: keys (S·N, d+1) of its vertices, and weights.

    ``features`` (N, d) stand on S copies of the lattice, each with its ``scales`` (S, d), and the
    keys of one copy are a stride apart from those of the last.
    Everything is in float32, in the order of the published algorithm, so that ties fall the same
    way and the vertices are the same.
    """
    n, d = features.shape
    count = n * len(scales)
    device = features.device
    keys = torch.empty((count, d + 1), dtype=torch.int64, device=device)
    weights = torch.empty((count, d + 1), dtype=torch.float32, device=device)
    lanes = triton.next_power_of_2(d + 1)
    rows = max(1, ELEMENTS // lanes)
    _embed[(triton.cdiv(count, rows),)](
        features.contiguous(), scales, directions, keys, weights, count, n, copy_stride, d,
        float(d + 1), float(np.float32(1) / np.float32(d + 1)),
        ROWS=rows, LANES=lanes, num_warps=4,
        enable_fp_fusion=False,  # the published algorithm rounds every product
    )  # fmt: skip
    return keys, weights


@triton.jit
def _find(vertices, count, keys, rounds):
    """Return where each key is among sorted vertices, and whether it is there at all."""
    position = tl.zeros_like(keys)  # so many vertices are known to lie below the key
    for k in range(rounds):
        next_position = position + (tl.full((), 1, tl.int64) << (rounds - 1 - k))
        near = next_position <= count
        vertex = tl.load(vertices + next_position - 1, mask=near, other=0)
        position = tl.where(near & (vertex < keys), next_position, position)
    vertex = tl.load(vertices + position, mask=position < count, other=-1)
    return position, (position < count) & (vertex == keys)


@triton.jit(do_not_specialize=["count", "rounds"])
def _missing(vertices, steps, wanted, count, rounds, ELEMENTS: tl.constexpr, NO_KEY: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ELEMENTS + tl.arange(0, ELEMENTS)
    real = row < count
    tap = tl.program_id(1)
    keys = tl.load(vertices + row, mask=real, other=0) + tl.load(steps + tap)
    _, there = _find(vertices, count, keys, rounds)
    tl.store(wanted + tap.to(tl.int64) * count + row, tl.where(there, NO_KEY, keys), mask=real)


@triton.jit(do_not_specialize=["count", "rounds", "taps"])
def _look_up(
    vertices, positions, steps, found, count, taps, rounds, ELEMENTS: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ELEMENTS + tl.arange(0, ELEMENTS)
    real = row < count
    tap = tl.program_id(1)
    keys = tl.load(vertices + row, mask=real, other=0) + tl.load(steps + tap)
    index, there = _find(vertices, count, keys, rounds)
    neighbour = tl.load(positions + index, mask=real & there, other=-1)
    own = tl.load(positions + row, mask=real, other=0)
    tl.store(found + own * taps + tap, neighbour.to(tl.int32), mask=real)


def missing_neighbours(vertices: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
    """Return the keys at these steps from sorted vertices, NO_KEY where a vertex is, (steps·V,)."""
    wanted = vertices.new_empty((len(steps), len(vertices)))
    _missing[(triton.cdiv(len(vertices), ELEMENTS), len(steps))](
        vertices, steps, wanted, len(vertices), len(vertices).bit_length(),
        ELEMENTS=ELEMENTS, NO_KEY=NO_KEY, num_warps=4,
    )  # fmt: skip
    return wanted.view(-1)


def look_up(vertices: torch.Tensor, position: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
    """Return the positions of the vertices at the given key steps, −1 if absent, (V, steps).

    ``vertices`` (V,) are sorted keys, ``position`` (V,) says which row each of them is.
    """
    found = torch.empty((len(vertices), len(steps)), dtype=torch.int32, device=position.device)
    _look_up[(triton.cdiv(len(vertices), ELEMENTS), len(steps))](
        vertices, position, steps, found, len(vertices), len(steps), len(vertices).bit_length(),
        ELEMENTS=ELEMENTS, num_warps=4,
    )  # fmt: skip
    return found


@dataclass(frozen=True)
class Lattice:
    """M feature vectors on a lattice of V vertices, which lie along a Morton curve, or by key."""

    blur: Blur
    columns: torch.Tensor  # (M, d+1) int32: the vertices of each vector's simplex
    weights: torch.Tensor  # (M, d+1) float32: its barycentric coordinates
    corners: torch.Tensor  # (M·(d+1),) int64: all corners, those of a vertex side by side
    touched: torch.Tensor  # (U,) int64: the vertices with corners, in the order of ``corners``
    pointers: torch.Tensor  # (U + 1,) int64: where the corners of each begin
    vertices: int  # V
    passes: tuple[torch.Tensor, ...]  # (V, taps) int32 each: the vertices at the taps, -1 if absent
    pass_weights: tuple[torch.Tensor, ...]  # (taps,) float64 each

    @property
    def dimensions(self) -> int:
        """d, the number of features."""
        return int(self.columns.shape[1]) - 1


def build(features: torch.Tensor, blur: Blur, scales: Sequence[float] | None = None) -> Lattice:
    """Build the lattice of (N, d) float32 features in units of sigma.

    With S ``scales``, which then stand for the blur's own, it holds S copies of all vectors, one
    after the other, each on a lattice of its own.
    """
    d = features.shape[1]
    blurs = [blur] if scales is None else [replace(blur, scale=scale) for scale in scales]
    table = np.stack([b.feature_scales(d) for b in blurs])  # (S, d)
    low, high = torch.stack(torch.aminmax(features, dim=0)).double().cpu().numpy()
    code = key_code(low, high, table)
    tables = _Tables.of(table, blur, code, features.device)
    stride = code.copy_stride if len(blurs) > 1 else 0
    keys, weights = embed(features, tables.scales, tables.neighbours[: d + 1], stride)
    # A curve through several lattices is not worth its sorting: they are used only once.
    return _connect(keys, weights, blur, code, tables, along_curve=scales is None)


@dataclass(frozen=True)
class _Tables:
    """What small arrays the device needs of a lattice, sent in two copies."""

    scales: torch.Tensor  # (S, d) float32
    neighbours: torch.Tensor  # (2(d + 1),) int64: the key steps to all neighbours
    steps: tuple[torch.Tensor, ...]  # (taps,) int64 a pass
    weights: tuple[torch.Tensor, ...]  # (taps,) float64 a pass

    @classmethod
    def of(
        cls, scales: NDArray[np.float32], blur: Blur, code: KeyCode, device: torch.device
    ) -> _Tables:
        directions = code.directions
        steps, weights = zip(*blur.passes(directions), strict=True)
        sizes = [len(each) for each in steps]
        keys = on_device(np.concatenate([directions, -directions, *steps]), device)
        values = on_device(np.concatenate([scales.reshape(-1), *weights]), device)
        neighbours, *steps_there = keys.split([2 * len(directions), *sizes])
        scales_there, *weights_there = values.split([scales.size, *sizes])
        return cls(
            scales_there.float().view(scales.shape),
            neighbours,
            tuple(steps_there),
            tuple(weights_there),
        )


def _connect(
    keys: torch.Tensor,
    weights: torch.Tensor,
    blur: Blur,
    code: KeyCode,
    tables: _Tables,
    *,
    along_curve: bool,
) -> Lattice:
    """Lay the vertices of (M, d+1) keys along a Morton curve and find their neighbours."""
    d = keys.shape[1] - 1
    ordered, corners = torch.sort(keys.reshape(-1), stable=True)
    first = torch.ones_like(ordered, dtype=torch.bool)
    torch.ne(ordered[1:], ordered[:-1], out=first[1:])
    starts = torch.nonzero(first)[:, 0]
    touched = ordered[starts]
    touched_positions = torch.arange(len(touched), device=keys.device)
    vertices = touched
    if blur.dilation:
        added = _dilation(touched, tables.neighbours, blur.fewest_neighbours(d))
        vertices, touched_positions = _merge(touched, added)
    position = torch.arange(len(vertices), device=keys.device)  # of each vertex by key
    if code.sizes is not None and along_curve:
        curve = torch.argsort(code.curve(vertices), stable=True)
        position = torch.empty_like(curve).scatter_(0, curve, position)
        touched_positions = position[touched_positions]
    columns = torch.empty(len(corners), dtype=torch.int32, device=keys.device)
    columns[corners] = touched_positions.int()[first.cumsum(0, dtype=torch.int32) - 1]
    return Lattice(
        blur=blur,
        columns=columns.view(keys.shape),
        weights=weights,
        corners=corners,
        touched=touched_positions,
        pointers=torch.cat([starts, starts.new_full((1,), len(ordered))]),
        vertices=len(vertices),
        passes=tuple(look_up(vertices, position, steps) for steps in tables.steps),
        pass_weights=tables.weights,
    )


def _merge(one: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Merge sorted keys, none of which is in both; return where those of the first are, too."""
    positions = torch.arange(len(one), device=one.device) + torch.searchsorted(other, one)
    rest = torch.arange(len(other), device=one.device) + torch.searchsorted(one, other)
    every = one.new_empty(len(one) + len(other))
    every[positions], every[rest] = one, other
    return every, positions


def _dilation(vertices: torch.Tensor, steps: torch.Tensor, least: int) -> torch.Tensor:
    """Return the keys of missing vertices that have at least so many neighbours."""
    wanted = torch.sort(missing_neighbours(vertices, steps))[0]
    # Equal keys lie side by side: a run is long enough where the key so many steps on is the same.
    key = wanted[: len(wanted) - least + 1]
    enough = (key == wanted[least - 1 :]) & (key != NO_KEY)
    enough[1:] &= key[1:] != key[:-1]
    return key[enough]
