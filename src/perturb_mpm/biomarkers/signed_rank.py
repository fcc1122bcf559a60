"""The exact Wilcoxon signed-rank test with ties, and corrections for several tests."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perturb_mpm import checks

MOST_EXACT = 50
"""From so many pairs on the normal distribution is used, as R's exactRankTests does."""
_DIGITS = 12  # differences closer than this share of the largest are ties, not rounding errors


@dataclass(frozen=True)
class SignedRank:
    """A two-sided signed-rank test of paired values."""

    statistic: float
    """V, the sum of the midranks of the positive differences."""
    pvalue: float
    pairs: int
    """Complete pairs whose difference is not zero: what the test rests on."""
    zeros: int
    """Pairs without a difference, dropped."""
    missing: int
    """Pairs with a NaN, dropped."""
    exact: bool
    rank_biserial: float
    """(V₊ − V₋)/(V₊ + V₋), −1 … 1; NaN where all differences are zero."""


def wilcoxon_exact(x: ArrayLike, y: ArrayLike) -> SignedRank:
    """Test whether paired values differ, as ``wilcox.exact`` of R's exactRankTests does.

    Pairs with a NaN and pairs without a difference are dropped; tied differences get midranks, and
    the null distribution is that of the midranks at hand (Streitberg & Röhmel 1986), so that ties
    keep the test exact. SciPy's own exact method ignores ties. With 50 pairs or more the normal
    distribution with variance Σ r²/4 is used, without correction for continuity.

    Examples
    --------
    >>> from perturb_mpm.biomarkers import wilcoxon_exact
    >>> wilcoxon_exact([1.2, 0.8, 2.0, 0.5], [0.9, 0.8, 1.1, 0.6]).pvalue
    0.5
    """
    differences, missing = _differences(x, y)
    ranked = _with_equal_ties(differences, x, y)
    ranked = ranked[ranked != 0]
    n = len(ranked)
    zeros = len(differences) - n
    if n == 0:
        return SignedRank(0.0, 1.0, 0, zeros, missing, exact=True, rank_biserial=math.nan)
    doubled = _doubled_midranks(np.abs(ranked))  # (n,) whole numbers
    v = int(doubled[ranked > 0].sum())
    total = int(doubled.sum())
    exact = n < MOST_EXACT
    pvalue = _exact_pvalue(doubled, v) if exact else _normal_pvalue(doubled, v)
    return SignedRank(v / 2, pvalue, n, zeros, missing, exact, (2 * v - total) / total)


@dataclass(frozen=True)
class Shift:
    """A typical paired difference with its confidence interval."""

    estimate: float
    lower: float
    upper: float
    confidence: float
    """The confidence reached, at least what was asked for; NaN where n allows no interval."""


def hodges_lehmann(x: ArrayLike, y: ArrayLike, confidence: float = 0.95) -> Shift:
    """Estimate the shift of x against y: the median of all means of two differences.

    Its interval is that of the signed-rank test, cut from the ordered means (Hodges & Lehmann
    1963); it assumes differences that are symmetric about the shift, and without ties. Where n
    is too small for the confidence asked for, the interval is unbounded.

    Examples
    --------
    >>> from perturb_mpm.biomarkers import hodges_lehmann
    >>> shift = hodges_lehmann([3.0, 4.0, 5.0, 7.0, 9.0, 10.0], [2.0, 2.0, 4.0, 5.0, 8.0, 7.0])
    >>> shift.estimate, shift.lower, shift.upper
    (1.5, 1.0, 3.0)
    """
    confidence = checks.number(confidence, "confidence", positive=True, below=1)
    differences, _ = _differences(x, y)
    n = len(differences)
    if n == 0:
        raise ValueError("x and y must have at least one complete pair, got none")
    first, second = np.triu_indices(n)
    means = np.sort((differences[first] + differences[second]) / 2)  # (n(n + 1)/2,)
    counts = _null_counts(np.arange(1, n + 1))
    below = np.cumsum(counts) / 2.0**n  # P(T ≤ t)
    cut = int(
        np.searchsorted(below, (1 - confidence) / 2, side="right")
    )  # first t with P above α/2
    estimate = float(np.median(means))
    if cut == 0:
        return Shift(estimate, -math.inf, math.inf, math.nan)
    reached = 1 - 2 * float(below[cut - 1])
    return Shift(estimate, float(means[cut - 1]), float(means[len(means) - cut]), reached)


def _differences(x: ArrayLike, y: ArrayLike) -> tuple[NDArray[np.float64], int]:
    """Return x − y of the complete pairs, and how many are not complete."""
    first, second = _values(x, "x"), _values(y, "y")
    if first.shape != second.shape:
        raise ValueError(f"x and y must have the same length, got {len(first)} and {len(second)}")
    complete = ~(np.isnan(first) | np.isnan(second))
    return first[complete] - second[complete], int(np.sum(~complete))


def _with_equal_ties(
    differences: NDArray[np.float64], x: ArrayLike, y: ArrayLike
) -> NDArray[np.float64]:
    """Return the differences in units of the largest value, equal where only rounding differs."""
    sizes = (np.abs(np.asarray(each, dtype=np.float64)) for each in (x, y))
    scale = max(np.nanmax(size, initial=0) for size in sizes)
    return np.round(differences / scale, _DIGITS) if scale > 0 else differences


def _values(value: ArrayLike, name: str) -> NDArray[np.float64]:
    array = checks.numeric(value, name).astype(np.float64)
    if array.ndim != 1:
        raise ValueError(f"{name} must be a list of numbers, got shape {array.shape}")
    if np.isinf(array).any():
        raise ValueError(f"{name} must not be infinite; NaN marks a value that is missing")
    return array


def _doubled_midranks(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return twice the midranks, which are whole numbers."""
    ordered = np.sort(values)
    below = np.searchsorted(ordered, values, side="left")
    upto = np.searchsorted(ordered, values, side="right")
    return (below + upto + 1).astype(np.int64)


def _null_counts(ranks: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return how many of the 2ⁿ choices of signs give each sum of positive ranks, (Σ + 1,)."""
    counts = np.zeros(int(ranks.sum()) + 1)
    counts[0] = 1
    for rank in ranks:
        shifted = np.zeros_like(counts)
        shifted[rank:] = counts[: len(counts) - rank]
        counts += shifted
    return counts


def _exact_pvalue(doubled: NDArray[np.int64], v: int) -> float:
    counts = _null_counts(doubled)
    everything = 2.0 ** len(doubled)
    below = 2 * float(counts[: v + 1].sum()) / everything
    above = 2 * float(counts[v:].sum()) / everything
    return below if below <= 1 else min(1.0, above)


def _normal_pvalue(doubled: NDArray[np.int64], v: int) -> float:
    ranks = doubled / 2
    z = (v / 2 - ranks.sum() / 2) / math.sqrt(float((ranks**2).sum()) / 4)
    return math.erfc(abs(z) / math.sqrt(2))


def bonferroni(pvalues: ArrayLike, m: int | None = None) -> NDArray[np.float64]:
    """Return min(1, m·p); ``m`` is the number of tests made, at least the number given.

    Examples
    --------
    >>> from perturb_mpm.biomarkers import bonferroni
    >>> bonferroni([0.01, 0.04], m=5)
    array([0.05, 0.2 ])
    """
    p = _pvalues(pvalues)
    tests = len(p) if m is None else checks.integer(m, "m", minimum=len(p))
    return np.minimum(1.0, tests * p)


def holm(pvalues: ArrayLike) -> NDArray[np.float64]:
    """Return Holm's adjusted p-values (1979): valid like Bonferroni's, and never larger.

    Examples
    --------
    >>> from perturb_mpm.biomarkers import holm
    >>> holm([0.01, 0.04, 0.03])
    array([0.03, 0.06, 0.06])
    """
    p = _pvalues(pvalues)
    order = np.argsort(p, kind="stable")
    factors = np.arange(len(p), 0, -1)
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(factors * p[order]))
    return adjusted


def _pvalues(pvalues: ArrayLike) -> NDArray[np.float64]:
    p = checks.numeric(pvalues, "pvalues").astype(np.float64)
    if p.ndim != 1 or len(p) == 0:
        raise ValueError(f"pvalues must be a list of numbers, got shape {p.shape}")
    if not ((p >= 0) & (p <= 1)).all():
        raise ValueError(f"pvalues must lie between 0 and 1, got {p.min()} to {p.max()}")
    return p
