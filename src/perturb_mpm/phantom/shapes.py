"""The clay that the phantom is made of: smooth noise, soft edges, ellipsoids."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_BOX_MM = 240.0
_SPLINE_SD = (151.0 / 315.0) ** 1.5  # of white noise under a cubic B-spline in three dimensions


def smooth_noise(points: Array, scale_mm: float, rng: np.random.Generator) -> Array:
    """Return unit-variance noise at ``points`` (3, *shape) that varies over ``scale_mm``.

    The random numbers sit on a lattice of their own, so the field is the same whichever points
    ask for it.
    """
    from scipy.ndimage import map_coordinates

    nodes = int(np.ceil(_BOX_MM / scale_mm)) + 4
    lattice = rng.standard_normal((nodes, nodes, nodes))
    positions = points / scale_mm + (nodes - 1) / 2.0  # (3, *shape)
    field: Array = map_coordinates(lattice, positions, order=3, prefilter=False, mode="nearest")
    return field / _SPLINE_SD


def soft_step(signed_mm: Array, soft_mm: float) -> Array:
    """Return 0 far below zero, 1 far above, with an edge about ``soft_mm`` wide."""
    step: Array = 0.5 + 0.5 * np.tanh(signed_mm / soft_mm)
    return step


def inside_ellipsoid_mm(
    points: Array, centre: tuple[float, float, float], half_axes: tuple[float, float, float]
) -> Array:
    """Return about how deep (mm) each point lies inside an ellipsoid; negative outside."""
    scaled = (points - _column(centre)) / _column(half_axes)
    depth: Array = (1.0 - np.sqrt((scaled**2).sum(axis=0))) * min(half_axes)
    return depth


def _column(vector: tuple[float, float, float]) -> Array:
    return np.array(vector).reshape(3, 1, 1, 1)
