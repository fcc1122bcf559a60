"""Extent of resection with its classes, and whether a change between any two scans is real.

Both are known by samples: a distribution, and the probability of each class.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perturb_mpm import checks
from perturb_mpm.biomarkers.intervals import summarize_samples

_MOST_PAIRS = 40_000


def extent_of_resection(before_ml: ArrayLike, after_ml: ArrayLike) -> NDArray[np.float64]:
    """Return (V_pre − V_post)/V_pre as a fraction; NaN where V_pre = 0.

    Examples
    --------
    >>> from perturb_mpm.biomarkers import extent_of_resection
    >>> extent_of_resection([20.0, 20.0, 0.0], [1.0, 25.0, 0.0])
    array([ 0.95, -0.25,   nan])
    """
    before = _volumes(before_ml, "before_ml")
    after = _volumes(after_ml, "after_ml")
    try:
        before, after = np.broadcast_arrays(before, after)
    except ValueError:
        raise ValueError(
            "before_ml and after_ml must have shapes that fit together, "
            f"got {before.shape} and {after.shape}"
        ) from None
    fraction = np.full(before.shape, math.nan)
    np.divide(before - after, before, out=fraction, where=before > 0)
    return fraction


def region_volume_ml(
    labels: ArrayLike, region: tuple[int, ...], voxel_mm3: float, keep: ArrayLike | None = None
) -> float:
    """Return the volume of the voxels whose label is in ``region``, where ``keep`` is true.

    With ``keep`` the certain voxels this is the paper's corrected volume: it can only shrink.

    Examples
    --------
    >>> from perturb_mpm.biomarkers import region_volume_ml
    >>> region_volume_ml([0, 1, 4, 4], region=(1, 4), voxel_mm3=1000.0)
    3.0
    """
    voxel_mm3 = checks.number(voxel_mm3, "voxel_mm3", positive=True)
    labels = checks.whole(labels, "labels")
    inside = np.isin(labels, region)
    if keep is not None:
        kept = np.asarray(keep)
        if kept.shape != inside.shape or kept.dtype != np.bool_:
            raise ValueError(
                f"keep must be booleans of shape {inside.shape}, got {kept.dtype} {kept.shape}"
            )
        inside = inside & kept
    return float(np.count_nonzero(inside)) * voxel_mm3 / 1000.0


@dataclass(frozen=True)
class SampledBiomarker:
    """The distribution of a biomarker over samples.

    Examples
    --------
    >>> from perturb_mpm.biomarkers import distribution
    >>> distribution([0.90, 0.95, float("nan")]).undefined
    1
    """

    values: NDArray[np.float64]  # (S,) NaN where undefined
    median: float
    lower: float
    upper: float
    confidence: float
    undefined: int
    """Samples in which it is not defined (no tumour before), left out of median and interval."""


def distribution(values: ArrayLike, confidence: float = 0.95) -> SampledBiomarker:
    """Return median and central interval of sampled values; NaN where no sample defines one.

    Examples
    --------
    >>> from perturb_mpm.biomarkers import distribution
    >>> found = distribution([0.90, 0.92, 0.95, 0.97, 1.0])
    >>> round(found.median, 2), round(found.lower, 3), round(found.upper, 3)
    (0.95, 0.902, 0.997)
    """
    confidence = checks.number(confidence, "confidence", positive=True, below=1)
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or len(array) == 0:
        raise ValueError(f"values must be a list of numbers, got shape {array.shape}")
    defined = array[~np.isnan(array)]
    undefined = len(array) - len(defined)
    if len(defined) == 0:
        return SampledBiomarker(array, math.nan, math.nan, math.nan, confidence, undefined)
    tail = (1 - confidence) / 2
    lower, median, upper = (float(q) for q in np.quantile(defined, [tail, 0.5, 1 - tail]))
    return SampledBiomarker(array, median, lower, upper, confidence, undefined)


def paired_samples(
    before_ml: ArrayLike, after_ml: ArrayLike, seed: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Pair the samples of two scans: all S × S pairs up to 40 000, else that many drawn at random.

    The samples of the two scans are independent, so sample t of one has nothing to do with sample
    t of the other, and every pair is as good.

    Examples
    --------
    >>> from perturb_mpm.biomarkers import paired_samples
    >>> before, after = paired_samples([20.0, 22.0], [0.0, 1.0])
    >>> list(zip(before.tolist(), after.tolist()))
    [(20.0, 0.0), (20.0, 1.0), (22.0, 0.0), (22.0, 1.0)]
    """
    before = _volumes(before_ml, "before_ml").ravel()
    after = _volumes(after_ml, "after_ml").ravel()
    return pair_independently(before, after, seed)


def pair_independently(
    before: NDArray[np.float64], after: NDArray[np.float64], seed: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return every pair of two lists, or of long ones as many pairs drawn at random."""
    if len(before) * len(after) <= _MOST_PAIRS:
        return np.repeat(before, len(after)), np.tile(after, len(before))
    generator = np.random.default_rng(seed)
    return (
        before[generator.integers(len(before), size=_MOST_PAIRS)],
        after[generator.integers(len(after), size=_MOST_PAIRS)],
    )


def _volumes(value: ArrayLike, name: str) -> NDArray[np.float64]:
    array = checks.numeric(value, name).astype(np.float64)
    if not (array >= 0).all():
        raise ValueError(f"{name} must be volumes of at least 0, got {array[~(array >= 0)][0]}")
    return array


@dataclass(frozen=True)
class ResectionClass:
    """A class holds where the residual volume and the extent are within its limits.

    Examples
    --------
    >>> from perturb_mpm.biomarkers import RANO_RESECT, ResectionClass
    >>> [each.name for each in RANO_RESECT]
    ['2A complete', '2B near-total', '3A subtotal', '3B partial']
    >>> ResectionClass("at most 2 ml left", most_residual_ml=2.0).most_residual_ml
    2.0
    """

    name: str
    most_residual_ml: float = math.inf
    least_extent: float = -math.inf


RANO_RESECT: tuple[ResectionClass, ...] = (
    ResectionClass("2A complete", most_residual_ml=0.0),
    ResectionClass("2B near-total", most_residual_ml=1.0),
    ResectionClass("3A subtotal", most_residual_ml=5.0),
    ResectionClass("3B partial"),
)
"""Enhancing tumour left: 0, ≤ 1, ≤ 5 and > 5 ml (Karschnia et al. 2023, Neuro-Oncology 25:940);
classes 1 and 4, supramaximal resection and biopsy, cannot be told from enhancing tumour alone."""

KARSCHNIA_2021: tuple[ResectionClass, ...] = (
    ResectionClass("complete", most_residual_ml=0.0),
    ResectionClass("near-total", most_residual_ml=1.0, least_extent=0.95),
    ResectionClass("subtotal", most_residual_ml=5.0, least_extent=0.80),
    ResectionClass("partial"),
)
"""Limits on residual volume and extent together (Karschnia et al. 2021, European Journal of Cancer
149:23)."""


def classify(
    before_ml: ArrayLike,
    after_ml: ArrayLike,
    classes: Sequence[ResectionClass] = RANO_RESECT,
    noise_floor_ml: float = 0.0,
) -> NDArray[np.int64]:
    """Return the index of the first class whose limits hold, for each pair of volumes.

    A residual of at most ``noise_floor_ml`` counts as none. Where there was no tumour before, the
    extent is undefined and no limit on it holds.

    Examples
    --------
    >>> from perturb_mpm.biomarkers import RANO_RESECT, classify
    >>> [RANO_RESECT[index].name for index in classify([20.0, 20.0], [0.0, 3.0])]
    ['2A complete', '3A subtotal']
    """
    _check(classes)
    floor = checks.number(noise_floor_ml, "noise_floor_ml", minimum=0)
    after = np.asarray(after_ml, dtype=np.float64)
    after = np.where(after <= floor, 0.0, after)
    extent = extent_of_resection(before_ml, after)
    after = np.broadcast_to(after, extent.shape)
    result = np.full(extent.shape, len(classes) - 1)
    for index in range(len(classes) - 2, -1, -1):
        limits = classes[index]
        holds = after <= limits.most_residual_ml
        if limits.least_extent > -math.inf:
            holds &= extent >= limits.least_extent
        result[holds] = index
    return result


def class_probabilities(
    before_ml: ArrayLike,
    after_ml: ArrayLike,
    classes: Sequence[ResectionClass] = RANO_RESECT,
    noise_floor_ml: float = 0.0,
) -> dict[str, float]:
    """Return the share of sampled pairs of volumes that fall into each class.

    Examples
    --------
    >>> from perturb_mpm.biomarkers import class_probabilities
    >>> class_probabilities([20.0] * 4, [0.0, 0.4, 0.4, 3.0])
    {'2A complete': 0.25, '2B near-total': 0.5, '3A subtotal': 0.25, '3B partial': 0.0}
    """
    index = classify(before_ml, after_ml, classes, noise_floor_ml)
    if index.size == 0:
        raise ValueError("before_ml and after_ml must have at least one pair of volumes, got none")
    shares = np.bincount(index.ravel(), minlength=len(classes)) / index.size
    return {each.name: float(share) for each, share in zip(classes, shares)}


def _check(classes: Sequence[ResectionClass]) -> None:
    if len(classes) < 2:
        raise ValueError(f"classes must be at least two, got {len(classes)}")
    if classes[-1].most_residual_ml < math.inf or classes[-1].least_extent > -math.inf:
        raise ValueError(
            f"classes must end with one that has no limits, got {classes[-1]}: "
            "every resection needs a class"
        )
    if len({each.name for each in classes}) < len(classes):
        raise ValueError("classes must have different names")


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
