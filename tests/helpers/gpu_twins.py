"""What each Triton kernel does, in plain PyTorch: slow and obvious, to compare kernels with."""

from __future__ import annotations

import math

import torch

from perturb_mpm.engines.gpu.chain import Sparse
from perturb_mpm.engines.gpu.memory import BatchLayout, Buffers
from perturb_mpm.engines.gpu.perturb_kernel import Noise, Unaries, philox_twin
from perturb_mpm.engines.gpu.tiles import TILE, Tiles
from perturb_mpm.engines.gpu.update_kernel import MessageCoupling


def combine_twin(matrix: Sparse, source: torch.Tensor, target: torch.Tensor, width: int) -> None:
    """Do what ``combine`` does in plain PyTorch."""
    for row, start, stop in zip(matrix.targets, matrix.starts, matrix.stops, strict=True):
        if stop < 0:
            continue
        values = source[matrix.columns[start:stop].long(), :width].float()
        total = (matrix.coefficients[start:stop, None] * values).sum(0)
        target[row, :width] = total.to(target.dtype)


def all_pairs_twin(
    features: torch.Tensor, rows: torch.Tensor, values: torch.Tensor
) -> torch.Tensor:
    """Return the sums at the rows (M,) of (N, d) features, (M, C), in plain PyTorch and float64."""
    f = features.double()
    squares = ((f[rows, None] - f) ** 2).sum(2)
    return torch.exp(-squares / 2) @ values.double()


def splat_twin(tiles: Tiles, marginals: torch.Tensor, partials: torch.Tensor, width: int) -> None:
    """Do what ``splat`` does in plain PyTorch."""
    sizes = tiles.starts[:: tiles.groups].diff().long()  # (tiles,) entries
    owner = torch.repeat_interleave(torch.arange(tiles.count, device=sizes.device), sizes)  # (E,)
    values = marginals[:, :width].float().reshape(tiles.count, TILE, width)
    for e in torch.nonzero(tiles.vertices >= 0)[:, 0].tolist():
        share = tiles.splats[e].float()  # (T,)
        partials[e, :width] = (share @ values[owner[e]]).to(partials.dtype)


def slice_group_twin(
    tiles: Tiles, rows: torch.Tensor, group: int, layout: BatchLayout, first: int, width: int
) -> torch.Tensor:
    """Do what ``slice_group`` does in plain PyTorch."""
    messages = torch.zeros((layout.tiles, TILE, width), device=rows.device)
    for tile in range(layout.tiles):
        start, stop = tiles.starts[tile * tiles.groups + group :][:2].tolist()
        vertices = tiles.vertices[start:stop].long()
        real = vertices >= 0
        values = rows[vertices[real], first : first + width].float()
        messages[tile] = tiles.slices[start:stop][real].float().T @ values
    return messages.reshape(layout.rows, width)


def update_twin(
    buffers: Buffers,
    tiles: Tiles | None,
    coupling: MessageCoupling,
    *,
    damping: float,
    sharpness: float,
    watched: bool,
) -> torch.Tensor | None:
    """Do what ``update`` does in plain PyTorch."""
    layout = buffers.layout
    n, labels = layout.voxels, layout.n_labels - 1

    def by_label(values: torch.Tensor) -> torch.Tensor:
        return values[:n, : layout.width].float().unflatten(1, (-1, layout.padded))[:, :, :labels]

    old = by_label(buffers.marginals)  # (N, B, L − 1)
    logits = -by_label(buffers.energies)
    for g in range(len(coupling.matrices)):
        whole, own = coupling.totals[g, :n, None, None], coupling.diagonals[g, :n, None, None]
        if tiles is None:
            message = by_label(buffers.exact[g])
        else:
            message = whole * by_label(
                slice_group_twin(tiles, buffers.rows, g, layout, 0, layout.width)
            )
        message = message - own * old
        matrix, offset = coupling.matrices[g, :labels, :labels], coupling.offsets[g, :labels]
        logits = logits - message @ matrix.T - offset * (whole - own)
    logits = torch.cat([torch.zeros_like(logits[:, :, :1]), sharpness * logits], 2)
    before = torch.cat([1 - old.sum(2, keepdim=True), old], 2)
    new = (damping * before + (1 - damping) * torch.softmax(logits, 2)).clamp(min=0)
    new = new / new.sum(2, keepdim=True)
    stored = buffers.marginals[:n, : layout.width].unflatten(1, (-1, layout.padded))
    stored[:, :, :labels] = new[:, :, 1:].to(stored.dtype)
    if not watched:
        return None
    best, last = new.argmax(2), buffers.labels_by_problem.T.long()
    set_labels(buffers, best)
    moved = (new - before).abs().amax(2)  # (N, B)
    foreground = torch.where(best + last > 0, moved, 0.0)
    return torch.stack([moved.amax(0), foreground.amax(0), (best != last).float().sum(0)])


def set_labels(buffers: Buffers, labels: torch.Tensor) -> None:
    """Store the labels (N, B) of every problem."""
    layout = buffers.layout
    every = torch.zeros((layout.rows, layout.problems), dtype=torch.uint8, device=labels.device)
    every[: layout.voxels] = labels
    buffers.labels.copy_(every.view(layout.tiles, TILE, layout.problems).transpose(1, 2))


def count_votes_twin(
    labels: torch.Tensor, layout: BatchLayout, chosen: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Do what ``count_votes`` does in plain PyTorch."""
    every = torch.arange(layout.n_labels, device=labels.device)
    by_voxel = labels.transpose(1, 2).flatten(0, 1)  # (rows, B)
    given = by_voxel[: layout.voxels, :, None] == every
    return (given & chosen[:, None]).sum(1).T, given.sum(0)


def perturb_twin(problem: Unaries, noise: Noise, layout: BatchLayout) -> torch.Tensor:
    """Return energies under white noise, (B, L − 1, N), in plain PyTorch."""
    index = problem.index
    n, labels = layout.voxels, layout.n_labels
    sample = noise.samples[:, None, None]
    drawn = sample & ~1 if noise.perturbation.antithetic else sample
    blocks = torch.arange(-(-labels // 4), device=index.device)[None, :, None]
    counter = torch.broadcast_tensors(index & 0xFFFFFFFF, drawn, blocks, index >> 32)
    words = torch.stack(philox_twin(counter, noise.key), 2).reshape(len(sample), -1, n)[:, :labels]
    if noise.perturbation.antithetic:
        words = torch.where(sample & 1 != 0, words ^ 0xFFFFFFFF, words)
    energy = problem.energies[:, :n] + noise.perturbation.scale * math.log(
        2
    ) * log_exponential_twin(words)
    away = (energy - energy.amin(1, keepdim=True)).clamp(max=problem.ceiling)
    return away[:, 1:] - away[:, :1]


def log_exponential_twin(words: torch.Tensor) -> torch.Tensor:
    """Return log2(−log2 u) of random words in the low halves of int64, in float64."""
    uniform = ((words >> 9).double() + 0.5) * 2.0**-23
    return torch.log2(-torch.log2(uniform))
