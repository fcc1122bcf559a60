"""Overlap of two masks."""

from __future__ import annotations

import math
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
        sizes = 2 * self.both + self.first_only + self.second_only
        return 2 * self.both / sizes if sizes else 1.0

    @property
    def iou(self) -> float:
        """|A∩B|/|A∪B|; 1 where both are empty."""
        union = self.both + self.first_only + self.second_only
        return self.both / union if union else 1.0

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


def iou(first: ArrayLike, second: ArrayLike) -> float:
    """Return |A∩B|/|A∪B|; 1 where both are empty.

    Examples
    --------
    >>> from perturb_mpm.evaluation import iou
    >>> first, second = np.array([[1, 1, 0, 0], [1, 0, 0, 0]], bool)
    >>> iou(first, second)
    0.5
    """
    return confusion(first, second).iou


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
