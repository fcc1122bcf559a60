"""The update in one pass: slice, logits, softmax, labels and how far everything moved; votes.

    Q_i(l) ← softmax_l(−sharpness·(U_i(l) + Σ_g Σ_l' μ_g(l, l')·(K̂_g Q)_i(l')))

for B problems of L labels on N voxels. ``memory.BatchLayout`` says which channel of a row belongs
to which problem and label. Label 0 is left out: what the others leave of the row's sum is its own.
Everything is computed for each channel alone, in blocks whose shape never depends on the batch: a
problem's result does not depend on its position in it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from perturb_mpm.engines.gpu.memory import BatchLayout, Buffers
from perturb_mpm.engines.gpu.tiles import STEP, TILE, Tiles, slice_tile

FORBIDDEN = tl.constexpr(-1e30)
LOG2E = tl.constexpr(1.4426950408889634)
WARPS = 4
STAGES = 5
PROBLEMS = 64  # whose votes a program counts at once


@dataclass(frozen=True)
class MessageCoupling:
    """What the kernels' messages do to the logits, by groups (``engines/lattice.py``)."""

    self_term: bool
    potts: bool  # whether every group is Potts: then there is one, and no need of matrices
    matrices: torch.Tensor  # (G, P, P) float32: A
    offsets: torch.Tensor  # (G, P) float32: c
    compatibilities: torch.Tensor  # (G, L, L) float32: μ
    totals: torch.Tensor  # (G, tiles·T) float32: row sums
    diagonals: torch.Tensor  # (G, tiles·T) float32: what a voxel must not send to itself


@triton.jit
def _mix_labels(values, matrix, LABELS: tl.constexpr):
    """Return Σ_m matrix[l, m]·values[…, m] for values (T, problems, P)."""
    label = tl.arange(0, LABELS)
    total = tl.zeros_like(values)
    for m in range(LABELS):
        column = tl.load(matrix + label * LABELS + m)
        one = tl.sum(tl.where((label == m)[None, None, :], values, 0.0), axis=2)
        total += one[:, :, None] * column[None, None, :]
    return total


@triton.jit
def _update(
    energies, marginals, labels, rows, changes, vertices, slices, starts,
    matrices, offsets, totals, diagonals, groups, tiles, blocks,
    voxels, stride, width, problems, n_labels, damping, sharpness,
    EXACT: tl.constexpr, POTTS: tl.constexpr, SELFLESS: tl.constexpr, DAMPED: tl.constexpr,
    WATCHED: tl.constexpr, TILE: tl.constexpr, STEP: tl.constexpr, LABELS: tl.constexpr,
    PROBLEMS: tl.constexpr,
):  # fmt: skip
    LANES: tl.constexpr = PROBLEMS * LABELS
    tile, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    lanes = block * LANES + tl.arange(0, LANES)
    inside = lanes < width
    voxel = tile * TILE + tl.arange(0, TILE)
    at = voxel.to(tl.int64)[:, None] * stride + lanes[None, :]
    label = tl.arange(0, LABELS)
    logits = tl.zeros((TILE, PROBLEMS, LABELS), tl.float32)
    for g in range(groups):
        if EXACT:
            position = (g * tiles * TILE + voxel).to(tl.int64)[:, None] * stride + lanes[None, :]
            message = tl.load(rows + position, mask=inside[None, :], other=0.0)
        else:
            first = tl.load(starts + tile * groups + g)
            stop = tl.load(starts + tile * groups + g + 1)
            message = slice_tile(
                vertices, slices, rows, first, stop, lanes, inside, stride, TILE, STEP, LANES
            )
        own = tl.load(diagonals + g * tiles * TILE + voxel)
        whole = tl.load(totals + g * tiles * TILE + voxel)
        if not EXACT:
            message = message * whole[:, None]
        if SELFLESS:
            old = tl.load(marginals + at, mask=inside[None, :], other=0.0)
            message -= old.to(tl.float32) * own[:, None]
        message = tl.reshape(message, (TILE, PROBLEMS, LABELS))
        rest = whole - own
        if POTTS:
            every = tl.sum(message, axis=2) - rest[:, None]
            logits += message + every[:, :, None]
        else:
            offset = tl.load(offsets + g * LABELS + label)
            logits -= _mix_labels(message, matrices + g * LABELS * LABELS, LABELS)
            logits -= rest[:, None, None] * offset[None, None, :]
    energy = tl.load(energies + at, mask=inside[None, :], other=0.0)
    logits -= tl.reshape(energy.to(tl.float32), (TILE, PROBLEMS, LABELS))
    logits = tl.where((label < n_labels - 1)[None, None, :], logits * sharpness, FORBIDDEN)
    highest = tl.maximum(tl.max(logits, axis=2), 0.0)
    shares = tl.exp2((logits - highest[:, :, None]) * LOG2E)
    zero = tl.exp2(-highest * LOG2E)
    norm = 1.0 / (zero + tl.sum(shares, axis=2))
    new = shares * norm[:, :, None]
    if DAMPED or WATCHED:
        zero = zero * norm
        last_marginals = tl.load(marginals + at, mask=inside[None, :], other=0.0).to(tl.float32)
        before = tl.reshape(last_marginals, (TILE, PROBLEMS, LABELS))
    if DAMPED:
        first = 1.0 - tl.sum(before, axis=2)
        new = tl.maximum(before + (1.0 - damping) * (new - before), 0.0)
        zero = tl.maximum(first + (1.0 - damping) * (zero - first), 0.0)
        norm = 1.0 / (zero + tl.sum(new, axis=2))  # beyond the new marginals some are below 0
        new = new * norm[:, :, None]
        zero = zero * norm
    values = tl.reshape(new, (TILE, LANES)).to(marginals.dtype.element_ty)
    tl.store(marginals + at, values, mask=inside[None, :])
    if WATCHED:
        step = new - before
        # What the other labels' changes add up to is label 0's own.
        moved = tl.maximum(tl.max(tl.abs(step), axis=2), tl.abs(tl.sum(step, axis=2)))
        largest = tl.max(new, axis=2)
        lowest = tl.min(tl.where(new == largest[:, :, None], label[None, None, :], LABELS), axis=2)
        best = tl.where(largest > zero, lowest + 1, 0)
        problem = block * PROBLEMS + tl.arange(0, PROBLEMS)
        real = problem < problems
        row = (tile.to(tl.int64) * problems + problem) * TILE
        position = row[None, :] + tl.arange(0, TILE)[:, None]
        last = tl.load(labels + position, mask=real[None, :], other=0).to(tl.int32)
        tl.store(labels + position, best.to(tl.uint8), mask=real[None, :])
        moved = tl.where((voxel < voxels)[:, None], moved, 0.0)
        switched = (best != last) & (voxel < voxels)[:, None]
        out = changes + problem * tiles + tile  # the tiles of a problem side by side, to be reduced
        size = tiles * problems
        tl.store(out, tl.max(moved, axis=0), mask=real)
        foreground = tl.where(best + last > 0, moved, 0.0)
        tl.store(out + size, tl.max(foreground, axis=0), mask=real)
        tl.store(out + 2 * size, tl.sum(switched.to(tl.float32), axis=0), mask=real)


def update(
    buffers: Buffers,
    tiles: Tiles | None,
    coupling: MessageCoupling,
    *,
    damping: float,
    sharpness: float,
    watched: bool,
) -> torch.Tensor | None:
    """Update every marginal once, from the rows of the present ones.

    Without tiles the messages are exact. Where it is watched, labels are updated too, and the
    largest change, that in the foreground and the number of new labels are returned, (3, B).
    """
    layout = buffers.layout
    count = layout.tiles
    changes = torch.empty(
        (3, layout.problems, count) if watched else (1,),
        dtype=torch.float32,
        device=buffers.energies.device,
    )
    _update[(count * layout.blocks,)](
        buffers.energies, buffers.marginals, buffers.labels,
        buffers.exact if tiles is None else buffers.rows, changes,
        *(3 * [coupling.totals] if tiles is None else tiles.slice_parts),
        coupling.matrices, coupling.offsets, coupling.totals, coupling.diagonals,
        len(coupling.matrices), count, layout.blocks,
        layout.voxels, layout.stride, layout.width, layout.problems, layout.n_labels,
        damping, sharpness,
        EXACT=tiles is None, POTTS=coupling.potts, SELFLESS=not coupling.self_term,
        DAMPED=damping != 0, WATCHED=watched, TILE=TILE, STEP=STEP, LABELS=layout.padded,
        PROBLEMS=layout.lanes // layout.padded, num_warps=WARPS, num_stages=STAGES,
    )  # fmt: skip
    if not watched:
        return None
    return torch.stack([changes[0].amax(1), changes[1].amax(1), changes[2].sum(1)])


@triton.jit
def _count(
    labels, votes, sizes, chosen, voxels, problems, n_labels,
    TILE: tl.constexpr, PROBLEMS: tl.constexpr, LABELS: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    voxel = tile * TILE + tl.arange(0, TILE)
    inside = voxel < voxels
    label = tl.arange(0, LABELS)
    total = tl.zeros((TILE, LABELS), tl.int32)
    for first in range(0, problems, PROBLEMS):
        problem = first + tl.arange(0, PROBLEMS)
        real = problem < problems
        row = (tile.to(tl.int64) * problems + problem) * TILE
        given = tl.load(
            labels + row[None, :] + tl.arange(0, TILE)[:, None],
            mask=inside[:, None] & real[None, :],
            other=255,
        )
        taken = tl.load(chosen + problem, mask=real, other=0).to(tl.int32)
        for l in range(n_labels):
            hit = (given == l).to(tl.int32)
            votes_of = tl.sum(hit * taken[None, :], axis=1)
            total += tl.where(label[None, :] == l, votes_of[:, None], 0)
            position = (tile * n_labels + l) * problems + problem
            tl.store(sizes + position, tl.sum(hit, axis=0).to(tl.uint8), mask=real)
    position = label.to(tl.int64)[None, :] * voxels + voxel[:, None]
    known = inside[:, None] & (label < n_labels)[None, :]
    tl.store(votes + position, total.to(votes.dtype.element_ty), mask=known)


def count_votes(
    labels: torch.Tensor, layout: BatchLayout, chosen: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each label's votes, (L, N), uint8 where they fit, and label sizes, (B, L).

    ``labels`` are (tiles, B, T), and only those of ``chosen`` (B,) vote; the sizes are of all.
    """
    fits = layout.problems < 2**8
    votes = torch.empty(
        (layout.n_labels, layout.voxels),
        # PyTorch stores uint32 but cannot index it.
        dtype=torch.uint8 if fits else torch.int32,
        device=labels.device,
    )
    sizes = torch.empty(
        (layout.tiles, layout.n_labels, layout.problems), dtype=torch.uint8, device=labels.device
    )
    _count[(layout.tiles,)](
        labels, votes, sizes, chosen.to(torch.uint8), layout.voxels, layout.problems,
        layout.n_labels,
        TILE=TILE, PROBLEMS=PROBLEMS, LABELS=triton.next_power_of_2(layout.n_labels),
        num_warps=4,
    )  # fmt: skip
    # PyTorch copies bytes into the type they are summed in: no wider one than a count needs.
    return votes, sizes.sum(0, dtype=torch.int32).T.long()
