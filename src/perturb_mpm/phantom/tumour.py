"""The tumour: enhancing rim, non-enhancing part, necrosis, and the oedema around it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.phantom.anatomy import Anatomy, Disease, anatomy
from perturb_mpm.phantom.space import Array, Grid, Source, level_for_volume, soft_step, spline

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


@dataclass(frozen=True)
class Normal:
    """Shares of what enhances in everybody, (X, Y, Z) each."""

    vessels: Array
    dura: Array
    choroid: Array

    @property
    def brightness(self) -> Array:
        """What they add to T1c, white matter being 1."""
        added: Array = 1.1 * self.vessels + 0.75 * self.dura + 0.7 * self.choroid
        return added


def normal_enhancement(source: Source, grid: Grid, around: Anatomy) -> Normal:
    """Return what enhances in the healthy part of a head."""
    x, y, z = around.atlas_mm
    shallow = soft_step(26.0 - around.depth_mm, 6.0)
    vessels = np.maximum(
        _winding(source, grid, "cortical veins", 11.0, 0.16) * shallow * (0.25 + around.fluid),
        _winding(source, grid, "deep veins", 19.0, 0.07) * 0.35 * (1.0 - shallow),
    )
    sagittal = soft_step(2.6 - np.abs(x), 0.8) * soft_step(7.0 - around.depth_mm, 1.0)
    vessels = np.maximum(vessels, sagittal * soft_step(z - 5.0, 3.0) * soft_step(40.0 - y, 8.0))
    patches = soft_step(source.noise(grid, "dura", 14.0) - 0.6, 0.3)
    dura = soft_step(4.0 - around.depth_mm, 0.8) * patches
    inner = around.fluid * soft_step(around.depth_mm - 28.0, 3.0) * soft_step(np.abs(x) - 6.0, 1.0)
    tufts = soft_step(source.noise(grid, "choroid", 5.0) - 0.7, 0.3) * soft_step(-y - 8.0, 3.0)
    return Normal(np.minimum(vessels, 1.0), dura, inner * tufts)


def _winding(source: Source, grid: Grid, name: str, scale_mm: float, width: float) -> Array:
    """Return tubes that wind through space: where two smooth fields are both about zero."""
    first = source.noise(grid, f"{name}, first", scale_mm)
    second = source.noise(grid, f"{name}, second", scale_mm)
    tube: Array = np.exp(-(first**2 + second**2) / np.float32(2.0 * width**2))
    return tube


_STEP_MM = 4.0
_STEPS = 130
_GREY_SPEED = 0.06


def oedema(
    source: Source,
    grid: Grid,
    disease: Disease,
    around: Anatomy,
    free: NDArray[np.bool_],
) -> Array:
    """Return the share of oedema at every voxel; ``oedema_ml`` of the voxels ``free`` have most."""
    reached = _reached(source, grid, disease)
    fingers = 0.5 * source.noise(grid, "fingers", 10.0) + 0.25 * source.noise(grid, "fringe", 5.0)
    score = reached + fingers - 2.6 * around.grey - 6.0 * around.fluid
    level = level_for_volume(score, free, disease.oedema_ml, grid)
    share: Array = soft_step(score - np.float32(level), 0.8) * (1.0 - around.fluid)
    return share


def _reached(source: Source, grid: Grid, disease: Disease) -> Array:
    """Return the logarithm of how much fluid has seeped to each voxel.

    It is solved on a coarse grid of its own, so that it is the same at every resolution.
    """
    coarse = Grid.over_the_brain((_STEP_MM, _STEP_MM, _STEP_MM))
    around = anatomy(source, coarse, disease)
    depth = core_depth_mm(source, coarse, disease, around, disease.core_ml)
    core = soft_step(depth, _STEP_MM / 2.0)
    speed = (around.white + np.float32(_GREY_SPEED) * around.grey) * around.mask
    speed = np.maximum(speed, core)
    amount = _diffused(core, speed)
    first = [float(axis[0]) for axis in coarse.axes]
    return spline(np.log(amount + np.float32(1e-5)), first, _STEP_MM, grid)


def _diffused(core: Array, speed: Array) -> Array:
    """Return what diffuses out of ``core``, which stays full, at ``speed`` 0 … 1."""
    faces = []  # (this side, that side, how much passes)
    for axis in range(3):
        here = tuple(slice(None, -1) if each == axis else slice(None) for each in range(3))
        there = tuple(slice(1, None) if each == axis else slice(None) for each in range(3))
        faces.append((here, there, np.minimum(speed[here], speed[there]) / np.float32(6.0)))
    amount = core.copy()
    for _ in range(_STEPS):
        change = np.zeros_like(amount)
        for here, there, passes in faces:
            flow = passes * (amount[here] - amount[there])
            change[here] -= flow
            change[there] += flow
        amount = np.maximum(amount + change, core)
    return amount
