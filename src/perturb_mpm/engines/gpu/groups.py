"""All kernels of a CRF side by side: which share a compatibility, and how it moves the logits.

Kernels with a Potts compatibility form one group, with their weights; every other compatibility is
a group of its own. With y the messages of a group (labels 1 … L−1, what label 0 has is left of the
row sum R), the pairwise energy of label l against label 0's is

    Σ_{l'≥1} A[l, l'] y_l' + c[l] R
    c[l] = μ[l, 0] − μ[0, 0],   A[l, l'] = μ[l, l'] − μ[0, l'] − c[l]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from perturb_mpm.engines.gpu.layout import Layout
from perturb_mpm.engines.gpu.update_kernel import Coupling
from perturb_mpm.model import PairwiseTerm


@dataclass(frozen=True)
class Group:
    """Kernels of one compatibility."""

    members: list[int]  # the kernels
    weights: list[float]  # what multiplies each
    compatibility: NDArray[np.float64]  # (L, L)
    is_potts: bool


def groups_of(terms: Sequence[PairwiseTerm], n_labels: int) -> list[Group]:
    """Return at least one group, without kernels where the CRF has none."""
    potts = [(m, t.potts_weight) for m, t in enumerate(terms) if t.potts_weight is not None]
    groups = [
        Group([m], [1.0], term.compatibility, is_potts=False)
        for m, term in enumerate(terms)
        if term.potts_weight is None
    ]
    if potts or not groups:
        members, weights = [m for m, _ in potts], [w for _, w in potts]
        groups.insert(0, Group(members, weights, 1 - np.eye(n_labels), is_potts=True))
    return groups


def coupling_of(
    groups: Sequence[Group],
    filters: Sequence[Any],
    layout: Layout,
    device: torch.device,
    *,
    self_term: bool,
) -> Coupling:
    """Return what messages do to logits; ``filters`` have ``total`` and ``diagonal``, (N,) each."""
    labels, padded = layout.n_labels - 1, layout.padded
    mu = np.array([g.compatibility for g in groups])  # (G, L, L)
    offsets = np.zeros((len(groups), padded), dtype=np.float32)
    matrices = np.zeros((len(groups), padded, padded), dtype=np.float32)
    c = mu[:, 1:, 0] - mu[:, :1, 0]
    offsets[:, :labels] = c
    matrices[:, :labels, :labels] = mu[:, 1:, 1:] - mu[:, :1, 1:] - c[:, :, np.newaxis]
    totals = torch.zeros((len(groups), layout.rows), dtype=torch.float32, device=device)
    diagonals = torch.zeros_like(totals)
    for g, group in enumerate(groups):
        for m, weight in zip(group.members, group.weights, strict=True):
            totals[g, : layout.voxels] += weight * filters[m].total
            if not self_term:
                diagonals[g, : layout.voxels] += weight * filters[m].diagonal
    return Coupling(
        self_term,
        all(group.is_potts for group in groups),
        torch.from_numpy(matrices).to(device),
        torch.from_numpy(offsets).to(device),
        torch.from_numpy(mu.astype(np.float32)).to(device),
        totals,
        diagonals,
    )
