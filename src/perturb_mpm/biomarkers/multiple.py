"""p-values of several tests at once: Bonferroni and Holm."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perturb_mpm import checks


def bonferroni(pvalues: ArrayLike, m: int | None = None) -> NDArray[np.float64]:
    """Return min(1, m·p); ``m`` is the number of tests made, at least the number given."""
    p = _pvalues(pvalues)
    tests = len(p) if m is None else checks.integer(m, "m", minimum=len(p))
    return np.minimum(1.0, tests * p)


def holm(pvalues: ArrayLike) -> NDArray[np.float64]:
    """Return Holm's adjusted p-values (1979): valid like Bonferroni's, and never larger."""
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
