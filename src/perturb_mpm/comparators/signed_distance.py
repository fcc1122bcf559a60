"""The signed distance to the contour of a region, in mm: positive inside, negative outside."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.grid import Grid


def euclidean(region: NDArray[np.bool_], grid: Grid) -> NDArray[np.float64]:
    """Return the distance (*spatial) to the box of the nearest voxel on the other side.

    The contour runs between voxels: one beside it is half a voxel away from it on either side. It
    is a staircase, to which it is up to about half a voxel less far than to a smooth contour.
    """
    outside = _to_nearest(region, grid)
    return outside - _to_nearest(~region, grid)


def geodesic(
    region: NDArray[np.bool_], grid: Grid, image: NDArray[np.floating], edge_mm: float
) -> NDArray[np.float64]:
    """Return the length (*spatial) of the shortest way to the contour, edges making it longer.

    A step of ds in mm counts as √(1 + (edge_mm · |∇I|)²) ds with the z-scored image I and its
    gradient per mm: a rise of one standard deviation is worth ``edge_mm`` more or less.
    """
    from perturb_mpm.comparators.fast_marching import march

    scaled = (image - image.mean()) / (image.std() or 1.0)
    squares = np.zeros(grid.shape)
    for axis, size in enumerate(grid.shape):
        if size > 1:
            squares += np.gradient(scaled, grid.spacing[axis], axis=axis) ** 2
    slowness = np.sqrt(1 + edge_mm**2 * squares)  # (*spatial)
    straight = euclidean(region, grid)
    beside = np.zeros(grid.shape, dtype=bool)
    for axis in range(grid.ndim):
        differs = np.diff(region, axis=axis)
        ends = [(0, 0)] * grid.ndim
        for before in (0, 1):
            ends[axis] = (before, 1 - before)
            beside |= np.pad(differs, ends)
    times = np.where(beside, np.abs(straight) * slowness, np.inf)
    march(times.reshape(-1), slowness.reshape(-1), np.array(grid.shape), np.array(grid.spacing))
    return np.where(region, times, -times)


def _to_nearest(region: NDArray[np.bool_], grid: Grid) -> NDArray[np.float64]:
    """Return each voxel's distance to the nearest box outside the region, 0 outside."""
    from scipy.ndimage import distance_transform_edt

    nearest = distance_transform_edt(
        region, sampling=grid.spacing, return_distances=False, return_indices=True
    )  # (ndim, *spatial)
    squares = np.zeros(grid.shape)
    for axis, size in enumerate(grid.spacing):
        away = np.abs(nearest[axis] - np.indices(grid.shape, sparse=True)[axis]) * size
        squares += np.maximum(away - size / 2, 0.0) ** 2
    return np.sqrt(squares)
