"""Patch accuracy against patch uncertainty (PAvPU)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perturb_mpm import checks


@dataclass(frozen=True)
class PatchCounts:
    """Patches that are accurate or not, certain or not."""

    accurate_certain: int
    accurate_uncertain: int
    inaccurate_certain: int
    inaccurate_uncertain: int

    @property
    def accurate_given_certain(self) -> float:
        """p(accurate | certain); NaN where no patch is certain."""
        return _share(self.accurate_certain, self.inaccurate_certain)

    @property
    def uncertain_given_inaccurate(self) -> float:
        """p(uncertain | inaccurate); NaN where every patch is accurate."""
        return _share(self.inaccurate_uncertain, self.inaccurate_certain)

    @property
    def pavpu(self) -> float:
        """The share of patches that are accurate and certain, or inaccurate and uncertain."""
        return _share(
            self.accurate_certain + self.inaccurate_uncertain,
            self.accurate_uncertain + self.inaccurate_certain,
        )


def patch_counts(
    uncertainty: ArrayLike,
    correct: ArrayLike,
    inside: ArrayLike,
    threshold: float,
    width: int = 4,
) -> PatchCounts:
    """Count patches of ``width`` voxels a side (Mukhoti & Gal 2018).

    A patch is accurate where more than half of its voxels inside the mask are right, and uncertain
    where their mean uncertainty is above ``threshold``. Patches with no voxel inside do not count.
    With a width of 1 these are the counts of ``error_detection``.
    """
    u, right, brain = (np.asarray(each) for each in (uncertainty, correct, inside))
    if not u.shape == right.shape == brain.shape:
        raise ValueError(
            "uncertainty, correct and inside must have the same shape, "
            f"got {u.shape}, {right.shape} and {brain.shape}"
        )
    width = checks.integer(width, "width", minimum=1)
    threshold = checks.number(threshold, "threshold")
    voxels = _patch_sums(brain.astype(np.float64), width)
    filled = voxels > 0
    accuracy = _patch_sums(np.where(brain, right, 0).astype(np.float64), width)[filled]
    level = _patch_sums(np.where(brain, u, 0).astype(np.float64), width)[filled]
    accurate = accuracy > 0.5 * voxels[filled]
    uncertain = level > threshold * voxels[filled]
    return PatchCounts(
        int(np.sum(accurate & ~uncertain)),
        int(np.sum(accurate & uncertain)),
        int(np.sum(~accurate & ~uncertain)),
        int(np.sum(~accurate & uncertain)),
    )


def _patch_sums(values: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    for axis, size in enumerate(values.shape):
        values = np.add.reduceat(values, np.arange(0, size, width), axis=axis)
    return values


def _share(part: int, rest: int) -> float:
    return part / (part + rest) if part + rest else math.nan
