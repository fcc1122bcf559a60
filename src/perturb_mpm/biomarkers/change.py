"""Whether a change between two scans is real: its distribution, classes of response, its limits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perturb_mpm import checks
from perturb_mpm.biomarkers.intervals import summarize_samples
from perturb_mpm.biomarkers.resection import SampledBiomarker, distribution, pair_independently

CHANGE_CLASSES = ("progression", "stable", "response")


@dataclass(frozen=True)
class ResponseLimits:
    """From which relative change on a structure progressed, or responded.

    Examples
    --------
    >>> from perturb_mpm.biomarkers import RANO_VOLUME
    >>> RANO_VOLUME.progression, RANO_VOLUME.response
    (0.4, -0.65)
    """

    name: str
    progression: float
    response: float

    def __post_init__(self) -> None:
        checks.number(self.progression, "progression", positive=True)
        if not -1 <= self.response < 0:
            raise ValueError(f"response must lie between -1 and 0, got {self.response:g}")


RANO_VOLUME = ResponseLimits("RANO 2.0, volume", 0.40, -0.65)
RANO_PRODUCT = ResponseLimits("RANO 2.0, product of diameters", 0.25, -0.50)
"""Wen et al. 2023, Journal of Clinical Oncology 41:5187. They compare with a baseline or the
smallest tumour so far, and know more than size: clinical state, steroids, new lesions."""


@dataclass(frozen=True, eq=False)
class SampledChange:
    """How a measure differs between two scans, over pairs of samples.

    Examples
    --------
    >>> from perturb_mpm.biomarkers import sampled_change
    >>> sampled_change([10.0, 11.0], [12.0, 13.0]).grew
    1.0
    """

    difference: SampledBiomarker  # after − before, in the measure's unit
    relative: SampledBiomarker  # difference / before; undefined where there was nothing before
    grew: float
    """The share of pairs in which it is larger after."""
    classes: dict[str, float] | None
    """The share of pairs that progressed, stayed stable, responded; None without limits."""

    @property
    def smallest(self) -> float:
        """Half the 95 % interval of the difference: a smaller change cannot be told from none."""
        return (self.difference.upper - self.difference.lower) / 2

    @property
    def verdict(self) -> str:
        """What the interval says: "grew", "shrank" or "unclear"."""
        if self.difference.lower > 0:
            return "grew"
        return "shrank" if self.difference.upper < 0 else "unclear"


def sampled_change(
    before: ArrayLike,
    after: ArrayLike,
    *,
    paired: bool = False,
    limits: ResponseLimits | None = None,
) -> SampledChange:
    """Compare sampled values of two scans; NaN is undefined.

    Where the errors of the scans are independent, every sample of one is as good a partner as any
    other. With ``paired``, sample s of both shares noise, and is compared with its partner alone.

    Examples
    --------
    >>> from perturb_mpm.biomarkers import RANO_VOLUME, sampled_change
    >>> found = sampled_change([10.0, 10.0], [13.0, 15.0], limits=RANO_VOLUME)
    >>> found.difference.median, found.classes["progression"]
    (4.0, 0.5)
    """
    first, second = (np.asarray(each, dtype=np.float64).ravel() for each in (before, after))
    if paired and len(first) != len(second):
        raise ValueError(f"before and after must be as many, got {len(first)} and {len(second)}")
    if not paired:
        first, second = pair_independently(first, second)
    difference = second - first
    relative = np.full(len(first), math.nan)
    np.divide(difference, first, out=relative, where=first > 0)
    defined = ~np.isnan(difference)
    grew = float((difference[defined] > 0).mean()) if defined.any() else math.nan
    return SampledChange(
        distribution(difference),
        distribution(relative),
        grew,
        None if limits is None else _class_shares(first, second, limits),
    )


def _class_shares(
    before: NDArray[np.float64], after: NDArray[np.float64], limits: ResponseLimits
) -> dict[str, float]:
    """Return the share of each class; what appears where there was nothing is progression."""
    defined = ~np.isnan(before) & ~np.isnan(after)
    first, second = before[defined], after[defined]
    if len(first) == 0:
        return dict.fromkeys(CHANGE_CLASSES, math.nan)
    progressed = np.where(first > 0, second >= (1 + limits.progression) * first, second > 0)
    responded = (first > 0) & (second <= (1 + limits.response) * first)
    shares = float(progressed.mean()), float(responded.mean())
    stable = float((~progressed & ~responded).mean())
    return {"progression": shares[0], "stable": stable, "response": shares[1]}


@dataclass(frozen=True)
class ScanCorrelation:
    """How far the errors of two scans are correlated, from pairs in which nothing changed.

    Examples
    --------
    >>> from perturb_mpm.biomarkers import ScanCorrelation
    >>> found = ScanCorrelation(pairs=30, excess=0.4)
    >>> round(found.estimate, 2), round(found.lower, 2)
    (0.6, 0.35)
    """

    pairs: int
    excess: float
    """Mean squared difference of the medians, over what independent errors give: 1 − ρ."""

    @property
    def estimate(self) -> float:
        """The most probable correlation; below 0 where samples say too little of the errors."""
        return 1 - self.excess

    @property
    def lower(self) -> float:
        """What is exceeded with 95 % confidence, at least 0: a larger one would call errors growth.

        n · excess / (1 − ρ) follows χ² with n degrees of freedom for n pairs.
        """
        from scipy.special import gammaincinv

        quantile = 2 * float(gammaincinv(self.pairs / 2, 0.05))
        return min(max(1 - self.pairs * self.excess / quantile, 0.0), 0.99)


def fit_correlation(
    before: Sequence[ArrayLike], after: Sequence[ArrayLike]
) -> ScanCorrelation | None:
    """Learn from sampled volumes of pairs of scans (S,) each, ml; None where none of them vary.

    Nothing changed, so that log V₂ − log V₁ of the medians is e₂ − e₁: errors of which the samples
    say the spreads s₁ and s₂. Its square is (1 − ρ)(s₁² + s₂²) in the mean where s₁ = s₂.

    Examples
    --------
    >>> from perturb_mpm.biomarkers import fit_correlation
    >>> scans = [[9.0, 10.0, 11.0], [19.0, 20.0, 21.0]]
    >>> fit_correlation(scans, scans).estimate  # both err alike
    1.0
    """
    found = []
    for pair in zip(before, after, strict=True):
        (first, one), (second, other) = (summarize_samples(each, "volume") for each in pair)
        if one > 0 or other > 0:
            found.append((second - first) ** 2 / (one**2 + other**2))
    return ScanCorrelation(len(found), float(np.mean(found))) if found else None
