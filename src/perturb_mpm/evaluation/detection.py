"""Does uncertainty find the errors? Thresholds, curves, areas, overlap, patches, filtering."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perturb_mpm import checks
from perturb_mpm.evaluation.masks import (
    Confusion,
    confusion,
    mask_pair,
    overlap_ratios,
    share_or_nan,
)
from perturb_mpm.evaluation.reliability import LESION_BINS, Reliability, reliability

THRESHOLDS = (0.05, *(round(0.1 * step, 1) for step in range(1, 10)), 0.95)
"""Of a normalised uncertainty, as Jungo & Reyes 2019 take them."""
FILTER_STEPS = 100  # thresholds of QU-BraTS are the whole numbers from 0 to this


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
        return overlap_ratios(self.found, self.found + self.alarms)

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
        return share_or_nan(self.errors, self.errors + self.correct)

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


def _pair(
    uncertainty: ArrayLike, error: ArrayLike
) -> tuple[NDArray[np.floating], NDArray[np.bool_]]:
    u, e = np.asarray(uncertainty), np.asarray(error)
    if e.dtype != np.bool_:
        raise TypeError(f"error must be an array of booleans, got dtype {e.dtype}")
    checks.same_shape(uncertainty=u, error=e)
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
    checks.between(u, "uncertainty", slack=1e-9)
    at = checks.floats(thresholds, "thresholds").astype(np.float64)
    curve = detection_curve(u, error)
    rising = curve.thresholds[::-1]  # u is above τ where it is at least the next value
    position = len(rising) - 1 - np.searchsorted(rising, at, side="right")
    found, alarms = curve.found[position], curve.alarms[position]
    return ErrorOverlap(at, overlap_ratios(2 * found, curve.errors + found + alarms))


@dataclass(frozen=True, eq=False)
class LesionDetection:
    """How well candidates of stated probabilities find the lesions of some scans.

    Examples
    --------
    >>> from perturb_mpm.evaluation import lesion_detection
    >>> found = lesion_detection([0.9, 0.6, 0.2], [True, False, True], missed=1, scans=2)
    >>> round(found.average_precision, 3)
    0.556
    >>> found.sensitivity_at(0.5)  # one false alarm in two scans
    0.6666666666666666
    """

    thresholds: NDArray[np.float64]  # (K,) falling
    sensitivity: NDArray[np.float64]  # (K,) share of all lesions found
    alarms: NDArray[np.float64]  # (K,) false ones for each scan
    average_precision: float
    """The area below precision over recall; lesions without a candidate are never recalled."""
    reliability: Reliability

    def sensitivity_at(self, alarms: float) -> float:
        """Return the share of lesions found at so many false alarms for each scan (FROC)."""
        allowed = self.sensitivity[self.alarms <= alarms + 1e-9]
        return float(allowed.max(initial=0.0))


def lesion_detection(
    probability: ArrayLike, hit: ArrayLike, missed: int, scans: int
) -> LesionDetection:
    """Score candidates (C,) of several scans: FROC, average precision, reliability.

    ``hit`` says which the truth has; ``missed`` counts true lesions without a candidate.

    Examples
    --------
    >>> from perturb_mpm.evaluation import lesion_detection
    >>> found = lesion_detection([0.9, 0.2], [True, False], missed=1, scans=1)
    >>> found.average_precision, found.sensitivity.tolist()
    (0.5, [0.5, 0.5])
    """
    p = checks.numeric(probability, "probability").ravel().astype(np.float64)
    there = np.asarray(hit, dtype=np.bool_).ravel()
    missed = checks.integer(missed, "missed", minimum=0)
    scans = checks.integer(scans, "scans", minimum=1)
    curve = reliability(p, there, LESION_BINS)
    thresholds = np.unique(p)[::-1]
    found = np.array([np.count_nonzero(there & (p >= each)) for each in thresholds])
    called = np.array([np.count_nonzero(p >= each) for each in thresholds])
    lesions = int(there.sum()) + missed
    recall = found / lesions if lesions else np.full(len(found), math.nan)
    precision = found / np.maximum(called, 1)
    steps = np.diff(recall, prepend=0.0)
    return LesionDetection(
        thresholds, recall, (called - found) / scans, float(steps @ precision), curve
    )


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
        certain = self.accurate_certain + self.inaccurate_certain
        return share_or_nan(self.accurate_certain, certain)

    @property
    def uncertain_given_inaccurate(self) -> float:
        """p(uncertain | inaccurate); NaN where every patch is accurate."""
        inaccurate = self.inaccurate_uncertain + self.inaccurate_certain
        return share_or_nan(self.inaccurate_uncertain, inaccurate)

    @property
    def pavpu(self) -> float:
        """The share of patches that are accurate and certain, or inaccurate and uncertain."""
        right = self.accurate_certain + self.inaccurate_uncertain
        return share_or_nan(right, right + self.accurate_uncertain + self.inaccurate_certain)


def patch_counts(
    uncertainty: ArrayLike, correct: ArrayLike, inside: ArrayLike, threshold: float, width: int = 4
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
    checks.same_shape(uncertainty=u, correct=right, inside=brain)
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
    checks.between(u, "uncertainty", 0, FILTER_STEPS)
    # A voxel stays from the first whole threshold that is not below its uncertainty.
    first = np.ceil(np.round(u, 9)).astype(np.int64)
    both, neither = predicted & true, ~predicted & ~true
    hits, misses = _count_remaining(first[both]), _count_remaining(first[predicted ^ true])
    rejections = _count_remaining(first[neither])
    dice = overlap_ratios(2 * hits, 2 * hits + misses)
    return FilteredCurve(dice, _lost(hits), _lost(rejections))


def binary_entropy_percent(share: ArrayLike) -> NDArray[np.float64]:
    """Return 100·h2(p) of the share p of samples with a voxel in a region.

    Examples
    --------
    >>> from perturb_mpm.evaluation import binary_entropy_percent
    >>> binary_entropy_percent([0.0, 0.25, 0.5]).round(1)
    array([  0. ,  81.1, 100. ])
    """
    p = np.asarray(share, dtype=np.float64)
    checks.between(p, "share")
    result = np.zeros(p.shape)
    for part in (p, 1 - p):
        result -= part * np.log2(part, out=np.zeros_like(part), where=part > 0)
    return np.asarray(100 * np.clip(result, 0, 1))


def _count_remaining(first: NDArray[np.int64]) -> NDArray[np.int64]:
    """Count the voxels left at each threshold."""
    return np.cumsum(np.bincount(first, minlength=FILTER_STEPS + 1))


def _lost(remaining: NDArray[np.int64]) -> NDArray[np.float64]:
    everything = remaining[-1]
    return (everything - remaining) / everything if everything else np.zeros(len(remaining))


def _area(values: NDArray[np.float64]) -> float:
    area = float(np.trapezoid(values)) / FILTER_STEPS
    return area if math.isfinite(area) else math.nan
