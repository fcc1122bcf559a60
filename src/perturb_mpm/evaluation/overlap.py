"""Overlap of two masks, and distances between their surfaces in mm."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perturb_mpm import checks


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
    """Count the voxels of two masks of the same shape."""
    a, b = mask_pair(first, second, ("first", "second"))
    both = int(np.count_nonzero(a & b))
    size_a, size_b = int(np.count_nonzero(a)), int(np.count_nonzero(b))
    return Confusion(both, size_a - both, size_b - both, a.size - size_a - size_b + both)


def dice(first: ArrayLike, second: ArrayLike) -> float:
    """Return 2|A∩B|/(|A| + |B|); 1 where both are empty."""
    return confusion(first, second).dice


def iou(first: ArrayLike, second: ArrayLike) -> float:
    """Return |A∩B|/|A∪B|; 1 where both are empty."""
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


def hausdorff95(first: ArrayLike, second: ArrayLike, spacing: Sequence[float]) -> float:
    """Return the larger of the two 95th percentiles of surface distances, in mm.

    The surface of a mask is its voxels with a neighbour (by face) outside; distances are between
    centres of voxels. 0 where both masks are empty, infinite where one is.
    """
    distances = _surface_distances(first, second, spacing)
    if distances is None:
        return math.inf
    return max((float(np.percentile(each, 95)) for each in distances if each.size), default=0.0)


def surface_dice(
    first: ArrayLike, second: ArrayLike, spacing: Sequence[float], tolerance_mm: float = 1.0
) -> float:
    """Return the share of both surfaces within ``tolerance_mm`` of the other, 0 … 1.

    Surfaces are counted in voxels, not weighted by area (Nikolov et al. 2021 weight them). 1 where
    both masks are empty, 0 where one is.
    """
    tolerance = checks.number(tolerance_mm, "tolerance_mm", minimum=0)
    distances = _surface_distances(first, second, spacing)
    if distances is None:
        return 0.0
    total = sum(each.size for each in distances)
    near = sum(int(np.count_nonzero(each <= tolerance)) for each in distances)
    return near / total if total else 1.0


def _surface_distances(
    first: ArrayLike, second: ArrayLike, spacing: Sequence[float]
) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Return the distances of each surface voxel to the other surface; None where one is empty."""
    from scipy.ndimage import distance_transform_edt

    a, b = mask_pair(first, second, ("first", "second"))
    step = checks.one_each(checks.positive_numbers(spacing, "spacing"), "spacing", a.ndim, "axis")
    if not a.any() or not b.any():
        return None if a.any() or b.any() else (np.zeros(0), np.zeros(0))
    box = _box(a | b)
    outline_a, outline_b = _outline(a[box]), _outline(b[box])
    to_b = distance_transform_edt(~outline_b, sampling=step)
    to_a = distance_transform_edt(~outline_a, sampling=step)
    return to_b[outline_a], to_a[outline_b]


def _box(mask: NDArray[np.bool_]) -> tuple[slice, ...]:
    """Return the smallest box around a mask."""
    box = []
    for axis in range(mask.ndim):
        others = tuple(other for other in range(mask.ndim) if other != axis)
        filled = np.flatnonzero(mask.any(axis=others))
        box.append(slice(int(filled[0]), int(filled[-1]) + 1))
    return tuple(box)


def _outline(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    from scipy.ndimage import binary_erosion

    outline: NDArray[np.bool_] = mask & ~binary_erosion(mask)
    return outline
