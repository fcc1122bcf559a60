"""The healthy brain: white matter, folded cortex, deep grey nuclei, ventricles, fissure."""

from __future__ import annotations

import numpy as np

from perturb_mpm.phantom.shapes import Array, inside_ellipsoid_mm, smooth_noise, soft_step

BRAIN_HALF_AXES_MM = (68.0, 84.0, 62.0)  # left–right, back–front, down–up

_DEEP_GREY_MM = (  # centre and half axes of the right-hand one of each pair
    ((12.0, -10.0, 2.0), (8.0, 13.0, 9.0)),  # thalamus
    ((25.0, 6.0, 3.0), (5.5, 16.0, 10.0)),  # putamen
    ((13.0, 21.0, 9.0), (4.5, 8.0, 9.0)),  # head of the caudate
)


def brain_depth_mm(points: Array, rng: np.random.Generator) -> Array:
    """Return about how far (mm) each of ``points`` (3, *shape) lies below the brain's surface."""
    x, y, z = points
    a, b, c = BRAIN_HALF_AXES_MM
    width = a * (0.93 - 0.09 * y / b)  # broader at the back
    radius = ((np.abs(x) / width) ** 2.3 + np.abs(y / b) ** 2.3 + np.abs(z / c) ** 2.3) ** (1 / 2.3)
    wobble = 1.5 * smooth_noise(points, 16.0, rng)
    notch = 5.0 * np.exp(-((x / 4.0) ** 2))  # the fissure seen from outside
    flat_base = z + 0.75 * c
    depth: Array = np.minimum((1.0 - radius) * 0.9 * a, flat_base) - 2.0 + wobble - notch
    return depth


def healthy_tissue(
    points: Array, depth: Array, soft_mm: float, rng: np.random.Generator
) -> dict[str, Array]:
    """Return the shares of white matter, grey matter and fluid at every voxel; they sum to 1."""
    fissure = _fissure_mm(points, rng)
    surface = np.minimum(depth - 1.2, _fold_distance_mm(points, depth, rng))
    fluid = soft_step(np.maximum.reduce([_ventricles_mm(points), fissure, -surface]), soft_mm)
    cortex = np.maximum(3.2 - surface, fissure + 3.2)
    grey = np.maximum(
        soft_step(cortex, soft_mm), 0.8 * soft_step(_deep_grey_mm(points), 2.0 * soft_mm)
    )
    grey = grey * (1.0 - fluid)
    return {"white": 1.0 - grey - fluid, "grey": grey, "fluid": fluid}


def _fold_distance_mm(points: Array, depth: Array, rng: np.random.Generator) -> Array:
    """Return about how far each point lies from the nearest fold of the surface.

    Folds are where a smooth random field crosses zero: sheets that wind and never end abruptly.
    They close some 2 cm below the surface.
    """
    scale_mm = 9.0
    field = smooth_noise(points, scale_mm, rng) + 0.15 * smooth_noise(points, 5.0, rng)
    closing = 0.012 * np.maximum(depth - 7.0, 0.0) ** 2
    distance: Array = np.abs(field) * 0.75 * scale_mm - 0.7 + closing
    return distance


def _fissure_mm(points: Array, rng: np.random.Generator) -> Array:
    """Return how deep each point lies in the sheet between the hemispheres, above the callosum."""
    x, y, z = points
    sheet = 0.8 - np.abs(x + 1.2 * smooth_noise(points, 18.0, rng))
    outside_callosum = (np.hypot(y / 44.0, (z - 6.0) / 26.0) - 1.0) * 26.0
    inside: Array = np.minimum(sheet, outside_callosum)
    return inside


def _ventricles_mm(points: Array) -> Array:
    """Return how deep each point lies inside the lateral ventricles or the third."""
    x, y, z = points
    along = (y + 2.0) / 34.0
    bow = 7.0 + 9.0 * along**2  # the horns turn outwards
    half_width = 6.0 * np.clip(1.0 - along**2, 0.02, None) ** 0.35
    lateral = (1.0 - np.hypot((np.abs(x) - bow) / half_width, (z - 12.0) / 11.0)) * half_width
    lateral = np.minimum(lateral, (1.0 - np.abs(along)) * 34.0)
    third = inside_ellipsoid_mm(points, (0.0, -4.0, -2.0), (1.8, 11.0, 9.0))
    inside: Array = np.maximum(lateral, third)
    return inside


def _deep_grey_mm(points: Array) -> Array:
    """Return how deep each point lies inside the nearest deep grey nucleus."""
    mirrored = np.stack([np.abs(points[0]), points[1], points[2]])
    inside = [inside_ellipsoid_mm(mirrored, centre, axes) for centre, axes in _DEEP_GREY_MM]
    deepest: Array = np.maximum.reduce(inside)
    return deepest
