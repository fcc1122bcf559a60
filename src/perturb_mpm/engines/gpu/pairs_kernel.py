"""All pairs: Σ_j exp(−|f_i − f_j|²/2)·v_j for every voxel and channel, in the manner of attention.

The exponent f_i·f_j − |f_i|²/2 − |f_j|²/2, in units of log 2, is one dot product of widened
features. In half precision every feature is split into a high and a low part, and so are squares.

Sources are taken segment by segment, for two reasons: the tensor cores round their sums down, so
that long sums must be flushed into float32 sums in memory; and the values of a segment stay in the
cache while all queries read them.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

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


@triton.jit(do_not_specialize=["first_tile", "stop_tile"])
def _all_pairs(
    queries,
    sources,
    values,
    out,
    count,
    first_tile,
    stop_tile,
    stride,
    first_lane,
    width,
    out_stride,
    QUERIES: tl.constexpr,
    SOURCES: tl.constexpr,
    LANES: tl.constexpr,
    FEATURES: tl.constexpr,
):
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
    place = row.to(tl.int64)[:, None] * out_stride + lanes[None, :]
    kept = (row < count)[:, None] & inside[None, :]
    if first_tile > 0:
        total += tl.load(out + place, mask=kept, other=0.0)
    tl.store(out + place, total, mask=kept)


def all_pairs(
    queries: torch.Tensor,
    sources: torch.Tensor,
    values: torch.Tensor,
    width: int,
    count: int,
) -> torch.Tensor:
    """Return the sums at ``count`` queries, (count, width), in float32.

    ``queries`` and ``sources`` come from ``widened``; ``values`` has a row for every row of
    ``sources``, of the same type.
    """
    out = torch.empty((count, width), dtype=torch.float32, device=values.device)
    tiles = len(sources) // SOURCES
    for first, stop, lanes in _columns(width, _widest(values)):
        for segment in range(0, tiles, SEGMENT):
            _all_pairs[(len(queries) // QUERIES, (stop - first) // lanes)](
                queries,
                sources,
                values,
                out,
                count,
                segment,
                min(segment + SEGMENT, tiles),
                values.stride(0),
                first,
                width,
                out.stride(0),
                QUERIES=QUERIES,
                SOURCES=SOURCES,
                LANES=lanes,
                FEATURES=queries.shape[1],
                num_warps=WARPS,
                num_stages=STAGES,
            )
    return out


def _widest(values: torch.Tensor) -> int:
    """Return the widest block of columns that a multiprocessor's shared memory has room for."""
    if values.dtype == torch.float32:
        return SINGLE_LANES
    if values.device.type != "cuda":
        return LANES
    device = torch.cuda.get_device_properties(values.device)
    room = getattr(device, "shared_memory_per_multiprocessor", 0)  # not in every PyTorch
    return LANES if room >= ROOMY else LANES // 2


def _columns(width: int, widest: int) -> list[tuple[int, int, int]]:
    """Cut the columns into wide blocks and a narrower rest: from, to, and the width of a block."""
    wide = width // widest * widest
    parts = [(0, wide, widest)] if wide else []
    if width > wide:
        lanes = max(NARROW_LANES, 1 << (width - wide - 1).bit_length())
        parts.append((wide, wide + lanes, lanes))
    return parts


def all_pairs_twin(
    features: torch.Tensor, rows: torch.Tensor, values: torch.Tensor
) -> torch.Tensor:
    """Return the sums at the rows (M,) of (N, d) features, (M, C), in plain PyTorch and float64."""
    f = features.double()
    squares = ((f[rows, None] - f) ** 2).sum(2)
    return torch.exp(-squares / 2) @ values.double()


def widened(features: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
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
