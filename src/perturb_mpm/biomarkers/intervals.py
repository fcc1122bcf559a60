"""Intervals of sampled measures: how good they are, and what labelled cases teach about them.

Samples say how large a measure is and how far it may be off, but not whether to believe them. With
m and s the median and half the central 68 % of a case's samples, on a scale on which errors of
small and large cases compare, the truth of a new case is predicted as

    y = m + β + √(a² + c² s²) · t

β is how far truths lie from medians, c how far the samples' spread is believed, and a the error
that the spread does not see: c = 0 is a fixed width, a = β = 0 and c = 1 the samples themselves.
Priors are weak, β ~ N(0, 0.3²), log c ~ N(0, 1) and log a ~ N(log 0.2, 2²), so that three cases are
enough to begin. a and c have the greatest posterior density with β integrated out (a maximum over
all three would make few cases look surer than they are), and β is its mean at these. t is Student's
with n − 2 degrees of freedom for n cases, times √(1 + 1/n) for the error of β. Where some of the
cases lack the structure, the 95 % interval begins at 0.

From 19 cases on the 95 % interval is conformal on the same scale: each case is judged by the β of
the others, and of the n distances |y − m − β| / √(a² + c² s²) the ⌈0.95 (n + 1)⌉-th smallest takes
the place of t's quantile.

``conformal_widening`` moves the ends of any given intervals instead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perturb_mpm import checks

OFFSET_ML = 0.1
"""Volumes are compared as log(V + 0.1 ml): a region of 0 ml has a logarithm."""

MeasureScale = Literal["volume", "share", "size"]
CONFIDENCE = 0.95
FEWEST_FOR_CONFORMAL = 19
_OFFSETS = {"volume": OFFSET_ML, "size": 1.0}  # of logarithms, in the measure's unit
_OFFSET_SHARE = 0.01  # keeps shares of 0 and 1 on the scale
_DRAWS = 200  # equally likely values that stand for a law
_SD_SHIFT, _SD_TRUST, _FLOOR, _SD_FLOOR = 0.3, 1.0, 0.2, 2.0
_BOUNDS = ((math.log(1e-4), math.log(20.0)), (math.log(1e-3), math.log(50.0)))


@dataclass(frozen=True)
class LearnedLaw:
    """The law of the truth, given samples of a measure; see ``fit_law``.

    Examples
    --------
    >>> from perturb_mpm.biomarkers import LearnedLaw
    >>> law = LearnedLaw("volume", shift=0.0, floor=0.2, trust=1.0, cases=20)
    >>> low, high = law.widen([9.9, 10.0, 10.1])  # ml
    >>> bool(low < 7 and high > 14)
    True
    """

    scale: MeasureScale
    """Errors are differences of log(V + 0.1 ml) of a volume, of log-odds of a share (Dice), of
    log(x + 1) of a size in any other unit (mm, mm²)."""
    shift: float
    """β: how far truths lie from the medians of samples."""
    floor: float
    """a: the error that the spread of the samples does not see."""
    trust: float
    """c: how far this spread is believed."""
    cases: int
    """From how many cases the law was learned."""
    reach: float | None = None
    """How many scales from the middle the 95 % interval ends; by default Student's t says."""
    absent: int = 0
    """How many of the cases had a truth of 0; of no account where there is a ``reach``."""

    def __post_init__(self) -> None:
        checks.choice(self.scale, "scale", get_args(MeasureScale))
        checks.number(self.shift, "shift")
        checks.number(self.floor, "floor", minimum=0)
        checks.number(self.trust, "trust", minimum=0)
        checks.integer(self.cases, "cases", minimum=2)
        checks.integer(self.absent, "absent", minimum=0, maximum=self.cases)
        if self.reach is not None:
            checks.number(self.reach, "reach", minimum=0)

    def widen(self, samples: ArrayLike) -> tuple[float, float]:
        """Return the 95 % interval of the truth, in the unit of the samples (S,)."""
        low, high = self.quantiles(samples, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
        if self.reach is None and self.absent / (self.cases + 1) > (1 - CONFIDENCE) / 2:
            low = 0.0
        return float(low), float(high)

    def quantiles(self, samples: ArrayLike, levels: ArrayLike) -> NDArray[np.float64]:
        """Return the quantiles of the truth at levels between 0 and 1, in the samples' unit."""
        from scipy.special import stdtrit

        middle, spread = summarize_samples(samples, self.scale)
        student = stdtrit(self._freedom, np.asarray(levels, dtype=np.float64))
        sigma = math.hypot(self.floor, self.trust * spread)
        ends = middle + self.shift + sigma * self._stretch * student
        return from_scale(ends, self.scale)

    def draws(self, samples: ArrayLike) -> NDArray[np.float64]:
        """Return 200 equally likely values of the truth, (200,), in the samples' unit."""
        return self.quantiles(samples, (np.arange(_DRAWS) + 0.5) / _DRAWS)

    def move(self, samples: ArrayLike, seed: int = 0) -> NDArray[np.float64]:
        """Return the samples (S,) moved and spread to this law, each with its rank.

        The order of samples stays, so that two scans may be compared sample by sample. Equal
        samples are ranked by chance, and ``seed`` says which; NaN is undefined, and stays so.
        """
        moved = np.array(samples, dtype=np.float64)
        known = np.flatnonzero(~np.isnan(moved))
        if len(known):
            order = np.random.default_rng(seed).permutation(known)
            order = order[np.argsort(moved[order], kind="stable")]
            moved[order] = self.quantiles(moved[known], (np.arange(len(known)) + 0.5) / len(known))
        return moved

    @property
    def _freedom(self) -> int:
        """The degrees of freedom of Student's t; two cases have one, three two."""
        return max(self.cases - 2, min(self.cases - 1, 2))

    @property
    def _stretch(self) -> float:
        """What Student's t is multiplied by."""
        from scipy.special import stdtrit

        if self.reach is None:
            return math.sqrt(1 + 1 / self.cases)
        return self.reach / float(stdtrit(self._freedom, (1 + CONFIDENCE) / 2))


def fit_law(
    samples: Sequence[ArrayLike],
    truth: ArrayLike,
    scale: MeasureScale = "volume",
    *,
    conformal: bool = True,
) -> LearnedLaw:
    """Learn the law of a measure from the samples (S,) and the truth of each of n ≥ 2 cases.

    Without ``conformal`` the interval is Student's, however many the cases are.

    Examples
    --------
    >>> from perturb_mpm.biomarkers import fit_law
    >>> rng = np.random.default_rng(0)
    >>> truth = rng.uniform(10, 50, 12)  # ml
    >>> sure = [rng.normal(0.8 * y, 0.01 * y, 50) for y in truth]  # all 20 % too small
    >>> law = fit_law(sure, truth)
    >>> low, high = law.widen([8.0, 8.1, 7.9])
    >>> bool(low < 10 < high and low > 8)
    True
    """
    checks.choice(scale, "scale", get_args(MeasureScale))
    found = np.array([summarize_samples(each, scale) for each in samples]).reshape(-1, 2)
    true = to_scale(checks.floats(truth, "truth"), scale)
    if true.shape != (len(found),) or len(found) < 2:
        raise ValueError(
            "truth must have one number for each of at least 2 cases, "
            f"got {true.size} for {len(found)} cases"
        )
    missed, spread = true - found[:, 0], found[:, 1]
    shift, floor, trust = _most_probable(missed, spread)
    n = len(missed)
    reach = None
    if conformal and n >= FEWEST_FOR_CONFORMAL:
        # Each case is judged by the β of the others; a and c hardly depend on one of so many.
        w = 1 / (floor**2 + (trust * spread) ** 2)
        precision, mean = _posterior_shift(missed, w)
        others = (precision * mean - w * missed) / (precision - w)
        distances = np.abs(missed - others) * np.sqrt(w)
        # Rounded first, or 20 × 0.95 counts as more than 19.
        rank = math.ceil(round((n + 1) * CONFIDENCE, 9))
        reach = float(np.sort(distances)[rank - 1])
    absent = int((true == to_scale(0.0, scale)).sum())
    return LearnedLaw(scale, shift, floor, trust, n, reach, absent)


def summarize_samples(samples: ArrayLike, scale: MeasureScale) -> tuple[float, float]:
    """Return median and half the central 68 % of samples (S,) on the scale."""
    drawn = checks.floats(samples, "samples")
    if drawn.ndim != 1 or drawn.size == 0:
        raise ValueError(f"samples must be (samples,), not empty, got shape {drawn.shape}")
    low, middle, high = np.quantile(to_scale(drawn, scale), [0.16, 0.5, 0.84])
    return float(middle), float(high - low) / 2


def to_scale(values: ArrayLike, scale: MeasureScale) -> NDArray[np.float64]:
    """Return values where errors of small and large cases compare.

    A volume V in ml becomes log(V + 0.1), a size in another unit log(x + 1), a share its log-odds,
    0.01 away from 0 and 1.

    Examples
    --------
    >>> from perturb_mpm.biomarkers import to_scale
    >>> to_scale([0.9, 9.9], "volume").round(3)
    array([0.   , 2.303])
    """
    x = np.asarray(values, dtype=np.float64)
    if not np.all(x >= 0) or (scale == "share" and not np.all(x <= 1)):
        raise ValueError(
            f"a {scale} must be at least 0{' and at most 1' if scale == 'share' else ''}, got "
            f"values from {x.min():g} to {x.max():g}"
        )
    if scale != "share":
        return np.log(x + _OFFSETS[scale])
    return np.log((x + _OFFSET_SHARE) / (1 - x + _OFFSET_SHARE))


def from_scale(values: ArrayLike, scale: MeasureScale) -> NDArray[np.float64]:
    """Return what ``to_scale`` was given; beyond the possible, the nearest that is.

    Examples
    --------
    >>> from perturb_mpm.biomarkers import from_scale
    >>> from_scale([0.0, -9.0], "volume")
    array([0.9, 0. ])
    """
    y = np.asarray(values, dtype=np.float64)
    if scale != "share":
        sizes: NDArray[np.float64] = np.exp(np.minimum(y, 700.0)) - _OFFSETS[scale]
        return np.maximum(sizes, 0.0)
    share = 1 / (1 + np.exp(-np.clip(y, -700.0, 700.0)))
    return np.clip(share * (1 + 2 * _OFFSET_SHARE) - _OFFSET_SHARE, 0.0, 1.0)


def _most_probable(
    missed: NDArray[np.float64],  # (n,) truth minus median
    spread: NDArray[np.float64],  # (n,)
) -> tuple[float, float, float]:
    """Return β, a and c: the a and c of the greatest posterior density, and the mean of β there."""
    from scipy.optimize import minimize

    # θ = (log a, log c). With w = 1/σ², the density of β is normal with precision P = Σw + 1/0.3²
    # and mean b = Σwr/P; integrated over β, −log density is ½(Σ log σ² + log P + Σwr² − P b²).
    def loss(theta: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        a2, c2s2 = math.exp(2 * theta[0]), math.exp(2 * theta[1]) * spread**2
        w = 1 / (a2 + c2s2)
        precision, mean = _posterior_shift(missed, w)
        away = np.array([(theta[0] - math.log(_FLOOR)) / _SD_FLOOR, theta[1] / _SD_TRUST])
        value = 0.5 * (
            float(away @ away)
            - float(np.log(w).sum())
            + math.log(precision)
            + float((w * missed**2).sum())
            - precision * mean**2
        )
        by_log_variance = 1 - w * (missed - mean) ** 2 - w / precision
        slope = away / (_SD_FLOOR, _SD_TRUST) + np.array(
            [(by_log_variance * w * a2).sum(), (by_log_variance * w * c2s2).sum()]
        )
        return value, slope

    found = minimize(loss, np.log([_FLOOR, 1.0]), jac=True, method="L-BFGS-B", bounds=_BOUNDS).x
    floor, trust = math.exp(found[0]), math.exp(found[1])
    return _posterior_shift(missed, 1 / (floor**2 + (trust * spread) ** 2))[1], floor, trust


def _posterior_shift(
    missed: NDArray[np.float64], weights: NDArray[np.float64]
) -> tuple[float, float]:
    """Return precision and mean of β given the variances of the errors."""
    precision = float(weights.sum()) + _SD_SHIFT**-2
    return precision, float((weights * missed).sum()) / precision


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
) -> ConformalWidening:
    """Learn by how much sampled intervals must grow, on a calibration cohort.

    Split-conformal quantile regression (Romano et al. 2019): the score of a case is by how much the
    truth lies outside its interval (negative inside), and the amount is the ⌈(n + 1)(1 − α)⌉-th
    smallest score. New cases like these are then covered with at least that confidence, whatever
    the samples are worth. 19 cases are the fewest for 95 %. 0.1 ml are added to volumes, so that 0
    has a logarithm.

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
    low, high, value = (
        np.log(_volumes(each, name) + OFFSET_ML)
        for each, name in ((lower_ml, "lower_ml"), (upper_ml, "upper_ml"), (truth_ml, "truth_ml"))
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
    return ConformalWidening(amount, OFFSET_ML, confidence, n)


def _volumes(value: ArrayLike, name: str) -> NDArray[np.float64]:
    array = np.atleast_1d(checks.floats(value, name)).astype(np.float64)
    if array.ndim != 1 or len(array) == 0 or (array < 0).any():
        raise ValueError(f"{name} must be a list of volumes of at least 0, got {array}")
    return array
