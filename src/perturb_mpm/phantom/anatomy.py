"""One person's head: the MNI152 atlas bent to an individual, and what does not belong in it.

That is the tumour, which pushes tissue aside, the oedema around it, and what surgery leaves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.phantom.space import (
    CENTRE_MM,
    Array,
    PhantomGrid,
    RandomSource,
    level_for_volume,
    soft_step,
    spline,
)

STEP_MM = 2.0  # of the atlas
_ENHANCING_ML = (6.5, 36.0)  # the smallest and the largest tumour
_LARGEST_CORE_ML = 78.0
_OEDEMA_ML = (24.0, 112.0)
_BENDS = ((60.0, 3.2), (21.0, 1.3))  # over how many mm, by how many mm
_PUSH_REACH_MM = 75.0  # tissue farther away does not move
_SHARPEN = 2.0  # the atlas is an average and therefore blurred; nobody's own brain is
_SATELLITE_CHANCE = 0.45
_OEDEMA_GRID_MM = 4.0  # oedema spreads on a coarse grid of its own
_OEDEMA_STEPS = 130
_GREY_SPEED = 0.06  # how fast it spreads in grey matter, white matter being 1
_SHRINKAGE = (0.6, 0.85)  # the cavity's volume over that of the core: the brain falls back
_SHELL_MM = 5.0  # remnants lie that near to the wall


@dataclass(frozen=True)
class Atlas:
    """Shares of grey and white matter and of brain, and how deep below its surface a point lies."""

    grey: Array  # (73, 91, 78), 0 … 1
    white: Array
    brain: Array
    depth_mm: Array  # negative outside
    origin_mm: Array  # (3,), the centre of the first voxel

    def look_up(self, volume: Array, points: Array, outside: float = 0.0) -> Array:
        """Return ``volume`` at ``points`` (3, X, Y, Z) mm, interpolated; beyond it ``outside``."""
        from scipy.ndimage import map_coordinates

        voxels = (points - self.origin_mm.reshape(3, 1, 1, 1)) / np.float32(STEP_MM)
        return map_coordinates(
            volume, voxels, order=1, mode="constant", cval=outside, output=np.float32
        )

    def glioma_sites(self) -> Array:
        """Return where gliomas grow, (n, 3) mm: deep white matter of the cerebrum."""
        index = np.argwhere((self.white > 0.85) & (self.depth_mm > 14.0) & (self.depth_mm < 36.0))
        points = self.origin_mm + np.float32(STEP_MM) * index.astype(np.float32)
        x, y, z = points.T
        cerebrum = (np.abs(x) > 18.0) & (z > -22.0) & ((z > -4.0) | (y > -42.0))
        return points[cerebrum]


@cache
def atlas() -> Atlas:
    """Read the maps, once."""
    from scipy.ndimage import distance_transform_edt

    resource = files("perturb_mpm.phantom") / "data" / "mni152_2mm.npz"
    with resource.open("rb") as stream, np.load(stream, allow_pickle=False) as maps:
        grey, white, brain = (
            maps[name].astype(np.float32) / np.float32(255.0) for name in ("grey", "white", "brain")
        )
        origin = maps["origin_mm"].astype(np.float32)
    inside = np.pad(brain > 0.5, 1)
    depth = distance_transform_edt(inside) - distance_transform_edt(~inside)
    depth = (depth - np.sign(depth) * 0.5)[1:-1, 1:-1, 1:-1] * STEP_MM
    return Atlas(grey, white, brain, depth.astype(np.float32), origin)


@dataclass(frozen=True)
class Disease:
    """One glioblastoma in numbers."""

    centre: Array  # (3,) mm, in the patient
    enhancing_ml: float
    core_ml: float  # enhancing tumour, non-enhancing core and necrosis together
    non_enhancing_ml: float
    oedema_ml: float
    push: float  # how much of its volume pushes tissue aside rather than replacing it

    @classmethod
    def draw(cls, source: RandomSource) -> Disease:
        """Draw the tumour of one patient."""
        rng = source.rng("disease")
        sites = atlas().glioma_sites()
        site = sites[rng.integers(len(sites))] * np.array([rng.choice([-1.0, 1.0]), 1.0, 1.0])
        enhancing = float(np.clip(17.0 * np.exp(0.5 * rng.standard_normal()), *_ENHANCING_ML))
        core = min(enhancing / rng.uniform(0.36, 0.68), _LARGEST_CORE_ML)
        rest = core - enhancing
        return cls(
            centre=to_patient(source, site.astype(np.float32)),
            enhancing_ml=enhancing,
            core_ml=core,
            non_enhancing_ml=rest * rng.uniform(0.2, 0.5),
            oedema_ml=float(np.clip(58.0 * np.exp(0.45 * rng.standard_normal()), *_OEDEMA_ML)),
            push=float(rng.uniform(0.8, 1.7)),
        )

    def with_mass_effect(self, factor: float) -> Disease:
        """Return the same tumour with its mass effect multiplied by ``factor``."""
        return replace(self, push=self.push * factor)

    @property
    def core_radius_mm(self) -> float:
        """The radius of a ball of the core's volume."""
        return float(np.cbrt(3000.0 * self.core_ml / (4.0 * np.pi)))

    @property
    def pushing_radius_mm(self) -> float:
        """The radius of the ball whose volume is pushed aside."""
        volume_ml = self.push * (0.8 * self.core_ml + 0.2 * self.oedema_ml)
        return float(np.cbrt(3000.0 * volume_ml / (4.0 * np.pi)))


@dataclass(frozen=True)
class Anatomy:
    """Shares of tissue at every voxel of a grid, (X, Y, Z) each."""

    white: Array
    grey: Array
    fluid: Array
    mask: NDArray[np.bool_]
    depth_mm: Array  # below the surface of the brain
    atlas_mm: Array  # (3, X, Y, Z), where in the atlas a voxel lies


def anatomy(source: RandomSource, grid: PhantomGrid, disease: Disease) -> Anatomy:
    """Return the tissue of one person, pushed aside by the tumour."""
    maps = atlas()
    points = grid.points()
    resting = to_atlas(source, grid, points)
    depth = maps.look_up(maps.depth_mm, resting, outside=-20.0)
    before = undo_push(points, disease.centre, disease.pushing_radius_mm, depth)
    in_atlas = resting + (before - points)

    grey = maps.look_up(maps.grey, in_atlas)
    white = maps.look_up(maps.white, in_atlas)
    fluid = np.maximum(maps.look_up(maps.brain, in_atlas) - grey - white, 0.0)
    white, grey, fluid = _individual(source, grid, points, disease, (white, grey, fluid))

    trimmed_mm = 2.2 + 0.7 * source.noise(grid, "skull stripping", 15.0)
    return Anatomy(white, grey, fluid, depth > trimmed_mm, depth, in_atlas)


def to_atlas(source: RandomSource, grid: PhantomGrid, points: Array) -> Array:
    """Return where in the atlas each of ``points`` (3, X, Y, Z) lies; ``grid`` is where they are.

    Mass effect may have moved ``points`` off the grid; the bends vary so slowly that they are
    taken at the grid itself.
    """
    middle = _column(CENTRE_MM)
    bent = middle + (points - middle) * _column(_scale(source))
    for axis, name in enumerate("xyz"):
        for length_mm, amplitude_mm in _BENDS:
            noise = source.noise(grid, f"bend {name} {length_mm:g}", length_mm)
            bent[axis] += np.float32(amplitude_mm) * noise
    return bent


def to_patient(source: RandomSource, point: Array) -> Array:
    """Return where in the patient a point (3,) of the atlas lies, by fixed-point iteration."""
    scale = _scale(source)
    guess = point.copy()
    for _ in range(12):
        x, y, z = (guess[axis : axis + 1] for axis in range(3))
        here = PhantomGrid((x, y, z), (1.0, 1.0, 1.0))
        missed = point - to_atlas(source, here, here.points()).reshape(3)
        guess = guess + missed / scale
    return guess


def undo_push(points: Array, centre: Array, radius_mm: float, depth_mm: Array) -> Array:
    """Return where each of ``points`` (3, X, Y, Z) lay before a ball grew at ``centre`` (3,).

    A growing ball in an incompressible medium sends a radius r0 to the cube root of r0³ + radius³.
    Far away and at the skull (``depth_mm`` 0) nothing moves.
    """
    if radius_mm == 0.0:
        return points
    offset = points - centre.reshape(3, 1, 1, 1)
    r = np.sqrt((offset**2).sum(axis=0)) + np.float32(1e-3)
    ratio = (r / np.float32(radius_mm)) ** 3
    before = np.cbrt(np.maximum(ratio - 1.0 + np.exp(-ratio), 0.0)) * np.float32(radius_mm)
    damping = np.exp(-((r / np.float32(_PUSH_REACH_MM)) ** 2))
    damping *= 1.0 - np.exp(-np.maximum(depth_mm, 0.0) / np.float32(9.0))
    return points - offset * ((r - before) / r * damping).astype(np.float32)


def _individual(
    source: RandomSource,
    grid: PhantomGrid,
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


def _scale(source: RandomSource) -> Array:
    """Return how much larger than the patient the atlas is along each axis, (3,)."""
    rng = source.rng("size")
    overall = rng.normal(1.075, 0.02)  # the atlas is larger than most heads
    return (overall * rng.normal(1.0, 0.015, 3)).astype(np.float32)


def _column(vector: tuple[float, float, float] | Array) -> Array:
    return np.asarray(vector, dtype=np.float32).reshape(3, 1, 1, 1)


@dataclass(frozen=True)
class Tumour:
    """Shares of the parts of a tumour at every voxel, (X, Y, Z) each."""

    enhancing: Array
    non_enhancing: Array
    necrosis: Array

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
    return Tumour(enhancing, left * solid, left * (1.0 - solid))


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
    return soft_step(score - np.float32(level), 0.8) * (1.0 - around.fluid)


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
    return radius * lobes * (1.0 + 0.35 * around.fluid) + 25.0 * across + 25.0 * outside


def _length(points: Array, centre: Array, matrix: Array) -> Array:
    """Return the length of ``matrix`` times the way from ``centre`` to each point."""
    x, y, z = (points[axis] - centre[axis] for axis in range(3))
    squared = sum((row[0] * x + row[1] * y + row[2] * z) ** 2 for row in matrix)
    return np.sqrt(squared)


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
