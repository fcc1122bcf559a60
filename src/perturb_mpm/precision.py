"""Sampling until it is enough: how precise, with which confidence, and what that takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from perturb_mpm import checks
from perturb_mpm.anytime import all_within, distinct_counts

Scope = Literal["voxel", "map"]

_SHARES = 1025  # at how many vote shares the worst one is looked for


@dataclass(frozen=True)
class Precision:
    """Every label's frequency known to ±epsilon with confidence 1 − delta: what ``until`` takes.

    It is reached when, at every voxel of the mask and for every label, the anytime interval lies
    within ±epsilon of the frequency. With ``scope="voxel"`` each label's interval is at level
    delta/L: for any one voxel all of them hold with probability at least 1 − delta, at the moment
    sampling stops too, but on average a share of up to delta of an image's voxels may be further
    off. With ``scope="map"`` the level is delta/(L·V), and all V voxels hold together.

    The frequencies are those of independent samples' votes, and the precision is about their own
    law: it does not say how far that law is from the CRF's distribution.
    """

    epsilon: float
    delta: float = 0.05
    scope: Scope = "voxel"

    def __post_init__(self) -> None:
        epsilon = checks.number(self.epsilon, "epsilon of Precision", positive=True, below=1)
        delta = checks.number(self.delta, "delta of Precision", positive=True, below=1)
        checks.choice(self.scope, "scope of Precision", get_args(Scope))
        object.__setattr__(self, "epsilon", epsilon)
        object.__setattr__(self, "delta", delta)

    def level(self, labels: int, voxels: int = 1) -> float:
        """Return the level of each label's interval: delta/L, or delta/(L·V) for a whole map."""
        labels = checks.integer(labels, "labels", minimum=checks.FEWEST_LABELS)
        voxels = checks.integer(voxels, "voxels", minimum=1)
        return self.delta / (labels * (voxels if self.scope == "map" else 1))

    def reached(self, counts: ArrayLike, samples: int, mask: ArrayLike | None = None) -> bool:
        """Return whether the votes of ``samples`` samples, (L, …), are as precise as asked for.

        Where a ``mask`` (…) is given only the voxels inside count. Ask as often as you like.
        """
        votes = checks.numeric(counts, "counts")
        if votes.ndim < 2:
            raise ValueError(f"counts must be (labels, voxels…), got shape {votes.shape}")
        if mask is not None:
            inside = np.asarray(mask) != 0
            if inside.shape != votes.shape[1:]:
                raise ValueError(f"mask must have the shape {votes.shape[1:]}, got {inside.shape}")
            if not inside.any():
                raise ValueError("mask must contain at least one voxel, got an empty mask")
            votes = votes[:, inside]
        distinct = distinct_counts(votes, samples)
        level = self.level(len(votes), votes[0].size)
        return all_within(distinct, samples, self.epsilon, level)

    def samples_to_reach(self, labels: int, voxels: int = 1, share: float | None = None) -> int:
        """Return how many samples it takes when the votes are split in the worst way.

        The worst split is close to half and half, and some voxel of most images comes near it.
        Where a ``share`` is given, it is that of the label whose share is nearest to ½; 0 gives
        what unanimous votes take.
        """
        level = self.level(labels, voxels)
        if share is None:
            shares = np.linspace(0.0, 0.5, _SHARES)
        else:
            share = checks.number(share, "share", minimum=0)
            if share > 1:
                raise ValueError(f"share must be at most 1, got {share}")
            shares = np.array([share])

        def enough(n: int) -> bool:
            return all_within(shares * n, n, self.epsilon, level)

        most = 1
        while not enough(most):
            most *= 2
        fewest = most // 2  # not enough, or 0
        while most - fewest > 1:
            middle = (fewest + most) // 2
            if enough(middle):
                most = middle
            else:
                fewest = middle
        return most

    def check_reachable(self, maximum: int, labels: int, voxels: int = 1) -> None:
        """Refuse a precision that ``maximum`` samples may fail to reach, and say how many do.

        A higher maximum costs nothing where fewer samples turn out to be enough.
        """
        maximum = checks.integer(maximum, "maximum", minimum=1)
        worst = self.samples_to_reach(labels, voxels)
        if worst > maximum:
            raise ValueError(
                f"{self} must be reachable within {maximum} samples, got one that takes up to "
                f"{worst} ({self.samples_to_reach(labels, voxels, share=0.0)} where all votes "
                f"agree): allow {worst} samples or widen epsilon"
            )
