"""The QU-BraTS measure: what is gained, and lost, by leaving uncertain voxels out."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perturb_mpm import checks
from perturb_mpm.evaluation.overlap import mask_pair

STEPS = 100


@dataclass(frozen=True)
class FilteredCurve:
    """Dice and lost true voxels when voxels above each threshold 0 … 100 are left out."""

    dice: NDArray[np.float64]  # (101,)
    filtered_true_positives: NDArray[np.float64]  # (101,) the share of true positives left out
    filtered_true_negatives: NDArray[np.float64]  # (101,)

    @property
    def dice_area(self) -> float:
        """The area under the Dice curve, 0 … 1, higher is better."""
        return _area(self.dice)

    @property
    def true_positive_area(self) -> float:
        """The area under the share of filtered true positives, lower is better."""
        return _area(self.filtered_true_positives)

    @property
    def true_negative_area(self) -> float:
        """The area under the share of filtered true negatives, lower is better."""
        return _area(self.filtered_true_negatives)

    @property
    def score(self) -> float:
        """The mean of the Dice area and one minus the two others."""
        return (self.dice_area + 2 - self.true_positive_area - self.true_negative_area) / 3


def filtered_curve(
    prediction: ArrayLike, truth: ArrayLike, uncertainty: ArrayLike
) -> FilteredCurve:
    """Leave voxels out whose uncertainty (0 … 100) is above 0, 1, … 100 (Mehta et al. 2022).

    All three are over the voxels of the brain. Dice is 1 where nothing is left of both masks. A map
    that is 0 almost everywhere loses hardly any true negative: read it beside the average
    precision.

    Examples
    --------
    >>> from perturb_mpm.evaluation import filtered_curve
    >>> predicted, truth = np.array([[1, 1, 0], [1, 0, 0]], bool)
    >>> curve = filtered_curve(predicted, truth, uncertainty=[0.0, 80.0, 10.0])
    >>> curve.dice[[50, 100]].round(3)  # without the uncertain voxel, and with it
    array([1.   , 0.667])
    """
    predicted, true = mask_pair(prediction, truth, ("prediction", "truth"))
    u = checks.numeric(uncertainty, "uncertainty")
    if u.shape != true.shape:
        raise ValueError(f"uncertainty must have shape {true.shape}, got {u.shape}")
    checks.finite(u, "uncertainty")
    if u.size and (u.min() < 0 or u.max() > STEPS):
        raise ValueError(f"uncertainty must lie between 0 and {STEPS}, got {u.min()} to {u.max()}")
    # A voxel stays from the first whole threshold that is not below its uncertainty.
    first = np.ceil(np.round(u, 9)).astype(np.int64)
    both, neither = predicted & true, ~predicted & ~true
    hits, misses = _kept(first[both]), _kept(first[predicted ^ true])
    rejections = _kept(first[neither])
    sizes = 2 * hits + misses
    dice = np.ones(STEPS + 1)
    np.divide(2 * hits, sizes, out=dice, where=sizes > 0)
    return FilteredCurve(dice, _lost(hits), _lost(rejections))


def binary_entropy_percent(share: ArrayLike) -> NDArray[np.float64]:
    """Return 100·h2(p) of the share p of samples that hold a region: the uncertainty it takes.

    Examples
    --------
    >>> from perturb_mpm.evaluation import binary_entropy_percent
    >>> binary_entropy_percent([0.0, 0.25, 0.5]).round(1)
    array([  0. ,  81.1, 100. ])
    """
    p = np.asarray(share, dtype=np.float64)
    if p.size and (p.min() < 0 or p.max() > 1):
        raise ValueError(f"share must lie between 0 and 1, got {p.min()} to {p.max()}")
    result = np.zeros(p.shape)
    for part in (p, 1 - p):
        result -= part * np.log2(part, out=np.zeros_like(part), where=part > 0)
    return np.asarray(100 * np.clip(result, 0, 1))


def _kept(first: NDArray[np.int64]) -> NDArray[np.int64]:
    """Count the voxels left at each threshold."""
    return np.cumsum(np.bincount(first, minlength=STEPS + 1))


def _lost(kept: NDArray[np.int64]) -> NDArray[np.float64]:
    everything = kept[-1]
    return (everything - kept) / everything if everything else np.zeros(len(kept))


def _area(values: NDArray[np.float64]) -> float:
    area = float(np.trapezoid(values)) / STEPS
    return area if math.isfinite(area) else math.nan
