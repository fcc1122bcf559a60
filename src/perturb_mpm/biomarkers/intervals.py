"""Volume intervals: how good sampled ones are, and conformal ones that keep their promise."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perturb_mpm import checks

OFFSET_ML = 0.1
"""Volumes are compared as log(V + 0.1 ml): a region of 0 ml has a logarithm."""


def crps(samples: ArrayLike, truth: float) -> float:
    """Return the continuous ranked probability score E|X − y| − ½ E|X − X′|, lower is better.

    Over all ordered pairs of samples (the score of the empirical distribution; Gneiting & Raftery
    2007). For one sample it is the absolute error. It has the unit of the values.

    Examples
    --------
    >>> from perturb_mpm.biomarkers import crps
    >>> crps([9.0, 10.0, 11.0], truth=10.0) < crps([19.0, 20.0, 21.0], truth=10.0)
    True
    """
    x = np.sort(checks.floats(samples, "samples").astype(np.float64).ravel())
    n = len(x)
    if n == 0:
        raise ValueError("samples must have at least one value, got none")
    y = checks.number(truth, "truth")
    # Σ_{i<j} (x_j − x_i) of sorted values, without forming the pairs.
    spread = float(((2 * np.arange(n) - n + 1) * x).sum()) * 2 / n**2
    return float(np.abs(x - y).mean()) - spread / 2


def coverage(lower: ArrayLike, upper: ArrayLike, truth: ArrayLike) -> float:
    """Return the share of cases whose truth lies within its interval.

    Examples
    --------
    >>> from perturb_mpm.biomarkers import coverage
    >>> coverage([1.0, 2.0], [3.0, 4.0], truth=[2.0, 5.0])
    0.5
    """
    low, high, value = (np.asarray(each, dtype=np.float64) for each in (lower, upper, truth))
    if not low.shape == high.shape == value.shape or low.size == 0:
        raise ValueError(
            "lower, upper and truth must have the same length, at least 1, "
            f"got {low.shape}, {high.shape} and {value.shape}"
        )
    return float(np.mean((low <= value) & (value <= high)))


@dataclass(frozen=True)
class ConformalWidening:
    """What to add to both ends of sampled intervals, on the scale log(V + offset).

    Examples
    --------
    >>> from perturb_mpm.biomarkers import ConformalWidening
    >>> learned = ConformalWidening(amount=0.1, offset_ml=0.1, confidence=0.95, cases=40)
    >>> low, high = learned.widen([10.0], [12.0])
    >>> low.round(1), high.round(1)
    (array([9.]), array([13.3]))
    """

    amount: float
    """Infinite where the calibration cohort is too small for the confidence asked for."""
    offset_ml: float
    confidence: float
    cases: int

    def widen(self, lower_ml: ArrayLike, upper_ml: ArrayLike) -> tuple[NDArray[np.float64], ...]:
        """Return the widened intervals in ml; a lower end never falls below 0."""
        low = np.log(_volumes(lower_ml, "lower_ml") + self.offset_ml) - self.amount
        high = np.log(_volumes(upper_ml, "upper_ml") + self.offset_ml) + self.amount
        return (
            np.maximum(np.exp(low) - self.offset_ml, 0.0),
            np.maximum(np.exp(high) - self.offset_ml, 0.0),
        )


def conformal_widening(
    lower_ml: ArrayLike,
    upper_ml: ArrayLike,
    truth_ml: ArrayLike,
    confidence: float = 0.95,
    offset_ml: float = OFFSET_ML,
) -> ConformalWidening:
    """Learn by how much sampled intervals must grow, on a calibration cohort.

    Split-conformal quantile regression (Romano et al. 2019): the score of a case is by how much the
    truth lies outside its interval (negative inside), and the amount is the ⌈(n + 1)(1 − α)⌉-th
    smallest score. New cases like these are then covered with at least that confidence, whatever
    the samples are worth. 19 cases are the fewest for 95 %. ``offset_ml`` keeps volumes of 0 on the
    logarithmic scale.

    Examples
    --------
    >>> from perturb_mpm.biomarkers import conformal_widening
    >>> truth = np.linspace(5.0, 50.0, 40)
    >>> learned = conformal_widening(0.95 * truth, 0.99 * truth, truth)  # never wide enough
    >>> low, high = learned.widen([9.5], [9.9])
    >>> bool(high[0] > 10.0), learned.cases
    (True, 40)
    """
    confidence = checks.number(confidence, "confidence", positive=True, below=1)
    offset = checks.number(offset_ml, "offset_ml", positive=True)
    low, high, value = (
        np.log(_volumes(each, name) + offset)
        for each, name in (
            (lower_ml, "lower_ml"),
            (upper_ml, "upper_ml"),
            (truth_ml, "truth_ml"),
        )
    )
    if not low.shape == high.shape == value.shape:
        raise ValueError(
            "lower_ml, upper_ml and truth_ml must have the same length, "
            f"got {len(low)}, {len(high)} and {len(value)}"
        )
    n = len(value)
    scores = np.sort(np.maximum(low - value, value - high))
    # Rounded first, or 20 × 0.95 counts as more than 19.
    rank = math.ceil(round((n + 1) * confidence, 9))
    amount = float(scores[rank - 1]) if rank <= n else math.inf
    return ConformalWidening(amount, offset, confidence, n)


def _volumes(value: ArrayLike, name: str) -> NDArray[np.float64]:
    array = np.atleast_1d(checks.floats(value, name)).astype(np.float64)
    if array.ndim != 1 or len(array) == 0 or (array < 0).any():
        raise ValueError(f"{name} must be a list of volumes of at least 0, got {array}")
    return array
