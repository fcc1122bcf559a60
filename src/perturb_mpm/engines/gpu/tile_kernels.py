"""The parts of kernels that a tile of voxels shares with the lattice rows it touches.

A tile of T consecutive voxels and the rows it touches make a small dense matrix. Its entries, one a
row, lie one after the other in ``vertices`` (−1 fills up), tile by tile and group by group; entry e
and voxel t of its tile have the coefficient e·T + t of ``slices`` and of ``splats``.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def received(
    vertices,
    slices,
    rows,
    first,
    stop,
    lanes,
    inside,
    stride,
    TILE: tl.constexpr,
    STEP: tl.constexpr,
    LANES: tl.constexpr,
):
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
