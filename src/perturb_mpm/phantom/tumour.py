"""The solid tumour: an enhancing rim with gaps, a non-enhancing part, necrosis inside."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perturb_mpm.phantom.anatomy import Anatomy
from perturb_mpm.phantom.disease import Disease
from perturb_mpm.phantom.space import Array, Grid, Source, level_for_volume, soft_step

_SATELLITE_CHANCE = 0.45


@dataclass(frozen=True)
class Tumour:
    """Shares of the parts of a tumour at every voxel, (X, Y, Z) each."""

    enhancing: Array
    non_enhancing: Array
    necrosis: Array
    inside_mm: Array  # about how deep in the core a voxel lies, negative outside

    @property
    def core(self) -> Array:
        """The share of all three."""
        return self.enhancing + self.non_enhancing + self.necrosis


def tumour(source: Source, grid: Grid, disease: Disease, around: Anatomy) -> Tumour:
    """Return the solid tumour, with the volumes that ``disease`` states."""
    soft = edge_mm(grid)
    inside = core_depth_mm(source, grid, disease, around, disease.core_ml)
    core = soft_step(inside, soft)
    hard = around.mask & (inside > 0.0)

    thickness = np.exp(
        0.55 * source.noise(grid, "rim", 13.0) + 0.35 * source.noise(grid, "rim, fine", 5.0)
    )
    gap = soft_step(source.noise(grid, "gaps", 12.0) - 1.0, 0.15)
    near_rim = -np.maximum(inside, 0.0) / thickness - 14.0 * gap
    level = level_for_volume(near_rim, hard, disease.enhancing_ml, grid)
    rim_mm = (near_rim - np.float32(level)) * thickness
    enhancing = soft_step(np.minimum(inside, rim_mm), soft)

    bulk = 1.2 * source.noise(grid, "bulk", 12.0) + 2.0 * gap - 0.12 * np.maximum(inside, 0.0)
    rest = hard & (near_rim <= level)
    bulk_level = level_for_volume(bulk, rest, disease.non_enhancing_ml, grid)
    solid = soft_step(bulk - np.float32(bulk_level), 0.25)
    left = core - enhancing
    return Tumour(enhancing, left * solid, left * (1.0 - solid), inside)


def core_depth_mm(
    source: Source, grid: Grid, disease: Disease, around: Anatomy, volume_ml: float
) -> Array:
    """Return about how deep in the core each voxel lies; ``volume_ml`` of them are inside."""
    radius = _distorted_radius_mm(source, grid, disease, around)
    level = level_for_volume(-radius, around.mask, volume_ml, grid)
    return -np.float32(level) - radius


def edge_mm(grid: Grid) -> float:
    """Return how wide a sharp edge looks on a grid: partial volume."""
    return max(0.7, 0.4 * float(np.mean(grid.spacing)))


def _distorted_radius_mm(source: Source, grid: Grid, disease: Disease, around: Anatomy) -> Array:
    """Return a distance from the tumour's centre whose level sets are lobed and stay inside."""
    rng = source.rng("shape")
    points = grid.points()
    turn, _ = np.linalg.qr(rng.standard_normal((3, 3)))
    stretch = np.exp(rng.normal(0.0, 0.16, 3))
    turned = (stretch / np.cbrt(stretch.prod()))[:, None] * turn.T
    radius = _length(points, disease.centre, turned.astype(np.float32))
    if rng.random() < _SATELLITE_CHANCE:
        towards = rng.standard_normal(3)
        towards *= rng.uniform(1.35, 1.6) * disease.core_radius_mm / np.linalg.norm(towards)
        shrink = disease.core_radius_mm / rng.uniform(5.0, 8.0)
        place = (disease.centre + towards).astype(np.float32)
        satellite = shrink * _length(points, place, np.eye(3, dtype=np.float32))
        radius = np.minimum(radius, satellite + 20.0 * around.grey)
    lobes = np.exp(
        0.20 * source.noise(grid, "lobes", 17.0)
        + 0.09 * source.noise(grid, "lobes, fine", 7.0)
        + 0.04 * source.noise(grid, "lobes, finest", 4.0)
    )
    side = np.sign(disease.centre[0])
    across = soft_step(-around.atlas_mm[0] * side - 1.0, 1.5) * (1.0 - around.white)
    outside = soft_step(4.0 - around.depth_mm, 1.5)
    distorted: Array = radius * lobes * (1.0 + 0.35 * around.fluid) + 25.0 * across + 25.0 * outside
    return distorted


def _length(points: Array, centre: Array, matrix: Array) -> Array:
    """Return the length of ``matrix`` times the way from ``centre`` to each point."""
    x, y, z = (points[axis] - centre[axis] for axis in range(3))
    squared = sum((row[0] * x + row[1] * y + row[2] * z) ** 2 for row in matrix)
    length: Array = np.sqrt(squared)
    return length
