"""Overlap of two masks, of sets of labels, and what probabilities expect of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True)
class Confusion:
    """Voxels in both masks, in the first only, in the second only, in neither."""

    both: int
    first_only: int
    second_only: int
    neither: int

    @property
    def dice(self) -> float:
        """2|A∩B|/(|A| + |B|); 1 where both are empty."""
        return _ratio(2 * self.both, 2 * self.both + self.first_only + self.second_only)

    @property
    def iou(self) -> float:
        """|A∩B|/|A∪B|; 1 where both are empty."""
        return _ratio(self.both, self.both + self.first_only + self.second_only)

    @property
    def sensitivity(self) -> float:
        """The share of the second mask that the first holds; NaN where the second is empty."""
        return _share(self.both, self.both + self.second_only)

    @property
    def specificity(self) -> float:
        """The share outside the second mask that is outside the first; NaN where it fills all."""
        return _share(self.neither, self.neither + self.first_only)

    @property
    def precision(self) -> float:
        """The share of the first mask that is in the second; NaN where the first is empty."""
        return _share(self.both, self.both + self.first_only)


def confusion(first: ArrayLike, second: ArrayLike) -> Confusion:
    """Count the voxels of two masks of the same shape.

    Examples
    --------
    >>> from perturb_mpm.evaluation import confusion
    >>> first, second = np.array([[1, 1, 0, 0], [1, 0, 1, 0]], bool)
    >>> confusion(first, second)
    Confusion(both=1, first_only=1, second_only=1, neither=1)
    """
    a, b = mask_pair(first, second, ("first", "second"))
    both = int(np.count_nonzero(a & b))
    size_a, size_b = int(np.count_nonzero(a)), int(np.count_nonzero(b))
    return Confusion(both, size_a - both, size_b - both, a.size - size_a - size_b + both)


def dice(first: ArrayLike, second: ArrayLike) -> float:
    """Return 2|A∩B|/(|A| + |B|); 1 where both are empty.

    Examples
    --------
    >>> from perturb_mpm.evaluation import dice
    >>> first, second = np.array([[1, 1, 0, 0], [1, 0, 0, 0]], bool)
    >>> round(dice(first, second), 3)
    0.667
    """
    return confusion(first, second).dice


def region_dice(labels: ArrayLike, truth: ArrayLike, region: Sequence[int]) -> float:
    """Return the Dice of a set of labels in two label maps; NaN where the truth has none of it.

    Examples
    --------
    >>> from perturb_mpm.evaluation import region_dice
    >>> region_dice([0, 1, 2, 2], [0, 1, 1, 0], region=(1, 2))
    0.8
    """
    members = list(region)
    true = np.isin(truth, members)
    return dice(np.isin(labels, members), true) if true.any() else math.nan


def expected_dice(mask: NDArray[np.bool_], share: NDArray[np.floating]) -> float:
    """Return the Dice that probabilities m (N,) of a region expect of its mask S (N,).

    2 Σ_S m / (|S| + Σ m), 1 where both are empty.

    Examples
    --------
    >>> from perturb_mpm.evaluation import expected_dice
    >>> expected_dice(np.array([True, True, False]), np.array([1.0, 0.5, 0.5]))
    0.75
    """
    return _ratio(2 * float(share[mask].sum()), float(mask.sum() + share.sum()))


def overlap_ratios(part: ArrayLike, whole: ArrayLike) -> NDArray[np.float64]:
    """Return part/whole, 1 where the whole is 0: two empty masks overlap fully."""
    below = np.asarray(whole)
    ratios = np.ones(below.shape)
    np.divide(part, below, out=ratios, where=below > 0)
    return ratios


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 1.0


def mask_pair(
    first: ArrayLike, second: ArrayLike, names: tuple[str, str]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return two masks after checking that both are booleans of one shape."""
    a, b = np.asarray(first), np.asarray(second)
    for array, name in zip((a, b), names):
        if array.dtype != np.bool_:
            raise TypeError(f"{name} must be an array of booleans, got dtype {array.dtype}")
    if a.shape != b.shape:
        raise ValueError(
            f"{names[0]} and {names[1]} must have the same shape, got {a.shape} and {b.shape}"
        )
    return a, b


def _share(part: int, whole: int) -> float:
    return part / whole if whole else math.nan
