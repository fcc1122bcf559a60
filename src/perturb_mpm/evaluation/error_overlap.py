"""Uncertainty–error overlap: Dice of the uncertain voxels with the wrong ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perturb_mpm import checks
from perturb_mpm.evaluation.detection import detection_curve

THRESHOLDS = (0.05, *(round(0.1 * step, 1) for step in range(1, 10)), 0.95)


@dataclass(frozen=True)
class ErrorOverlap:
    """The overlap at each threshold."""

    thresholds: NDArray[np.float64]  # (K,)
    overlap: NDArray[np.float64]  # (K,)

    @property
    def best(self) -> float:
        """The largest overlap; for a cohort take the threshold best on the mean of all cases."""
        return float(self.overlap.max())

    @property
    def best_threshold(self) -> float:
        """The threshold of the largest overlap."""
        return float(self.thresholds[int(self.overlap.argmax())])


def error_overlap(
    uncertainty: ArrayLike, error: ArrayLike, thresholds: ArrayLike = THRESHOLDS
) -> ErrorOverlap:
    """Return Dice(error, uncertainty > τ) for each τ (Jungo & Reyes 2019).

    The uncertainty is normalised, 0 … 1 (entropy over log2 L). Where there is neither an error nor
    an uncertain voxel the overlap is 1.
    """
    u = checks.numeric(uncertainty, "uncertainty")
    if u.size and (u.min() < 0 or u.max() > 1 + 1e-9):
        raise ValueError(f"uncertainty must lie between 0 and 1, got {u.min()} to {u.max()}")
    at = checks.floats(thresholds, "thresholds").astype(np.float64)
    curve = detection_curve(u, error)
    rising = curve.thresholds[::-1]  # u is above τ where it is at least the next value
    position = len(rising) - 1 - np.searchsorted(rising, at, side="right")
    found, alarms = curve.found[position], curve.alarms[position]
    sizes = curve.errors + found + alarms
    overlap = np.ones(len(at))
    np.divide(2 * found, sizes, out=overlap, where=sizes > 0)
    return ErrorOverlap(at, overlap)
