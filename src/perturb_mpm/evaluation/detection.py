"""Does uncertainty find the errors? Thresholds, curves, areas, overlap and patches."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perturb_mpm import checks
from perturb_mpm.evaluation.overlap import Confusion, confusion

THRESHOLDS = (0.05, *(round(0.1 * step, 1) for step in range(1, 10)), 0.95)
"""Of a normalised uncertainty, as Jungo & Reyes 2019 take them."""


def error_detection(uncertainty: ArrayLike, error: ArrayLike, threshold: float) -> Confusion:
    """Count errors (second) against voxels more uncertain than ``threshold`` (first).

    Its ``sensitivity`` is p(uncertain | error) and its ``specificity`` p(certain | correct), as in
    Meier et al. 2017; NaN where there is no error, or nothing but errors.

    Examples
    --------
    >>> from perturb_mpm.evaluation import error_detection
    >>> error = [True, False, False, True]
    >>> found = error_detection([0.9, 0.1, 0.8, 0.0], error, threshold=0.5)
    >>> found.sensitivity, found.specificity
    (0.5, 0.5)
    """
    u, e = _pair(uncertainty, error)
    return confusion(u > checks.number(threshold, "threshold"), e)


@dataclass(frozen=True)
class DetectionCurve:
    """Errors found at every threshold, from the strictest (nothing is uncertain) downwards."""

    thresholds: NDArray[np.float64]  # (K,) decreasing; the first is infinite
    found: NDArray[np.int64]  # (K,) errors with an uncertainty of at least the threshold
    alarms: NDArray[np.int64]  # (K,) correct voxels with one
    errors: int
    correct: int

    @property
    def sensitivity(self) -> NDArray[np.float64]:
        """p(u ≥ threshold | error), (K,); NaN without errors."""
        return _shares(self.found, self.errors)

    @property
    def specificity(self) -> NDArray[np.float64]:
        """p(u < threshold | correct), (K,); NaN where all are errors."""
        return 1 - _shares(self.alarms, self.correct)

    @property
    def precision(self) -> NDArray[np.float64]:
        """p(error | u ≥ threshold), (K,); 1 where nothing is that uncertain, by convention."""
        named = self.found + self.alarms
        share = np.ones(len(named))
        np.divide(self.found, named, out=share, where=named > 0)
        return share

    @property
    def auroc(self) -> float:
        """The area under the ROC curve: p(u of an error > u of a correct voxel), ties half."""
        if self.errors == 0 or self.correct == 0:
            return math.nan
        return float(np.trapezoid(self.sensitivity, 1 - self.specificity))

    @property
    def average_precision(self) -> float:
        """Σ (R_k − R_{k−1})·P_k, the step-wise area under precision and recall."""
        if self.errors == 0:
            return math.nan
        return float((np.diff(self.sensitivity) * self.precision[1:]).sum())

    @property
    def prevalence(self) -> float:
        """The share of errors: the average precision of a useless uncertainty."""
        voxels = self.errors + self.correct
        return self.errors / voxels if voxels else math.nan

    def sensitivity_at(self, specificity: float) -> float:
        """Return the sensitivity at a given specificity, interpolated along the ROC curve."""
        target = checks.number(specificity, "specificity", minimum=0, maximum=1)
        if self.errors == 0 or self.correct == 0:
            return math.nan
        return float(np.interp(1 - target, 1 - self.specificity, self.sensitivity))


def detection_curve(uncertainty: ArrayLike, error: ArrayLike) -> DetectionCurve:
    """Return how many errors and correct voxels each threshold names, one point a distinct value.

    Equal uncertainties move together, so a map that is 0 almost everywhere gets no credit for an
    order it does not have.

    Examples
    --------
    >>> from perturb_mpm.evaluation import detection_curve
    >>> curve = detection_curve([0.9, 0.1, 0.8, 0.0], error=[True, False, False, False])
    >>> curve.auroc, curve.prevalence
    (1.0, 0.25)
    """
    u, e = _pair(uncertainty, error)
    values, where = np.unique(u.ravel(), return_inverse=True)
    every = np.bincount(where, minlength=len(values))[::-1]
    wrong = np.bincount(where, weights=e.ravel(), minlength=len(values))[::-1].astype(np.int64)
    found = np.concatenate([[0], np.cumsum(wrong)])
    alarms = np.concatenate([[0], np.cumsum(every - wrong)])
    thresholds = np.concatenate([[math.inf], values[::-1].astype(np.float64)])
    return DetectionCurve(thresholds, found, alarms, int(found[-1]), int(alarms[-1]))


def auroc(uncertainty: ArrayLike, error: ArrayLike) -> float:
    """Return the tie-correct area under the ROC curve; NaN without errors or without hits.

    Examples
    --------
    >>> from perturb_mpm.evaluation import auroc
    >>> round(auroc([0.9, 0.1, 0.8, 0.0], error=[False, False, True, False]), 3)
    0.667
    """
    return detection_curve(uncertainty, error).auroc


def average_precision(uncertainty: ArrayLike, error: ArrayLike) -> float:
    """Return the average precision (AUPRC) of finding errors; NaN without errors.

    Examples
    --------
    >>> from perturb_mpm.evaluation import average_precision
    >>> average_precision([0.9, 0.1, 0.8, 0.0], error=[False, False, True, False])
    0.5
    """
    return detection_curve(uncertainty, error).average_precision


def _pair(
    uncertainty: ArrayLike, error: ArrayLike
) -> tuple[NDArray[np.floating], NDArray[np.bool_]]:
    u, e = np.asarray(uncertainty), np.asarray(error)
    if e.dtype != np.bool_:
        raise TypeError(f"error must be an array of booleans, got dtype {e.dtype}")
    if u.shape != e.shape:
        raise ValueError(
            f"uncertainty and error must have the same shape, got {u.shape} and {e.shape}"
        )
    checks.finite(checks.numeric(u, "uncertainty"), "uncertainty")
    return u, e


def _shares(part: NDArray[np.int64], whole: int) -> NDArray[np.float64]:
    return part / whole if whole else np.full(len(part), math.nan)


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

    Examples
    --------
    >>> from perturb_mpm.evaluation import error_overlap
    >>> error = [True, False, True, False]
    >>> found = error_overlap([0.9, 0.1, 0.8, 0.0], error, thresholds=[0.05, 0.5])
    >>> found.best, found.best_threshold
    (1.0, 0.5)
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

    Examples
    --------
    >>> from perturb_mpm.evaluation import patch_counts
    >>> uncertainty, correct = np.zeros((4, 8)), np.ones((4, 8), bool)
    >>> uncertainty[:, 4:], correct[:, 4:] = 1.0, False
    >>> patch_counts(uncertainty, correct, np.ones((4, 8), bool), threshold=0.5).pavpu
    1.0
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
