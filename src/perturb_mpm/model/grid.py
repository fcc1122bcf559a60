"""The voxel grid: its shape, its spacing in millimetres, and the mask of the voxels in play."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perturb_mpm import checks


@dataclass(frozen=True, eq=False, init=False)
class Grid:
    """How an array over a 1-D to 4-D image becomes the N voxels inside the mask, and back.

    ``spacing`` is in mm, one number for every axis or one for each (1 mm where it is None). A
    voxel is inside where ``mask`` is not zero; without a mask every voxel is.

    Examples
    --------
    >>> grid = pm.Grid((2, 3), spacing=(1.0, 2.5), mask=[[1, 1, 0], [0, 1, 0]])
    >>> grid.voxels
    3
    >>> inside = grid.gather(np.arange(6).reshape(2, 3))
    >>> inside
    array([0, 1, 4])
    >>> grid.scatter(inside, outside=-1)
    array([[ 0,  1, -1],
           [-1,  4, -1]])
    """

    shape: tuple[int, ...]
    spacing: tuple[float, ...]
    mask: NDArray[np.bool_] | None

    def __init__(
        self,
        shape: Sequence[int],
        spacing: float | Sequence[float] | None = None,
        mask: ArrayLike | None = None,
    ) -> None:
        sizes = tuple(checks.integer(size, "shape", minimum=1) for size in shape)
        if not 1 <= len(sizes) <= 4:
            raise ValueError(f"shape must have 1 to 4 axes, got {sizes}")
        given = checks.positive_numbers(1.0 if spacing is None else spacing, "spacing")
        for size in given if isinstance(given, tuple) else (given,):
            low, high = checks.SMALLEST_LENGTH, checks.LARGEST_LENGTH
            checks.number(size, "spacing", minimum=low, maximum=high)
        each = checks.one_each(given, "spacing", len(sizes), "axis")
        object.__setattr__(self, "shape", sizes)
        object.__setattr__(self, "spacing", tuple(float(size) for size in each))
        object.__setattr__(self, "mask", None if mask is None else _checked_mask(mask, sizes))

    @property
    def ndim(self) -> int:
        """The number of axes of the image."""
        return len(self.shape)

    @cached_property
    def index(self) -> NDArray[np.int64]:
        """The flat (C-order) index in the whole image of each voxel inside the mask, (N,)."""
        if self.mask is None:
            index = np.arange(math.prod(self.shape), dtype=np.int64)
        else:
            index = np.flatnonzero(self.mask).astype(np.int64)
        return checks.read_only(index)

    @property
    def voxels(self) -> int:
        """N, the number of voxels inside the mask."""
        return int(self.index.size)

    def gather(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return the values inside the mask: (…, *shape) → (…, N), always a copy."""
        leading = array.shape[: array.ndim - self.ndim]
        if array.shape[len(leading) :] != self.shape:
            raise ValueError(f"array must end in the shape {self.shape}, got {array.shape}")
        return array.reshape(*leading, -1).take(self.index, axis=-1)

    def scatter(self, values: NDArray[Any], outside: ArrayLike) -> NDArray[Any]:
        """Put values back into the image: (…, N) → (…, *shape).

        Voxels outside the mask take ``outside``: one value, or one for each leading index.
        """
        leading = values.shape[:-1]
        full = np.zeros((*leading, math.prod(self.shape)), dtype=values.dtype)
        each = np.broadcast_to(outside, leading)
        for row in np.ndindex(leading):  # all at once, NumPy would go from row to row
            if each[row]:
                full[row] = each[row]
            full[row][self.index] = values[row]
        return full.reshape(*leading, *self.shape)

    def positions(self) -> NDArray[np.float64]:
        """Return the position of each voxel in mm, (N, ndim): index times spacing."""
        indices = np.unravel_index(self.index, self.shape)
        spacing: NDArray[np.float64] = np.array(self.spacing)
        return np.stack(indices, axis=-1) * spacing


def _checked_mask(mask: ArrayLike, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    array = checks.numeric(mask, "mask")
    if array.shape != shape:
        raise ValueError(f"mask must have the image's shape {shape}, got {array.shape}")
    checks.finite(array, "mask")
    inside: NDArray[np.bool_] = array != 0
    if not inside.any():
        raise ValueError("mask must contain at least one voxel, got an empty mask")
    return checks.read_only(inside)


def bounding_box(mask: NDArray[np.bool_]) -> tuple[slice, ...]:
    """Return the smallest box that holds every voxel of a mask, which must have one.

    Examples
    --------
    >>> from perturb_mpm.model import bounding_box
    >>> bounding_box(np.array([[False, True, True], [False, False, False]]))
    (slice(0, 1, None), slice(1, 3, None))
    """
    box = []
    for axis in range(mask.ndim):
        others = tuple(other for other in range(mask.ndim) if other != axis)
        inside = np.flatnonzero(mask.any(axis=others))
        box.append(slice(int(inside[0]), int(inside[-1]) + 1))
        mask = mask[(slice(None),) * axis + (box[-1],)]  # the next axis has less to look at
    return tuple(box)
