"""Size and form of one structure: area, diameters, sphericity, pieces. All in mm.

Diameters are between centres of voxels, as SimpleITK's Feret diameter: a structure of one voxel
has the diameter 0. The surface area is Crofton's: how often lines along the 13 directions to a
voxel's neighbours enter and leave the structure, each direction weighted by the part of the sphere
that is nearest to it. Unlike the area of a mesh between voxels it does not grow with the
staircase, and on cubic voxels it is SimpleITK's perimeter.
"""

from __future__ import annotations

import itertools
import math
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.measures.lesions import connected_pieces
from perturb_mpm.measures.structure import Structure

_CORNERS = np.array(list(itertools.product((0, 1), repeat=3)))  # (8, 3)
_MOST_POINTS = 1000  # all pairs of so many are compared at once
_HULL_FROM = 100  # points; of fewer, comparing all pairs is faster than their hull


def volume_ml(structure: Structure) -> float:
    """Return the volume in ml."""
    return structure.volume_mm3 / 1000


def surface_area_mm2(structure: Structure) -> float:
    """Return the area of the surface by Crofton's formula, mm²."""
    if structure.voxels == 0:
        return 0.0
    return float(neighbourhoods(structure.mask) @ crofton_areas(structure.spacing))


def sphericity(structure: Structure) -> float:
    """Return the area of a ball of the same volume over the surface area; NaN where it is empty."""
    if structure.voxels == 0:
        return math.nan
    ball = math.pi ** (1 / 3) * (6 * structure.volume_mm3) ** (2 / 3)
    return float(ball / surface_area_mm2(structure))


def components(structure: Structure) -> float:
    """Return the number of connected pieces, by 26 neighbours."""
    return float(connected_pieces(structure.mask)[1]) if structure.voxels else 0.0


def diameter_mm(structure: Structure) -> float:
    """Return the longest distance between two of its voxels, in any direction."""
    points = extreme_points(structure.mask) * np.array(structure.spacing)
    if len(points) < 2:
        return 0.0
    one, other = farthest_pair(points)
    return float(np.linalg.norm(points[one] - points[other]))


def bidirectional_mm2(structure: Structure) -> float:
    """Return the largest product of perpendicular diameters in an axial slice (RANO)."""
    first, second = axial_diameters_mm(structure)
    return first * second


def axial_diameter_mm(structure: Structure) -> float:
    """Return the longer diameter of the slice with the largest product."""
    return axial_diameters_mm(structure)[0]


def perpendicular_diameter_mm(structure: Structure) -> float:
    """Return the shorter diameter of the slice with the largest product."""
    return axial_diameters_mm(structure)[1]


def axial_diameters_mm(structure: Structure) -> tuple[float, float]:
    """Return both diameters of the axial slice with the largest product.

    In each slice, and in each connected piece of it (8 neighbours): the longest distance between
    two voxels, and across it the longest distance between voxels on one perpendicular line, which
    is as wide as a voxel.
    """
    if "axial diameters" not in structure.cache:
        structure.cache["axial diameters"] = _axial_diameters(structure)
    return structure.cache["axial diameters"]


def _axial_diameters(structure: Structure) -> tuple[float, float]:
    from scipy.ndimage import find_objects, label

    across = structure.patient.across
    slices = np.moveaxis(structure.mask, across, 0)  # (slices, rows, columns)
    step = np.delete(structure.spacing, across)
    best, least = (0.0, 0.0), 0.0
    # A product cannot exceed the square of the diagonal of a slice's box: the largest come first.
    for each in sorted(slices, key=np.count_nonzero, reverse=True):
        if not each.any():
            break
        pieces, _ = label(each, structure=np.ones((3, 3)))
        for number, box in enumerate(find_objects(pieces), start=1):
            piece = pieces[box] == number
            sides = (np.array(piece.shape) - 1) * step
            if float(sides @ sides) <= least:
                continue
            found = _perpendicular_diameters(piece, step)
            if found[0] * found[1] > least or best == (0.0, 0.0):
                best, least = found, found[0] * found[1]
    return best


def _perpendicular_diameters(
    piece: NDArray[np.bool_], step: NDArray[np.float64]
) -> tuple[float, float]:
    """Return the longest distance within a piece (rows, columns), and the longest across it, mm."""
    corners = extreme_points(piece) * step
    if len(corners) < 2:
        return 0.0, 0.0
    start, end = corners[list(farthest_pair(corners))]
    length = float(np.linalg.norm(end - start))
    along = (end - start) / length
    points = np.argwhere(piece) * step - start
    position, sideways = points @ along, points @ np.array([-along[1], along[0]])
    # Two rulings, half a width apart: a chord that one of them cuts in two lies in the other.
    width, widest = float(step.max()), 0.0
    for offset in (0.0, 0.5):
        line = np.floor(position / width + offset).astype(np.int64)
        line -= line.min()
        high = np.full(line.max() + 1, -math.inf)
        low = np.full(line.max() + 1, math.inf)
        np.maximum.at(high, line, sideways)
        np.minimum.at(low, line, sideways)
        widest = max(widest, float((high - low).max()))
    return length, widest


def extreme_points(mask: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the voxels that are first or last along every axis, (P, ndim): all corners do so."""
    outer = mask.copy()
    if mask.size == 0:
        return np.argwhere(outer)
    for axis, size in enumerate(mask.shape):
        first = mask.argmax(axis=axis)
        last = size - 1 - np.flip(mask, axis).argmax(axis=axis)
        at = np.arange(size).reshape([-1 if k == axis else 1 for k in range(mask.ndim)])
        outer &= (at == np.expand_dims(first, axis)) | (at == np.expand_dims(last, axis))
    return np.argwhere(outer)


def farthest_pair(points: NDArray[np.float64]) -> tuple[int, int]:
    """Return the indices of two points (P, ndim) that are farthest apart."""
    from scipy.spatial.distance import cdist

    index = np.arange(len(points)) if len(points) < _HULL_FROM else _hull(points)
    best, pair = -1.0, (0, 0)
    corners = points[index]
    for start in range(0, len(corners), _MOST_POINTS):
        block = corners[start : start + _MOST_POINTS]
        squares = cdist(block, corners, "sqeuclidean")
        one, other = np.unravel_index(int(squares.argmax()), squares.shape)
        if squares[one, other] > best:
            best = float(squares[one, other])
            pair = int(index[start + one]), int(index[other])
    return pair


def _hull(points: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the corners of the convex hull; all points where they lie in a plane or on a line."""
    from scipy.spatial import ConvexHull, QhullError

    try:
        return np.asarray(ConvexHull(points).vertices, dtype=np.int64)
    except QhullError:
        return np.arange(len(points))


def neighbourhoods(mask: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Count the 2×2×2 neighbourhoods of a mask by which voxels are inside, (256,).

    Bit b is corner b in C order; beyond the mask everything is outside.
    """
    codes: NDArray[np.integer[Any]] = np.pad(mask, 1).view(np.uint8)
    codes = codes[:, :, :-1] | codes[:, :, 1:] << 1
    codes = codes[:, :-1] | codes[:, 1:] << 2
    codes = codes[:-1] | codes[1:] << 4
    return np.bincount(codes.ravel(), minlength=256)


@cache
def crofton_areas(spacing: tuple[float, ...]) -> NDArray[np.float64]:
    """Return the area in mm² that a neighbourhood contributes, by its code, (256,).

    A line of direction d stands for vol/|d| mm² of a plane across it. A surface is crossed S/2
    times by such lines on average over directions, so S = 2 Σ_d w_d · vol/|d| · crossings.
    """
    step = np.array(spacing)
    directions = [np.array(d) for d in itertools.product((-1, 0, 1), repeat=3) if any(d)]
    weights = _direction_weights(spacing)
    inside = np.arange(256)[:, np.newaxis] >> np.arange(8) & 1  # (256, 8)
    where = {tuple(corner): bit for bit, corner in enumerate(_CORNERS.tolist())}
    areas = np.zeros(256)
    for direction, weight in zip(directions, weights):
        density = float(step.prod() / np.linalg.norm(direction * step))
        # Neighbourhoods share a pair along an axis by four, across a face by two.
        shared = 2 ** int((direction == 0).sum())
        for corner, bit in where.items():
            end = where.get(tuple(np.add(corner, direction).tolist()))
            if end is not None:
                crossed = inside[:, bit] != inside[:, end]
                areas += 2 * weight * density * crossed / shared
    return areas


def _direction_weights(spacing: tuple[float, ...]) -> NDArray[np.float64]:
    """Return the share of the sphere nearest to each of the 26 directions, which sum to 1."""
    from scipy.spatial import SphericalVoronoi

    directions = np.array([d for d in itertools.product((-1, 0, 1), repeat=3) if any(d)])
    ends = directions * np.array(spacing)
    ends = ends / np.linalg.norm(ends, axis=1, keepdims=True)
    areas = SphericalVoronoi(ends).calculate_areas()
    return areas / areas.sum()
