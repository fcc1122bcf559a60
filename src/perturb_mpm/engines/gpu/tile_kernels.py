"""The splat of every tile, and the slice alone: what every voxel receives, group by group.

``tiles.py`` says what the entries of a tile are.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from perturb_mpm.engines.gpu.memory import BatchLayout
from perturb_mpm.engines.gpu.tiles import STEP, TILE, Tiles

LANES = 128
NARROW = 16  # of one problem, and the fewest that tensor cores multiply
WARPS = 4


@triton.jit
def slice_tile(
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


@triton.jit
def _splat(
    marginals,
    vertices,
    splats,
    starts,
    partials,
    groups,
    blocks,
    stride,
    width,
    TILE: tl.constexpr,
    STEP: tl.constexpr,
    LANES: tl.constexpr,
):
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
            marginals,
            tiles.vertices,
            tiles.splats,
            tiles.starts,
            partials,
            tiles.groups,
            blocks,
            marginals.stride(0),
            width,
            TILE=TILE,
            STEP=STEP,
            LANES=lanes,
            num_warps=WARPS,
        )


@triton.jit
def _slice(
    rows,
    vertices,
    slices,
    starts,
    messages,
    group,
    groups,
    blocks,
    first_lane,
    stride,
    width,
    out_stride,
    TILE: tl.constexpr,
    STEP: tl.constexpr,
    LANES: tl.constexpr,
):
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
        rows,
        tiles.vertices,
        tiles.slices,
        tiles.starts,
        messages,
        group,
        tiles.groups,
        blocks,
        first,
        rows.stride(0),
        width,
        messages.stride(0),
        TILE=TILE,
        STEP=STEP,
        LANES=lanes,
        num_warps=4,
    )
    return messages
