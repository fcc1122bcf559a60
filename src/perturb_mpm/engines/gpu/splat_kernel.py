"""The inner splat: what the voxels of each tile send to the rows they touch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from perturb_mpm.engines.gpu.tiles import STEP, TILE, Tiles

LANES = 128
WARPS = 4


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
    blocks = triton.cdiv(width, LANES)
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
            LANES=LANES,
            num_warps=WARPS,
        )


def splat_twin(tiles: Tiles, marginals: torch.Tensor, partials: torch.Tensor, width: int) -> None:
    """Do what ``splat`` does in plain PyTorch."""
    owner = tiles.owners()  # (E,)
    values = marginals[:, :width].float().reshape(tiles.count, TILE, width)
    for e in torch.nonzero(tiles.vertices >= 0)[:, 0].tolist():
        share = tiles.splats[e].float()  # (T,)
        partials[e, :width] = (share @ values[owner[e]]).to(partials.dtype)
