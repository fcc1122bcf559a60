"""Do probabilities mean what they say? Three measures share the name ECE: they are named apart."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perturb_mpm import checks

TOP_LABEL_BINS, FOREGROUND_BINS, CLASS_BINS, CURVAS_BINS, LESION_BINS = 15, 10, 20, 50, 5
_EDGE = 1e-9  # votes k/S sit on the edges of bins: 0.29·100 must not fall into bin 28


@dataclass(frozen=True)
class Reliability:
    """How often events of a stated probability happen, bin by bin; bins without any are NaN.

    Examples
    --------
    >>> from perturb_mpm.evaluation import top_label
    >>> curve = top_label(np.array([[0.9, 0.9], [0.1, 0.1]]), truth=np.array([0, 1]))
    >>> round(curve.expected_error, 2)  # sure of both, right once
    0.4
    """

    confidence: NDArray[np.float64]  # (B,) mean stated probability
    accuracy: NDArray[np.float64]  # (B,) how often it happened
    voxels: NDArray[np.int64]  # (B,)

    @property
    def expected_error(self) -> float:
        """ECE: the mean |accuracy − confidence| over voxels; NaN without voxels."""
        total = int(self.voxels.sum())
        return float(np.nansum(self.voxels * self._gaps) / total) if total else math.nan

    @property
    def average_error(self) -> float:
        """ACE: the mean over bins that are not empty."""
        return float(np.nanmean(self._gaps)) if self.voxels.any() else math.nan

    @property
    def largest_error(self) -> float:
        """MCE: the largest of any bin."""
        return float(np.nanmax(self._gaps)) if self.voxels.any() else math.nan

    @property
    def _gaps(self) -> NDArray[np.float64]:
        return np.abs(self.accuracy - self.confidence)

    def merge(self, other: Reliability) -> Reliability:
        """Return the curve of the voxels of both."""
        voxels = self.voxels + other.voxels

        def mean(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
            total = np.nan_to_num(a) * self.voxels + np.nan_to_num(b) * other.voxels
            return _means(total, voxels)

        return Reliability(
            mean(self.confidence, other.confidence), mean(self.accuracy, other.accuracy), voxels
        )


def reliability(probability: ArrayLike, happened: ArrayLike, bins: int) -> Reliability:
    """Return the reliability curve of stated probabilities; p = 1 falls into the last bin."""
    bins = checks.integer(bins, "bins", minimum=1)
    p = checks.numeric(probability, "probability").ravel()
    event = np.asarray(happened).ravel()
    checks.same_shape(probability=p, happened=event)
    checks.finite(p, "probability")
    checks.between(p, "probability", slack=1e-5)
    index = np.minimum((p * np.float64(bins) + _EDGE * bins).astype(np.int64), bins - 1)
    voxels = np.bincount(index, minlength=bins)

    def mean(weights: NDArray[Any]) -> NDArray[np.float64]:
        total = np.bincount(index, weights=weights.astype(np.float64), minlength=bins)
        return _means(total.astype(np.float64), voxels)

    return Reliability(mean(p), mean(event), voxels)


def top_label(
    marginals: NDArray[np.floating], truth: NDArray[np.integer], bins: int = TOP_LABEL_BINS
) -> Reliability:
    """Return how often the most probable label is right, by its probability.

    ``marginals`` (L, N), ``truth`` (N,). What TorchMetrics calls the calibration error.

    Examples
    --------
    >>> from perturb_mpm.evaluation import top_label
    >>> curve = top_label(np.array([[0.9, 0.9], [0.1, 0.1]]), truth=np.array([0, 0]))
    >>> round(curve.expected_error, 2)
    0.1
    """
    _check(marginals, truth)
    return reliability(marginals.max(axis=0), marginals.argmax(axis=0) == truth, bins)


def curvas_ece(marginals: NDArray[np.floating], raters: NDArray[np.integer]) -> float:
    """Return the calibration error of the CURVAS challenge: the mean over raters, 50 bins.

    ``marginals`` (L, N), ``raters`` (R, N): each rater's labels are the truth of a top-label ECE.

    Examples
    --------
    >>> from perturb_mpm.evaluation import curvas_ece
    >>> p = np.array([[0.75, 0.75], [0.25, 0.25]])
    >>> curvas_ece(p, raters=np.array([[0, 0], [0, 1]]))  # off by 0.25 for either
    0.25
    """
    return float(np.mean([top_label(marginals, y, CURVAS_BINS).expected_error for y in raters]))


def foreground(marginals: NDArray[np.floating], truth: NDArray[np.integer]) -> Reliability:
    """Return how often there is foreground, by 1 − p(background), 10 bins (Jungo & Reyes 2019).

    Examples
    --------
    >>> from perturb_mpm.evaluation import foreground
    >>> curve = foreground(np.array([[0.3, 0.3], [0.7, 0.7]]), truth=np.array([1, 1]))
    >>> round(curve.expected_error, 2)
    0.3
    """
    _check(marginals, truth)
    return reliability(np.clip(1 - marginals[0], 0, 1), truth != 0, FOREGROUND_BINS)


def class_wise(marginals: NDArray[np.floating], truth: NDArray[np.integer]) -> list[Reliability]:
    """Return the curve of each label's marginal, 20 bins; MONAI averages their errors.

    Examples
    --------
    >>> from perturb_mpm.evaluation import class_wise
    >>> curves = class_wise(np.array([[0.9, 0.9], [0.1, 0.1]]), truth=np.array([0, 0]))
    >>> [round(curve.expected_error, 2) for curve in curves]
    [0.1, 0.1]
    """
    _check(marginals, truth)
    return [reliability(p, truth == label, CLASS_BINS) for label, p in enumerate(marginals)]


def smooth_frequencies(marginals: NDArray[np.floating], samples: int | None) -> NDArray[np.float64]:
    """Return (S·f + ½)/(S + L/2): frequencies without zeros. ``samples`` None leaves them be."""
    p = np.asarray(marginals, dtype=np.float64)
    if samples is None:
        return p
    return (samples * p + 0.5) / (samples + 0.5 * len(p))


def negative_log_likelihood(
    marginals: NDArray[np.floating], truth: NDArray[np.integer], samples: int | None
) -> float:
    """Return the mean −ln p(truth) in nats, of frequencies smoothed with α = ½.

    Examples
    --------
    >>> from perturb_mpm.evaluation import negative_log_likelihood
    >>> p, truth = np.array([[0.9, 0.5], [0.1, 0.5]]), np.array([0, 1])
    >>> round(negative_log_likelihood(p, truth, samples=None), 3)
    0.399
    """
    _check(marginals, truth)
    if truth.size == 0:
        return math.nan
    p = np.take_along_axis(
        smooth_frequencies(marginals, samples), truth[np.newaxis].astype(np.int64), 0
    )
    with np.errstate(divide="ignore"):
        return float(-np.log(p).mean())


def brier(marginals: NDArray[np.floating], truth: NDArray[np.integer]) -> float:
    """Return the mean over voxels of Σ_l (p(l) − [truth = l])², 0 … 2.

    Examples
    --------
    >>> from perturb_mpm.evaluation import brier
    >>> round(brier(np.array([[0.9, 0.5], [0.1, 0.5]]), truth=np.array([0, 1])), 3)
    0.26
    """
    _check(marginals, truth)
    if truth.size == 0:
        return math.nan
    total = 0.0
    for label, p in enumerate(marginals):
        total += float(((p.astype(np.float64) - (truth == label)) ** 2).mean())
    return total


def _means(total: NDArray[np.float64], voxels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return total / voxels, NaN where there is none."""
    means = np.full(len(total), math.nan)
    np.divide(total, voxels, out=means, where=voxels > 0)
    return means


def _check(marginals: NDArray[np.floating], truth: NDArray[np.integer]) -> None:
    if marginals.ndim != 2 or truth.shape != marginals.shape[1:]:
        raise ValueError(
            "marginals must be (L, N) and truth (N,), "
            f"got shapes {marginals.shape} and {truth.shape}"
        )
    checks.in_range(truth.astype(np.int64), "truth", len(marginals))
