"""Marginals averaged over the noise, on the device: ``engines/averaging.py`` says what they are."""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from perturb_mpm.engines.averaging import SPAN, STEP
from perturb_mpm.engines.gpu.memory import Room
from perturb_mpm.engines.gpu.update_kernel import MessageCoupling

VOXELS = 64
_LEAST = 1e-37


def averaged_marginals(logits: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Return E_γ softmax(β(logits + τγ)), (L, N)."""
    x = logits - logits.amax(0)
    shares = torch.exp(x)
    others = (shares.sum(0) - shares).clamp_(min=_LEAST)
    gap = (x - torch.log(others)).clamp_(-SPAN, SPAN - 2 * STEP)
    gap = (gap + SPAN) * (1 / STEP)
    place = gap.long()
    low = table[place]
    q = low + (gap - place) * (table[place + 1] - low)
    return q / q.sum(0)


@triton.jit
def _follow(
    messages,
    marginals,
    totals,
    diagonals,
    compatibilities,
    unaries,
    centre,
    table,
    now,
    last_energies,
    energies,
    following,
    moved,
    voxels,
    rows,
    n_labels,
    groups,
    stride,
    span,
    per_step,
    highest_place,
    damping,
    LEAST: tl.constexpr,
    CENTRED: tl.constexpr,
    DAMPED: tl.constexpr,
    FIRST: tl.constexpr,
    VOXELS: tl.constexpr,
    LABELS: tl.constexpr,
    PADDED: tl.constexpr,
):
    voxel = tl.program_id(0).to(tl.int64) * VOXELS + tl.arange(0, VOXELS)
    inside = voxel < voxels
    label = tl.arange(0, LABELS)[None, :]
    known = inside[:, None] & (label < n_labels)
    others = known & (label > 0)
    stored = voxel[:, None] * stride + label - 1
    sent = tl.load(marginals + stored, mask=others, other=0.0).to(tl.float32)
    pairwise = tl.zeros((VOXELS, LABELS), tl.float32)
    for g in range(groups):
        whole = tl.load(totals + g * rows + voxel)[:, None]
        own = tl.load(diagonals + g * rows + voxel)[:, None]
        place = (g * rows + voxel)[:, None] * PADDED + label - 1
        message = tl.load(messages + place, mask=others, other=0.0) * whole - sent * own
        first = whole - own - tl.sum(message, axis=1)[:, None]
        message = tl.where(label == 0, first, message)
        for m in range(n_labels):
            at = (g * n_labels + label) * n_labels + m
            column = tl.load(compatibilities + at, mask=label < n_labels, other=0.0)
            one = tl.sum(tl.where(label == m, message, 0.0), axis=1)
            pairwise += column * one[:, None]
    zero = tl.sum(tl.where(label == 0, pairwise, 0.0), axis=1)
    energy = pairwise - zero[:, None]
    against = (label - 1) * voxels + voxel[:, None]
    tl.store(energies + against, energy, mask=others)
    if FIRST:
        step = tl.full((VOXELS, LABELS), 1e30, tl.float32)
    else:
        step = tl.abs(energy - tl.load(last_energies + against, mask=others, other=0.0))
    step = tl.where(others, step, 0.0)
    tl.store(moved + tl.program_id(0), tl.max(tl.max(step, axis=1), axis=0))
    logits = -tl.load(unaries + label * rows + voxel[:, None], mask=known, other=0.0) - energy
    if CENTRED:
        shift = voxel[:, None] * (n_labels - 1) + label - 1
        logits += tl.load(centre + shift, mask=others, other=0.0)
    logits = tl.where(label < n_labels, logits, -1e30)
    x = logits - tl.max(logits, axis=1)[:, None]
    shares = tl.exp(x)
    rest = tl.maximum(tl.sum(shares, axis=1)[:, None] - shares, LEAST)
    gap = tl.minimum(tl.maximum((x - tl.log(rest) + span) * per_step, 0.0), highest_place)
    low_place = gap.to(tl.int32)
    low = tl.load(table + low_place, mask=known, other=0.0)
    high = tl.load(table + low_place + 1, mask=known, other=0.0)
    new = low + (gap - low_place.to(tl.float32)) * (high - low)
    new = new / tl.where(inside, tl.sum(new, axis=1), 1.0)[:, None]
    every = label * voxels + voxel[:, None]
    if DAMPED:
        old = tl.load(now + every, mask=known, other=0.0)
        new = tl.maximum(old + (1.0 - damping) * (new - old), 0.0)
        new = new / tl.where(inside, tl.sum(new, axis=1), 1.0)[:, None]
    tl.store(following + every, new, mask=known)


def follow(
    room: Room,
    messages: torch.Tensor,
    coupling: MessageCoupling,
    unaries: torch.Tensor,
    centre: torch.Tensor | None,
    table: torch.Tensor,
    now: torch.Tensor,
    last_energies: torch.Tensor | None,
    damping: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the pairwise energies of averaged marginals and the marginals after these.

    ``messages`` (G, rows, P) are the groups' weighted means of the room's one problem, ``now``
    (L, N) its marginals, ``unaries`` (L, rows) those of the CRF, ``centre`` (N, L − 1) what is
    taken off them, and ``table`` that of h. Energies are (L − 1, N) against label 0's; the third
    result is how far they moved from the last ones, (blocks,): far where there are no last ones.
    """
    n_labels, n = now.shape
    energies = torch.empty((n_labels - 1, n), device=now.device)
    following = torch.empty_like(now)
    blocks = triton.cdiv(n, VOXELS)
    moved = torch.empty(blocks, device=now.device)
    _follow[(blocks,)](
        messages,
        room.marginals,
        coupling.totals,
        coupling.diagonals,
        coupling.compatibilities,
        unaries,
        now if centre is None else centre,
        table,
        now,
        energies if last_energies is None else last_energies,
        energies,
        following,
        moved,
        n,
        room.layout.rows,
        n_labels,
        len(messages),
        room.layout.stride,
        SPAN,
        1 / STEP,
        (2 * SPAN - 2 * STEP) / STEP,
        damping,
        LEAST=_LEAST,
        CENTRED=centre is not None,
        DAMPED=damping != 0,
        FIRST=last_energies is None,
        VOXELS=VOXELS,
        LABELS=triton.next_power_of_2(n_labels),
        PADDED=room.layout.padded,
        num_warps=4,
    )
    return energies, following, moved


def averaged_variance(
    q: torch.Tensor, spread: tuple[NDArray[np.float32], NDArray[np.float32]]
) -> torch.Tensor:
    """Return the variance of each voxel's marginals over its noise, (N,): the largest label's.

    ``spread`` are averages, rising, and the variance of marginals that have such an average.
    """
    averages, variances = (torch.from_numpy(each.copy()).to(q.device) for each in spread)
    right = torch.searchsorted(averages, q.contiguous()).clamp_(1, len(averages) - 1)
    left = right - 1
    width = averages[right] - averages[left]
    share = ((q - averages[left]) / torch.where(width > 0, width, 1.0)).clamp_(0, 1)
    return torch.lerp(variances[left], variances[right], share).amax(0)
