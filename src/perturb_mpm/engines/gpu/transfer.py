"""Carrying problems into the engine's layout and results out of it."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from perturb_mpm.engines.gpu.device import on_host, threads
from perturb_mpm.engines.gpu.memory import BatchLayout, Buffers
from perturb_mpm.engines.protocol import FRACTION_BITS, Change


def load_energies(buffers: Buffers, b: int, energies: torch.Tensor, ceiling: float) -> None:
    """Take one problem's energies (L, N) against label 0's.

    An energy more than ``ceiling`` above the voxel's lowest counts as that: a forbidden label must
    not use up the digits that tell the others apart.
    """
    away = (energies - energies.amin(0)).clamp_(max=ceiling)
    buffers.problem(buffers.energies, b).copy_((away[1:] - away[:1]).T)


def begin(buffers: Buffers, b: int) -> None:
    """Start a problem at softmax(−energies)."""
    energies = buffers.problem(buffers.energies, b).float()
    logits = torch.cat([torch.zeros_like(energies[:, :1]), -energies], 1)
    load_marginals(buffers, b, torch.softmax(logits, 1).T)


def load_marginals(buffers: Buffers, b: int, marginals: torch.Tensor) -> None:
    """Take one problem's marginals (L, N)."""
    buffers.problem(buffers.marginals, b).copy_(marginals[1:].T)
    largest = marginals.amax(0)
    label = torch.arange(len(marginals), device=marginals.device)[:, None]
    best = torch.where(marginals == largest, label, len(marginals)).amin(0)
    buffers.labels[: buffers.layout.voxels, b] = best.to(torch.uint8)


def read_marginals(buffers: Buffers, b: int) -> torch.Tensor:
    """Return one problem's marginals, (L, N)."""
    others = buffers.problem(buffers.marginals, b).float().T
    rest = torch.ones_like(others[0])
    for share in others:
        rest = rest - share
    return torch.cat([rest.clamp_(min=0)[None], others])


def couple_labels(
    message: torch.Tensor, rest: torch.Tensor, compatibility: torch.Tensor, layout: BatchLayout
) -> torch.Tensor:
    """Return Σ_l' μ(l, l')·messages, (b, L, N), from those of labels 1 … L − 1, (rows, b·P).

    ``rest`` (N,) is what the messages of all labels sum to.
    """
    others = by_problem(message, layout)  # (b, L − 1, N)
    whole = torch.cat([rest - others.sum(1, keepdim=True), others], 1)
    return torch.einsum("lm,bmn->bln", compatibility, whole)


def by_problem(values: torch.Tensor, layout: BatchLayout) -> torch.Tensor:
    """Return the channels of some problems, (rows, b·P), as (b, L − 1, N)."""
    shaped = values[: layout.voxels].unflatten(1, (-1, layout.padded))
    return shaped[:, :, : layout.n_labels - 1].permute(1, 2, 0)


def fixed_point(marginals: torch.Tensor) -> torch.Tensor:
    """Return marginals as whole numbers of 2⁻³⁰."""
    return torch.round(marginals.double() * (1 << FRACTION_BITS)).long()


def read_change(changes: torch.Tensor | None, problems: int, voxels: int) -> Change:
    """Return what ``update`` saw of (3, B) changes; it sees none where it does not watch."""
    if changes is None:
        nothing = np.zeros(problems)
        return Change(nothing, nothing, nothing)
    maximum, foreground, switched = changes.cpu().numpy().astype(np.float64)
    return Change(maximum, foreground, switched / voxels)


def add_votes(votes: torch.Tensor, counts: NDArray[np.uint32]) -> None:
    """Add votes on the device to counts on the host, both (L, N)."""
    carried = on_host(votes)

    def add(label: int) -> None:
        np.add(counts[label], carried[label], out=counts[label], casting="unsafe")

    list(threads().map(add, range(len(counts))))


def in_mask_order(values: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """Return (…, N) values in the order of the mask."""
    out = torch.empty_like(values, memory_format=torch.contiguous_format)
    out[..., order] = values
    return out
