"""Kernels side by side: which share a compatibility, and how that moves the logits.

Kernels with a Potts compatibility form one group, with their weights; every other compatibility is
a group of its own. With y the messages of a group (labels 1 … L−1, what label 0 has is left of the
row sum R), the pairwise energy of label l against label 0's is

    Σ_{l'≥1} A[l, l'] y_l' + c[l] R
    c[l] = μ[l, 0] − μ[0, 0],   A[l, l'] = μ[l, l'] − μ[0, l'] − c[l]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.model import PairwiseTerm

LARGEST_HALF = 6e4
DECISIVE = 30.0  # nats: e⁻³⁰ is nothing beside 1 in float32


@dataclass(frozen=True)
class KernelGroup:
    """Kernels of one compatibility."""

    members: list[int]  # the kernels
    weights: list[float]  # what multiplies each
    compatibility: NDArray[np.float64]  # (L, L)
    is_potts: bool


def groups_of(terms: Sequence[PairwiseTerm], n_labels: int) -> list[KernelGroup]:
    """Return at least one group, without kernels where the CRF has none."""
    potts = [(m, t.potts_weight) for m, t in enumerate(terms) if t.potts_weight is not None]
    groups = [
        KernelGroup([m], [1.0], term.compatibility, is_potts=False)
        for m, term in enumerate(terms)
        if term.potts_weight is None
    ]
    if potts or not groups:
        members, weights = [m for m, _ in potts], [w for _, w in potts]
        groups.insert(0, KernelGroup(members, weights, 1 - np.eye(n_labels), is_potts=True))
    return groups


def against_first_label(
    groups: Sequence[KernelGroup],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return A (G, L − 1, L − 1) and c (G, L − 1) of the groups' compatibilities."""
    mu = np.array([group.compatibility for group in groups])  # (G, L, L)
    offsets = mu[:, 1:, 0] - mu[:, :1, 0]
    matrices = mu[:, 1:, 1:] - mu[:, :1, 1:] - offsets[:, :, np.newaxis]
    return matrices, offsets


def energy_ceiling(strongest_message: float) -> float:
    """Return how far above a voxel's lowest energy another one still makes a difference.

    ``strongest_message`` bounds how far the kernels can move the log-odds of two labels.
    """
    return min(strongest_message * 2 + DECISIVE, LARGEST_HALF)
