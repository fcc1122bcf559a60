"""Extent of resection and residual tumour volume, from label maps, certain voxels and samples.

EOR = (V_pre − V_post)/V_pre and RTV = V_post of the enhancing tumour. Nothing is clamped: an EOR is
negative where the tumour has grown, and NaN where there was none before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perturb_mpm import checks


def extent_of_resection(before_ml: ArrayLike, after_ml: ArrayLike) -> NDArray[np.float64]:
    """Return (V_pre − V_post)/V_pre as a fraction; NaN where V_pre = 0."""
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
    """The distribution of a biomarker over samples."""

    values: NDArray[np.float64]  # (S,) NaN where undefined
    median: float
    lower: float
    upper: float
    confidence: float
    undefined: int
    """Samples in which it is not defined (no tumour before), left out of median and interval."""


def distribution(values: ArrayLike, confidence: float = 0.95) -> SampledBiomarker:
    """Return median and central interval of sampled values; NaN where no sample defines one."""
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
    """
    before = _volumes(before_ml, "before_ml").ravel()
    after = _volumes(after_ml, "after_ml").ravel()
    if len(before) * len(after) <= _MOST_PAIRS:
        first, second = np.meshgrid(before, after, indexing="ij")
        return first.ravel(), second.ravel()
    generator = np.random.default_rng(seed)
    return (
        before[generator.integers(len(before), size=_MOST_PAIRS)],
        after[generator.integers(len(after), size=_MOST_PAIRS)],
    )


_MOST_PAIRS = 40_000


def _volumes(value: ArrayLike, name: str) -> NDArray[np.float64]:
    array = checks.numeric(value, name).astype(np.float64)
    if not (array >= 0).all():
        raise ValueError(f"{name} must be volumes of at least 0, got {array[~(array >= 0)][0]}")
    return array
