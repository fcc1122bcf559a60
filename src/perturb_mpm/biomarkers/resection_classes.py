"""Classes of resection: limits by residual volume, by extent, or both, and how probable each is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perturb_mpm import checks
from perturb_mpm.biomarkers.resection import extent_of_resection


@dataclass(frozen=True)
class ResectionClass:
    """A class holds where the residual volume and the extent are within its limits."""

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
    """Return the share of sampled pairs of volumes that fall into each class."""
    index = classify(before_ml, after_ml, classes, noise_floor_ml)
    if index.size == 0:
        raise ValueError("before_ml and after_ml must hold at least one pair of volumes, got none")
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
