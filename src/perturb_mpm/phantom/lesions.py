"""What does not belong in a head: the tumour, the oedema around it, and what surgery leaves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.phantom.anatomy import Anatomy, Disease, anatomy
from perturb_mpm.phantom.space import (
    Array,
    PhantomGrid,
    RandomSource,
    level_for_volume,
    soft_step,
    spline,
)

_SATELLITE_CHANCE = 0.45
_OEDEMA_GRID_MM = 4.0  # oedema spreads on a coarse grid of its own
_OEDEMA_STEPS = 130
_GREY_SPEED = 0.06  # how fast it spreads in grey matter, white matter being 1
_SHRINKAGE = (0.6, 0.85)  # the cavity's volume over that of the core: the brain falls back
_SHELL_MM = 5.0  # remnants lie that near to the wall


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


def tumour(source: RandomSource, grid: PhantomGrid, disease: Disease, around: Anatomy) -> Tumour:
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


def oedema(
    source: RandomSource,
    grid: PhantomGrid,
    disease: Disease,
    around: Anatomy,
    free: NDArray[np.bool_],
) -> Array:
    """Return the share of oedema at every voxel; ``oedema_ml`` of the voxels ``free`` have most."""
    seeped = _log_seeped_fluid(source, grid, disease)
    fingers = 0.5 * source.noise(grid, "fingers", 10.0) + 0.25 * source.noise(grid, "fringe", 5.0)
    score = seeped + fingers - 2.6 * around.grey - 6.0 * around.fluid
    level = level_for_volume(score, free, disease.oedema_ml, grid)
    share: Array = soft_step(score - np.float32(level), 0.8) * (1.0 - around.fluid)
    return share


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
    source: RandomSource, grid: PhantomGrid, disease: Disease, around: Anatomy, residual_ml: float
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
    filled = (inside > 2.0) & (fluid > 0.5)
    air_level = level_for_volume(front, filled, volume_ml * rng.uniform(0.01, 0.07), grid)
    sediment_ml = volume_ml * max(rng.uniform(-0.1, 0.1), 0.0)
    sediment_level = level_for_volume(-front, filled, sediment_ml, grid)
    air = fluid * soft_step(front - np.float32(air_level), soft)
    sediment = (fluid - air) * soft_step(-front - np.float32(sediment_level), soft)
    return Resection(fluid - air - sediment, blood + sediment, air, residual)


def core_depth_mm(
    source: RandomSource, grid: PhantomGrid, disease: Disease, around: Anatomy, volume_ml: float
) -> Array:
    """Return about how deep in the core each voxel lies; ``volume_ml`` of them are inside."""
    radius = _distorted_radius_mm(source, grid, disease, around)
    level = level_for_volume(-radius, around.mask, volume_ml, grid)
    return -np.float32(level) - radius


def edge_mm(grid: PhantomGrid) -> float:
    """Return how wide a sharp edge looks on a grid: partial volume."""
    return max(0.7, 0.4 * float(np.mean(grid.spacing)))


def _distorted_radius_mm(
    source: RandomSource, grid: PhantomGrid, disease: Disease, around: Anatomy
) -> Array:
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
        centre = (disease.centre + towards).astype(np.float32)
        satellite = shrink * _length(points, centre, np.eye(3, dtype=np.float32))
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


def _log_seeped_fluid(source: RandomSource, grid: PhantomGrid, disease: Disease) -> Array:
    """Return the logarithm of how much fluid has seeped to each voxel.

    It is solved on a coarse grid of its own, so that it is the same at every resolution.
    """
    coarse = PhantomGrid.over_the_brain((_OEDEMA_GRID_MM, _OEDEMA_GRID_MM, _OEDEMA_GRID_MM))
    around = anatomy(source, coarse, disease)
    depth = core_depth_mm(source, coarse, disease, around, disease.core_ml)
    core = soft_step(depth, _OEDEMA_GRID_MM / 2.0)
    speed = (around.white + np.float32(_GREY_SPEED) * around.grey) * around.mask
    speed = np.maximum(speed, core)
    amount = _diffuse(core, speed)
    first = [float(axis[0]) for axis in coarse.axes]
    return spline(np.log(amount + np.float32(1e-5)), first, _OEDEMA_GRID_MM, grid)


def _diffuse(core: Array, speed: Array) -> Array:
    """Return what diffuses out of ``core``, which stays full, at ``speed`` 0 … 1."""
    faces = []  # (this side, that side, how much passes)
    for axis in range(3):
        here = tuple(slice(None, -1) if each == axis else slice(None) for each in range(3))
        there = tuple(slice(1, None) if each == axis else slice(None) for each in range(3))
        faces.append((here, there, np.minimum(speed[here], speed[there]) / np.float32(6.0)))
    amount = core.copy()
    for _ in range(_OEDEMA_STEPS):
        change = np.zeros_like(amount)
        for here, there, passes in faces:
            flow = passes * (amount[here] - amount[there])
            change[here] -= flow
            change[there] += flow
        amount = np.maximum(amount + change, core)
    return amount


def _corridor_mm(
    source: RandomSource, grid: PhantomGrid, disease: Disease, around: Anatomy
) -> Array:
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
    source: RandomSource, grid: PhantomGrid, around: Anatomy, inside_mm: Array, volume_ml: float
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
