"""One person's head: the MNI152 atlas bent to an individual, and pushed aside by a tumour."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.phantom.space import CENTRE_MM, Array, PhantomGrid, RandomSource

STEP_MM = 2.0  # of the atlas
_ENHANCING_ML = (6.5, 36.0)  # the smallest and the largest tumour
_LARGEST_CORE_ML = 78.0
_OEDEMA_ML = (24.0, 112.0)
_BENDS = ((60.0, 3.2), (21.0, 1.3))  # over how many mm, by how many mm
_PUSH_REACH_MM = 75.0  # tissue farther away does not move
_SHARPEN = 2.0  # the atlas is an average and therefore blurred; nobody's own brain is


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
        found: Array = map_coordinates(
            volume, voxels, order=1, mode="constant", cval=outside, output=np.float32
        )
        return found

    def glioma_sites(self) -> Array:
        """Return where gliomas grow, (n, 3) mm: deep white matter of the cerebrum."""
        index = np.argwhere((self.white > 0.85) & (self.depth_mm > 14.0) & (self.depth_mm < 36.0))
        points = self.origin_mm + np.float32(STEP_MM) * index.astype(np.float32)
        x, y, z = points.T
        cerebrum = (np.abs(x) > 18.0) & (z > -22.0) & ((z > -4.0) | (y > -42.0))
        chosen: Array = points[cerebrum]
        return chosen


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

    def with_oedema(self, factor: float) -> Disease:
        """Return the same tumour with the volume of its oedema multiplied by ``factor``."""
        return replace(self, oedema_ml=self.oedema_ml * factor)

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
    moved: Array = points - offset * ((r - before) / r * damping).astype(np.float32)
    return moved


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
    scale: Array = (overall * rng.normal(1.0, 0.015, 3)).astype(np.float32)
    return scale


def _column(vector: tuple[float, float, float] | Array) -> Array:
    return np.asarray(vector, dtype=np.float32).reshape(3, 1, 1, 1)
