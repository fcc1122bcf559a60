"""The healthy tissue of one person: white and grey matter, fluid, brain mask."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.phantom.atlas import atlas
from perturb_mpm.phantom.disease import Disease
from perturb_mpm.phantom.head import to_atlas, undo_push
from perturb_mpm.phantom.space import Array, Grid, Source

_SHARPEN = 2.0  # the atlas is an average and therefore blurred; nobody's own brain is


@dataclass(frozen=True)
class Anatomy:
    """Shares of tissue at every voxel of a grid, (X, Y, Z) each."""

    white: Array
    grey: Array
    fluid: Array
    mask: NDArray[np.bool_]
    depth_mm: Array  # below the surface of the brain
    atlas_mm: Array  # (3, X, Y, Z), where in the atlas a voxel lies


def anatomy(source: Source, grid: Grid, disease: Disease) -> Anatomy:
    """Return the tissue of one person, pushed aside by the tumour."""
    maps = atlas()
    points = grid.points()
    resting = to_atlas(source, grid, points)
    depth = maps.look_up(maps.depth_mm, resting, outside=-20.0)
    before = undo_push(points, disease.centre, disease.pushing_radius_mm, depth)
    place = resting + (before - points)

    grey = maps.look_up(maps.grey, place)
    white = maps.look_up(maps.white, place)
    fluid = np.maximum(maps.look_up(maps.brain, place) - grey - white, 0.0)
    white, grey, fluid = _individual(source, grid, points, disease, (white, grey, fluid))

    trimmed_mm = 2.2 + 0.7 * source.noise(grid, "skull stripping", 15.0)
    return Anatomy(white, grey, fluid, depth > trimmed_mm, depth, place)


def _individual(
    source: Source,
    grid: Grid,
    points: Array,
    disease: Disease,
    shares: tuple[Array, Array, Array],
) -> tuple[Array, Array, Array]:
    """Return shares of white, grey and fluid with folds of their own, that sum to 1."""
    rng = source.rng("atrophy")
    atrophy = float(rng.normal(0.55, 0.25))
    squared = ((points - disease.centre.reshape(3, 1, 1, 1)) ** 2).sum(axis=0)
    squeezed = disease.push * np.exp(
        -squared / np.float32(2.0 * (1.5 * disease.core_radius_mm) ** 2)
    )
    folds = (
        0.30 * source.noise(grid, "white folds", 7.0),
        0.30 * source.noise(grid, "grey folds", 6.0),
        0.55 * source.noise(grid, "sulci", 6.0) + atrophy - 1.6 * squeezed,
    )
    powers = [
        np.exp(_SHARPEN * (np.log(share + np.float32(0.02)) + fold))
        for share, fold in zip(shares, folds)
    ]
    total = powers[0] + powers[1] + powers[2]
    white, grey, fluid = ((power / total).astype(np.float32) for power in powers)
    return white, grey, fluid
