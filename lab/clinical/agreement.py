"""How well raters agree: ICC(A,1), Kendall's W."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perturb_mpm import checks


@dataclass(frozen=True)
class IntraclassCorrelation:
    """ICC(A,1): absolute agreement of single ratings, subjects and raters random."""

    estimate: float
    lower: float
    upper: float
    subjects: int
    raters: int


def icc(ratings: ArrayLike, confidence: float = 0.95) -> IntraclassCorrelation:
    """Return ICC(A,1) of ``ratings`` (subjects, raters) with its interval.

    (MSR − MSE)/(MSR + (k − 1)·MSE + k·(MSC − MSE)/n), McGraw & Wong 1996, who give the interval.
    Subjects with a NaN are dropped. Where all ratings are equal it is undefined: NaN.

    Examples
    --------
    >>> from lab.clinical.agreement import icc
    >>> found = icc([[9.0, 10.0], [20.0, 21.0], [31.0, 30.0], [40.0, 41.0]])  # 4 subjects, 2 raters
    >>> round(found.estimate, 3)
    0.997
    """
    from scipy.stats import f as f_law

    confidence = checks.number(confidence, "confidence", positive=True, below=1)
    table = _table(ratings)
    n, k = table.shape
    grand = table.mean()
    between = k * float(((table.mean(axis=1) - grand) ** 2).sum())
    columns = n * float(((table.mean(axis=0) - grand) ** 2).sum())
    rest = float(((table - grand) ** 2).sum()) - between - columns
    msr, msc, mse = between / (n - 1), columns / (k - 1), max(rest, 0.0) / ((n - 1) * (k - 1))
    denominator = msr + (k - 1) * mse + k * (msc - mse) / n
    if denominator <= 0:
        return IntraclassCorrelation(math.nan, math.nan, math.nan, n, k)
    value = (msr - mse) / denominator
    if mse == 0 and msc == 0:
        return IntraclassCorrelation(value, 1.0, 1.0, n, k)
    a = k * value / (n * (1 - value))
    b = 1 + k * value * (n - 1) / (n * (1 - value))
    freedom = (a * msc + b * mse) ** 2 / (
        (a * msc) ** 2 / (k - 1) + (b * mse) ** 2 / ((n - 1) * (k - 1))
    )
    tail = 1 - (1 - confidence) / 2
    above = f_law.ppf(tail, n - 1, freedom)
    below = f_law.ppf(tail, freedom, n - 1)
    noise = k * msc + (k * n - k - n) * mse
    lower = n * (msr - above * mse) / (above * noise + n * msr)
    upper = n * (below * msr - mse) / (noise + n * below * msr)
    return IntraclassCorrelation(value, float(lower), float(upper), n, k)


@dataclass(frozen=True)
class Concordance:
    """Kendall's W: 1 where all raters rank the subjects alike, 0 where they share nothing."""

    w: float
    statistic: float
    """χ² = m(n − 1)W, with n − 1 degrees of freedom."""
    pvalue: float
    subjects: int
    raters: int


def kendalls_w(ratings: ArrayLike) -> Concordance:
    """Return Kendall's W of ``ratings`` (subjects, raters), corrected for ties.

    W = 12·S/(m²(n³ − n) − m·ΣT), S the sum of squared deviations of the subjects' rank sums, T the
    sum of t³ − t over each rater's groups of t tied ranks. NaN where every rater ties all subjects.

    Examples
    --------
    >>> from lab.clinical.agreement import kendalls_w
    >>> kendalls_w([[1, 1], [2, 2], [3, 3]]).w  # two raters, the same order
    1.0
    """
    from scipy.stats import chi2, rankdata

    table = _table(ratings)
    n, m = table.shape
    ranks = rankdata(table, axis=0)  # (n, m) midranks
    sums = ranks.sum(axis=1)
    s = float(((sums - sums.mean()) ** 2).sum())
    ties = 0.0
    for column in ranks.T:
        sizes = np.unique(column, return_counts=True)[1]
        ties += float((sizes.astype(np.float64) ** 3 - sizes).sum())
    denominator = m**2 * (n**3 - n) - m * ties
    if denominator <= 0:
        return Concordance(math.nan, math.nan, math.nan, n, m)
    w = 12 * s / denominator
    statistic = m * (n - 1) * w
    return Concordance(w, statistic, float(chi2.sf(statistic, n - 1)), n, m)


def _table(ratings: ArrayLike) -> NDArray[np.float64]:
    """Return the complete rows of a table (subjects, raters)."""
    table = checks.numeric(ratings, "ratings").astype(np.float64)
    if table.ndim != 2 or table.shape[1] < 2:
        raise ValueError(
            f"ratings must be (subjects, raters) with at least two raters, got shape {table.shape}"
        )
    if np.isinf(table).any():
        raise ValueError("ratings must not be infinite; NaN marks a value that is missing")
    table = table[~np.isnan(table).any(axis=1)]
    if len(table) < 3:
        raise ValueError(f"ratings must have at least three complete subjects, got {len(table)}")
    return table


def _column(values: ArrayLike, name: str) -> NDArray[np.float64]:
    array = checks.numeric(values, name).astype(np.float64)
    if array.ndim != 1:
        raise ValueError(f"{name} must be a list of numbers, got shape {array.shape}")
    return array
