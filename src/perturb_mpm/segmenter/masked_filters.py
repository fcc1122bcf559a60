"""Filters in mm that see only the voxels inside the mask, a thread for each channel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.engines import Compute, available_cores

Array3D = NDArray[np.float32]

_TRUNCATE = 3.0  # sigmas at which a Gaussian is cut off
_LEAST_SHARE = 1e-3  # of a filter's weight inside the mask; below it the value is 0

Item = TypeVar("Item")
Result = TypeVar("Result")
_limit: ContextVar[int | None] = ContextVar("threads", default=None)


def whole_voxels(length_mm: float, spacing: Sequence[float]) -> tuple[int, ...]:
    """Return a length in whole voxels along each axis, at least one."""
    return tuple(max(1, round(length_mm / edge)) for edge in spacing)


def gaussian_mean(
    image: Array3D, mask: Array3D, sigma_mm: float, spacing: Sequence[float]
) -> Array3D:
    """Return the mean of the voxels inside the mask, weighted by a Gaussian.

    ``image`` must be 0 where ``mask`` is 0. Voxels far outside the mask are 0.
    """
    return _share(_gaussian(image, sigma_mm, spacing), _gaussian(mask, sigma_mm, spacing))


def box_sum(image: Array3D, radius: Sequence[int]) -> Array3D:
    """Return the mean over the box of 2·radius + 1 voxels around each voxel, outside counted as 0.

    Divided by the same of the mask it is the mean inside the mask.
    """
    from scipy.ndimage import correlate1d, uniform_filter1d

    edge = 2 * radius[0] + 1
    weights = np.full(edge, 1.0 / edge)
    # A running sum would depend on where the slab begins.
    result = correlate1d(image, weights, axis=0, mode="constant")
    for axis in (1, 2):
        size = 2 * radius[axis] + 1
        result = uniform_filter1d(result, size, axis=axis, mode="constant")
    filtered: Array3D = result
    return filtered


def box_mean(image: Array3D, inside: Array3D, radius: Sequence[int]) -> Array3D:
    """Return the mean of the voxels inside the mask in a box; ``inside`` is box_sum of the mask."""
    return _share(box_sum(image, radius), inside)


def box_extreme(
    image: Array3D, mask: NDArray[np.bool_], radius: Sequence[int], *, largest: bool
) -> Array3D:
    """Return the largest or smallest value inside the mask in a box (0 where the box has none)."""
    from scipy.ndimage import maximum_filter, minimum_filter

    nowhere = np.float32(-np.inf if largest else np.inf)
    size = tuple(2 * r + 1 for r in radius)
    apply = maximum_filter if largest else minimum_filter
    found = apply(np.where(mask, image, nowhere), size=size, mode="nearest")
    extreme: Array3D = np.where(np.isfinite(found), found, np.float32(0))
    return extreme


@contextmanager
def limit_threads(threads: int | None) -> Iterator[None]:
    """Let the segmenter use no more than so many threads, or all processors where it is None."""
    before = _limit.set(Compute(threads=threads).threads)  # checked there
    try:
        yield
    finally:
        _limit.reset(before)


def available_threads() -> int:
    """Return how many threads may be used: the limit, else one for each processor."""
    limit = _limit.get()
    return available_cores() if limit is None else limit


def map_in_threads(task: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Return ``task`` of every item, in order; SciPy's filters run side by side."""
    with ThreadPoolExecutor(available_threads()) as executor:
        return list(executor.map(task, items))


def _gaussian(image: Array3D, sigma_mm: float, spacing: Sequence[float]) -> Array3D:
    from scipy.ndimage import gaussian_filter

    sigma = [sigma_mm / edge for edge in spacing]
    filtered: Array3D = gaussian_filter(image, sigma, mode="constant", truncate=_TRUNCATE)
    return filtered


def _share(total: Array3D, weight: Array3D) -> Array3D:
    enough = weight > _LEAST_SHARE
    mean: Array3D = np.divide(total, weight, out=np.zeros_like(total), where=enough)
    return mean
