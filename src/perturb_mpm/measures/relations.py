"""A structure beside something else: another mask, its own label map, an image, a dose.

Distances are between centres of voxels, so that neighbours by a face are a voxel apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.evaluation import SurfaceDistances, dice, surface_distances
from perturb_mpm.measures.structure import Structure, box_around_both

ENTROPY_BINS = 32
SURFACE_TOLERANCE_MM = 1.0


def distance_mm(structure: Structure, other: str) -> float:
    """Return the shortest distance to another mask, 0 where they overlap; NaN where one is empty.

    The other is a given mask, or a structure of the same sample.
    """
    if other in structure.patient.masks:
        mask = structure.given_mask(other)
        if structure.voxels == 0 or not mask.any():
            return math.nan
        away = structure.patient.distance_map(f"mask {other}", mask)
        return float(structure.values(away).min())
    return _shortest_distance(structure, structure.other(other))


def _shortest_distance(one: Structure, other: Structure) -> float:
    """Return the shortest distance of two structures of one sample."""
    from scipy.spatial import cKDTree

    if one.voxels == 0 or other.voxels == 0:
        return math.nan
    box = box_around_both(one, other)
    first, second = one.in_box(box), other.in_box(box)
    if (first & second).any():
        return 0.0
    tree = cKDTree(_outline(first) * one.spacing)
    return float(tree.query(_outline(second) * one.spacing)[0].min())


def _outline(mask: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the voxels with a neighbour by face outside, (V, 3)."""
    from scipy.ndimage import binary_erosion

    return np.argwhere(mask & ~binary_erosion(mask))


def contact_mm2(structure: Structure, other: str) -> float:
    """Return the area of the voxel faces between the part outside another mask and that mask."""
    first, second = _side_by_side(structure, other)
    own, total, voxel = first & ~second, 0.0, structure.patient.voxel_mm3
    for axis, step in enumerate(structure.spacing):
        before = tuple(slice(None, -1) if k == axis else slice(None) for k in range(3))
        after = tuple(slice(1, None) if k == axis else slice(None) for k in range(3))
        faces = (own[before] & second[after]) | (own[after] & second[before])
        total += np.count_nonzero(faces) * voxel / step
    return float(total)


def overlap_ml(structure: Structure, other: str) -> float:
    """Return the volume in both, ml."""
    first, second = _side_by_side(structure, other)
    return float(np.count_nonzero(first & second)) * structure.patient.voxel_mm3 / 1000


def _side_by_side(structure: Structure, other: str) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return a structure and another mask in the structure's box and a voxel around it."""
    shape = structure.patient.grid.shape
    box = tuple(
        slice(max(each.start - 1, 0), min(each.stop + 1, size))
        for each, size in zip(structure.box, shape)
    )
    own = structure.in_box(box)
    if other in structure.patient.masks:
        return own, structure.given_mask(other)[box]
    second = structure.other(other)
    wide = second.in_box(tuple(slice(0, size) for size in shape))
    return own, wide[box]


def margin_mm(structure: Structure) -> float:
    """Return how far the structure reaches out of the label map's, 0 where it does not, mm.

    The label map grown by the 95 % quantile of this contains all of 95 % of the samples. Set-up
    error and motion are not in it.
    """
    reference = structure.reference
    if structure.voxels == 0:
        return 0.0
    if reference.voxels == 0:
        return math.nan
    whole = reference.in_box(tuple(slice(0, size) for size in structure.patient.grid.shape))
    away = structure.patient.distance_map(f"label map {structure.name}", whole)
    return float(structure.values(away).max())


def dice_with_label_map(structure: Structure) -> float:
    """Return the Dice with the label map: the law of the Dice that a truth would give."""
    box = box_around_both(structure, structure.reference)
    return dice(structure.in_box(box), structure.reference.in_box(box))


def surface_dice(structure: Structure) -> float:
    """Return the share of both outlines within 1 mm of the other."""
    return _distances(structure).dice(SURFACE_TOLERANCE_MM)


def hausdorff95_mm(structure: Structure) -> float:
    """Return the 95th percentile of distances between outlines; NaN where only one is empty."""
    found = _distances(structure).hausdorff95
    return found if math.isfinite(found) else math.nan


def _distances(structure: Structure) -> SurfaceDistances:
    if "surface distances" not in structure.cache:
        box = box_around_both(structure, structure.reference)
        masks = structure.in_box(box), structure.reference.in_box(box)
        structure.cache["surface distances"] = surface_distances(*masks, structure.spacing)
    return structure.cache["surface distances"]


def intensity(
    structure: Structure, image: str, summarize: Callable[[NDArray[np.floating]], np.floating]
) -> float:
    """Return a statistic of an image inside; NaN where it is empty."""
    values = structure.intensities(image)
    return float(summarize(values)) if len(values) else math.nan


def bin_entropy(values: NDArray[np.floating]) -> np.floating:
    """Return the entropy in bits of values (V,), in 32 bins between their extremes."""
    counts, _ = np.histogram(values, bins=ENTROPY_BINS)
    shares = counts[counts > 0] / len(values)
    return -(shares * np.log2(shares)).sum()


def dose(structure: Structure, summarize: Callable[[NDArray[np.floating]], np.floating]) -> float:
    """Return a statistic of the dose inside; NaN where it is empty, or beyond the dose's grid."""
    if structure.patient.dose_gy is None:
        raise ValueError("a measure of dose needs a `dose`, got none")
    values = structure.values(structure.patient.dose_gy)
    return math.nan if np.isnan(values).any() or not len(values) else float(summarize(values))
