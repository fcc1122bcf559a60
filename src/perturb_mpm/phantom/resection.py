"""Surgery: a cavity with fluid and air, blood along its wall, and what was left behind."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perturb_mpm.phantom.anatomy import Anatomy
from perturb_mpm.phantom.disease import Disease
from perturb_mpm.phantom.space import Array, Grid, Source, level_for_volume, soft_step
from perturb_mpm.phantom.tumour import core_depth_mm, edge_mm

_SHRINKAGE = (0.6, 0.85)  # the cavity's volume over that of the core: the brain falls back
_SHELL_MM = 5.0  # remnants lie that near to the wall


@dataclass(frozen=True)
class Resection:
    """Shares of what surgery leaves at every voxel, (X, Y, Z) each."""

    cavity: Array
    blood: Array
    air: Array
    residual: Array  # enhancing tumour

    @property
    def all(self) -> Array:
        """The share of everything above."""
        return self.cavity + self.blood + self.air + self.residual


def resection(
    source: Source, grid: Grid, disease: Disease, around: Anatomy, residual_ml: float
) -> Resection:
    """Return the cavity where the core was, and ``residual_ml`` of enhancing tumour at its wall."""
    soft = edge_mm(grid)
    rng = source.rng("surgery")
    volume_ml = disease.core_ml * rng.uniform(*_SHRINKAGE)
    inside = core_depth_mm(source, grid, disease, around, volume_ml)
    inside = np.maximum(inside, _corridor_mm(source, grid, disease, around))
    inside = (
        inside + 1.1 * source.noise(grid, "wall", 9.0) + 0.6 * source.noise(grid, "frayed", 4.5)
    )
    hole = soft_step(inside, soft) * soft_step(around.depth_mm - 1.5, soft)

    residual = _residual(source, grid, around, inside, residual_ml)
    hole = hole * (1.0 - residual)

    clots = source.noise(grid, "clots", 10.0) + 0.5 * source.noise(grid, "clots, fine", 5.0)
    thick_mm = np.maximum(0.9 + 1.3 * clots, 0.0)
    at_wall = soft_step(thick_mm - np.abs(inside - 0.4), soft) * soft_step(thick_mm - 0.4, 0.3)
    blood = at_wall * (1.0 - residual) * soft_step(around.depth_mm - 1.5, soft)
    fluid = hole * (1.0 - at_wall)

    # The patient lies on the back: air rises to the front, blood settles behind.
    front = grid.points()[1]
    pool = (inside > 2.0) & (fluid > 0.5)
    air_level = level_for_volume(front, pool, volume_ml * rng.uniform(0.01, 0.07), grid)
    sediment = level_for_volume(-front, pool, volume_ml * max(rng.uniform(-0.1, 0.1), 0.0), grid)
    air = fluid * soft_step(front - np.float32(air_level), soft)
    settled = (fluid - air) * soft_step(-front - np.float32(sediment), soft)
    return Resection(fluid - air - settled, blood + settled, air, residual)


def _corridor_mm(source: Source, grid: Grid, disease: Disease, around: Anatomy) -> Array:
    """Return how deep each voxel lies in the way that leads straight out from the core."""
    from scipy.ndimage import map_coordinates

    centre = disease.centre.astype(np.float64)
    ways = source.rng("corridor").standard_normal((200, 3))
    ways[:, 0] = np.abs(ways[:, 0]) * np.sign(centre[0])
    ways[:, 2] = np.abs(ways[:, 2])
    ways /= np.linalg.norm(ways, axis=1, keepdims=True)
    reaches = np.arange(4.0, 90.0, 4.0)
    points = centre + ways[:, None, :] * reaches[:, None]  # (200, R, 3)
    first = np.array([axis[0] for axis in grid.axes])
    voxels = ((points - first) / np.array(grid.spacing)).transpose(2, 0, 1)
    depths = map_coordinates(around.depth_mm, voxels, order=1, mode="nearest")  # (200, R)
    lengths = (depths > 0.0).sum(axis=1)
    way = ways[int(lengths.argmin())].astype(np.float32)

    offset = grid.points() - disease.centre.reshape(3, 1, 1, 1)
    along = (offset * way.reshape(3, 1, 1, 1)).sum(axis=0)
    across = np.sqrt(np.maximum((offset**2).sum(axis=0) - along**2, 0.0))
    wobble = 1.2 * source.noise(grid, "corridor", 9.0)
    inside: Array = np.where(along > 0.0, 6.0 + 0.05 * along - across + wobble, -100.0)
    return inside.astype(np.float32)


def _residual(
    source: Source, grid: Grid, around: Anatomy, inside_mm: Array, volume_ml: float
) -> Array:
    """Return the share of remnants: a nodule at the wall, and thin strips of it."""
    if volume_ml == 0.0:
        return np.zeros(grid.shape, dtype=np.float32)
    outside_mm = -inside_mm
    shell_mm = np.minimum(outside_mm, np.minimum(_SHELL_MM - outside_mm, around.depth_mm - 5.0))
    liking = source.noise(grid, "remnants", 14.0) + 0.2 * source.noise(grid, "remnants, fine", 5.0)
    score_mm = 5.0 * liking - 1.4 * outside_mm - 8.0 * around.fluid
    level = level_for_volume(score_mm, around.mask & (shell_mm > 0.0), volume_ml, grid)
    remnant: Array = soft_step(np.minimum(shell_mm, score_mm - np.float32(level)), edge_mm(grid))
    return remnant * around.mask
