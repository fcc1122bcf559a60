"""Exact filters: all pairs of voxels, and for kernels of space alone axis by axis.

    (KV)_i = Σ_j exp(−|f_i − f_j|²/2)·V_j,    f (N, d), V (N, C)

A pair's exponent is one product of wider features, f_i·f_j − |f_i|²/2 − |f_j|²/2, so that all of
it runs on the tensor cores. Positions alone are a product over axes, K = K_x ⊗ K_y ⊗ K_z: one
matrix along each axis of the box around the mask.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import torch
import triton
import triton.language as tl

from perturb_mpm.engines.gpu.chain import normalizers
from perturb_mpm.model import Grid, Normalization

QUERIES = 128
SOURCES = 64
LANES = 256
SINGLE_LANES = 64
NARROW_LANES = 16
ROOMY = 160_000  # bytes of shared memory
SEGMENT = 1024  # tiles of sources
WARPS = 8
STAGES = 3
LARGEST_HALF = 3e4
LOG2E = 1.4426950408889634
CHANNELS = 32  # filtered along the axes at once: always as many, so that results never differ


@triton.jit(do_not_specialize=["first_tile", "stop_tile"])
def _all_pairs(
    queries, sources, values, out, count, first_tile, stop_tile, stride, first_lane, width,
    out_stride,
    QUERIES: tl.constexpr, SOURCES: tl.constexpr, LANES: tl.constexpr, FEATURES: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    lanes = first_lane + tl.program_id(1) * LANES + tl.arange(0, LANES)
    inside = lanes < width
    feature = tl.arange(0, FEATURES)
    here = tl.load(queries + row[:, None] * FEATURES + feature[None, :])
    total = tl.zeros((QUERIES, LANES), tl.float32)
    for tile in range(first_tile, stop_tile):
        source = tile * SOURCES + tl.arange(0, SOURCES)
        there = tl.load(sources + source[None, :] * FEATURES + feature[:, None])
        exponent = tl.dot(here, there, input_precision="ieee")
        kernel = tl.exp2(exponent).to(values.dtype.element_ty)
        value = tl.load(
            values + source.to(tl.int64)[:, None] * stride + lanes[None, :],
            mask=inside[None, :],
            other=0.0,
        )
        total = tl.dot(kernel, value, total, input_precision="ieee")
    position = row.to(tl.int64)[:, None] * out_stride + lanes[None, :]
    kept = (row < count)[:, None] & inside[None, :]
    if first_tile > 0:
        total += tl.load(out + position, mask=kept, other=0.0)
    tl.store(out + position, total, mask=kept)


def all_pairs(
    queries: torch.Tensor,
    sources: torch.Tensor,
    values: torch.Tensor,
    width: int,
    count: int,
) -> torch.Tensor:
    """Return the sums at ``count`` queries, (count, width), in float32.

    ``queries`` and ``sources`` come from ``widen_features``; ``values`` has a row for every row of
    ``sources``, of the same type.
    """
    out = torch.empty((count, width), dtype=torch.float32, device=values.device)
    tiles = len(sources) // SOURCES
    for first, stop, lanes in _columns(width, _widest(values)):
        for segment in range(0, tiles, SEGMENT):
            _all_pairs[(len(queries) // QUERIES, (stop - first) // lanes)](
                queries, sources, values, out, count, segment, min(segment + SEGMENT, tiles),
                values.stride(0), first, width, out.stride(0),
                QUERIES=QUERIES, SOURCES=SOURCES, LANES=lanes, FEATURES=queries.shape[1],
                num_warps=WARPS, num_stages=STAGES,
            )  # fmt: skip
    return out


def _widest(values: torch.Tensor) -> int:
    """Return the widest block of columns that a multiprocessor's shared memory has memory for."""
    if values.dtype == torch.float32:
        return SINGLE_LANES
    if values.device.type != "cuda":
        return LANES
    device = torch.cuda.get_device_properties(values.device)
    memory = getattr(device, "shared_memory_per_multiprocessor", 0)  # not in every PyTorch
    return LANES if memory >= ROOMY else LANES // 2


def _columns(width: int, widest: int) -> list[tuple[int, int, int]]:
    """Cut the columns into wide blocks and a narrower rest: from, to, and the width of a block."""
    wide = width // widest * widest
    parts = [(0, wide, widest)] if wide else []
    if width > wide:
        lanes = max(NARROW_LANES, 1 << (width - wide - 1).bit_length())
        parts.append((wide, wide + lanes, lanes))
    return parts


def widen_features(features: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what queries and sources are multiplied with each other, (rows, K) each.

    ``features`` (N, d) are float64. Rows of zeros fill up the last tile. Features too large for
    half precision come out as float32.
    """
    scaled = (features - features.mean(0)) * math.sqrt(LOG2E)
    halves = (scaled**2).sum(1, keepdim=True) / 2
    ones = torch.ones_like(halves)
    if dtype == torch.float16 and float(halves.max()) < LARGEST_HALF:
        high, low = _pieces(scaled, 2)
        here, there = [high, high, low], [high, low, high]
        for piece in _pieces(-halves, 3):
            here += [piece, ones]
            there += [ones, piece]
    else:
        dtype = torch.float32
        here, there = [scaled, -halves, ones], [scaled, ones, -halves]
    return _rows(here, dtype, QUERIES), _rows(there, dtype, SOURCES)


def _pieces(values: torch.Tensor, count: int) -> list[torch.Tensor]:
    """Split float64 values into halves that add up to them."""
    pieces = []
    for _ in range(count):
        pieces.append(values.half().double())
        values = values - pieces[-1]
    return pieces


def _rows(parts: list[torch.Tensor], dtype: torch.dtype, multiple: int) -> torch.Tensor:
    joined = torch.cat(parts, 1)
    n, k = joined.shape
    size = max(16, 1 << (k - 1).bit_length())
    rows = torch.zeros((-(-n // multiple) * multiple, size), dtype=dtype, device=joined.device)
    rows[:n, :k] = joined.to(dtype)
    return rows


class Gaussian(Protocol):
    """K of one kernel, not normalised."""

    device: torch.device
    nbytes: int

    def apply(self, values: torch.Tensor, width: int) -> torch.Tensor:
        """Return K·values, (N, width) float32, for values (rows, ·), zero beyond N."""

    def row_sums(self, values: torch.Tensor) -> torch.Tensor:
        """Return K·values, (N,) float32, for values (N,)."""


class AllPairs:
    """K over all pairs of (N, d) features."""

    def __init__(self, features: torch.Tensor, dtype: torch.dtype) -> None:
        self._count = len(features)
        self._queries, self._sources = widen_features(features, dtype)
        self.device = features.device
        self.nbytes = self._queries.nbytes + self._sources.nbytes

    def apply(self, values: torch.Tensor, width: int) -> torch.Tensor:
        """Return K·values, (N, width) float32, for values (rows, ·), zero beyond N."""
        own = values.to(self._queries.dtype)
        return all_pairs(self._queries, self._sources, own, width, self._count)

    def row_sums(self, values: torch.Tensor) -> torch.Tensor:
        """Return K·values, (N,) float32, for values (N,)."""
        column = values.new_zeros((len(self._sources), NARROW_LANES), dtype=self._queries.dtype)
        column[: self._count, 0] = values.to(column.dtype)
        out = all_pairs(self._queries, self._sources, column, 1, self._count)
        return out[:, 0]


class AlongAxes:
    """K of positions alone, a product over the axes of the grid, in float32."""

    def __init__(self, grid: Grid, sigma: np.ndarray, index: torch.Tensor) -> None:
        self._matrices = []
        position = torch.zeros_like(index)
        shape = []
        for k, (size, spacing) in enumerate(zip(grid.shape, grid.spacing)):
            along = index // int(np.prod(grid.shape[k + 1 :], dtype=np.int64)) % size
            low, high = int(along.min()), int(along.max())
            x = torch.arange(high - low + 1, dtype=torch.float64, device=index.device)
            squares = ((x[:, None] - x) * (spacing / float(sigma[k]))) ** 2
            self._matrices.append(torch.exp(-squares / 2).float())
            position = position * (high - low + 1) + along - low
            shape.append(high - low + 1)
        self._shape, self._place = shape, position
        self.device = index.device
        self.nbytes = position.nbytes

    def apply(self, values: torch.Tensor, width: int) -> torch.Tensor:
        """Return K·values, (N, width) float32, for values (rows, ·), zero beyond N."""
        out = torch.empty((len(self._place), width), dtype=torch.float32, device=values.device)
        for first in range(0, width, CHANNELS):
            part = values[: len(self._place), first : min(first + CHANNELS, width)].float()
            out[:, first : first + CHANNELS] = self._filter(part)
        return out

    def row_sums(self, values: torch.Tensor) -> torch.Tensor:
        """Return K·values, (N,) float32, for values (N,)."""
        return self.apply(values[:, None], 1)[:, 0]

    def _filter(self, values: torch.Tensor) -> torch.Tensor:
        box = values.new_zeros((CHANNELS, math.prod(self._shape)))
        box[: values.shape[1], self._place] = values.T
        after = math.prod(self._shape)
        for size, matrix in zip(self._shape, self._matrices):
            after //= size
            if after > 1:
                box = torch.matmul(matrix, box.reshape(-1, size, after))
            else:
                box = torch.matmul(box.reshape(-1, size), matrix)  # symmetric
        return box.reshape(CHANNELS, -1)[: values.shape[1], self._place].T


class ExactFilter:
    """K̂ = diag(after) K diag(before)."""

    def __init__(
        self,
        gaussian: Gaussian,
        voxels: int,
        normalization: Normalization,
    ) -> None:
        self._gaussian = gaussian
        self.nbytes = gaussian.nbytes
        ones = torch.ones(voxels, dtype=torch.float32, device=gaussian.device)
        sums = gaussian.row_sums(ones).double()
        before, after = normalizers(sums, normalization)
        self._largest = float(before.max())
        self._before = (before / self._largest).float()  # (N,), so that halves hold it
        if normalization in ("symmetric", "before"):
            sums = self._largest * gaussian.row_sums(self._before).double()
        self._after = after.float()
        self.total = (after * sums).float()
        self.diagonal = (before * after).float()

    def apply(self, marginals: torch.Tensor, width: int) -> torch.Tensor:
        """Return K̂·marginals, (N, width) float32, for marginals (rows, stride)."""
        n = len(self._before)
        rows = -(-n // SOURCES) * SOURCES
        values = marginals.new_zeros((rows, marginals.shape[1]))
        values[:n] = (marginals[:n] * self._before[:, None]).to(marginals.dtype)
        out = self._gaussian.apply(values, width)
        return out.mul_((self._largest * self._after)[:, None])
