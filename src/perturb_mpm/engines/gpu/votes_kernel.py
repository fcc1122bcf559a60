"""Counting labels: how many problems give each voxel each label, and how large labels are."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from perturb_mpm.engines.gpu.memory import BatchLayout

VOXELS = 64
PROBLEMS = 64


@triton.jit
def _count(
    labels,
    votes,
    sizes,
    chosen,
    voxels,
    problems,
    n_labels,
    VOXELS: tl.constexpr,
    PROBLEMS: tl.constexpr,
    LABELS: tl.constexpr,
):
    voxel = tl.program_id(0) * VOXELS + tl.arange(0, VOXELS)
    inside = voxel < voxels
    label = tl.arange(0, LABELS)
    total = tl.zeros((VOXELS, LABELS), tl.int32)
    for first in range(0, problems, PROBLEMS):
        problem = first + tl.arange(0, PROBLEMS)
        real = problem < problems
        given = tl.load(
            labels + voxel.to(tl.int64)[:, None] * problems + problem[None, :],
            mask=inside[:, None] & real[None, :],
            other=255,
        )
        taken = tl.load(chosen + problem, mask=real, other=0).to(tl.int32)
        for l in range(n_labels):
            hit = (given == l).to(tl.int32)
            votes_of = tl.sum(hit * taken[None, :], axis=1)
            total += tl.where(label[None, :] == l, votes_of[:, None], 0)
            place = (tl.program_id(0) * n_labels + l) * problems + problem
            tl.store(sizes + place, tl.sum(hit, axis=0).to(tl.uint8), mask=real)
    place = label.to(tl.int64)[None, :] * voxels + voxel[:, None]
    known = inside[:, None] & (label < n_labels)[None, :]
    tl.store(votes + place, total.to(votes.dtype.element_ty), mask=known)


def count_votes(
    labels: torch.Tensor, layout: BatchLayout, chosen: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each label's votes, (L, N), uint8 where they fit, and label sizes, (B, L).

    ``labels`` are (rows, B), and only those of ``chosen`` (B,) vote; the sizes are of all.
    """
    fits = layout.problems < 2**8
    votes = torch.empty(
        (layout.n_labels, layout.voxels),
        # PyTorch stores uint32 but cannot index it.
        dtype=torch.uint8 if fits else torch.int32,
        device=labels.device,
    )
    blocks = triton.cdiv(layout.voxels, VOXELS)
    sizes = torch.empty(
        (blocks, layout.n_labels, layout.problems), dtype=torch.uint8, device=labels.device
    )
    _count[(blocks,)](
        labels,
        votes,
        sizes,
        chosen.to(torch.uint8),
        layout.voxels,
        layout.problems,
        layout.n_labels,
        VOXELS=VOXELS,
        PROBLEMS=PROBLEMS,
        LABELS=triton.next_power_of_2(layout.n_labels),
        num_warps=4,
    )
    # PyTorch copies bytes into the type they are summed in: no wider one than a count needs.
    return votes, sizes.sum(0, dtype=torch.int32).T.long()


def count_votes_twin(
    labels: torch.Tensor, layout: BatchLayout, chosen: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Do what ``count_votes`` does in plain PyTorch."""
    every = torch.arange(layout.n_labels, device=labels.device)
    given = labels[: layout.voxels, :, None] == every
    return (given & chosen[:, None]).sum(1).T, given.sum(0)
