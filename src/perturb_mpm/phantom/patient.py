"""One made-up patient: images and truth, with a glioblastoma or right after its resection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.checks import integer, number, one_each, positive_numbers
from perturb_mpm.phantom.anatomy import Anatomy, Disease, anatomy
from perturb_mpm.phantom.classifier import (
    ENHANCING,
    LABEL_NAMES,
    LABEL_OF,
    POSTOPERATIVE_LABEL_NAMES,
    classify,
)
from perturb_mpm.phantom.scanner import CHANNEL_NAMES, scan
from perturb_mpm.phantom.space import Array, Grid, Source, level_for_volume, soft_step
from perturb_mpm.phantom.tumour import core_depth_mm, edge_mm, oedema, tumour

Stage = Literal["pre-operative", "post-operative"]


@dataclass(frozen=True)
class Phantom:
    """A patient whose truth is known."""

    seed: int
    stage: Stage
    grid: Grid
    disease: Disease
    images: NDArray[np.float32]  # (4, X, Y, Z): T1, T1c, T2, FLAIR; 0 outside the mask
    tissue: dict[str, Array]  # name -> (X, Y, Z), the share of each tissue in every voxel
    memberships: NDArray[np.float32]  # (L, X, Y, Z), the share of each label; sum to 1
    truth: NDArray[np.uint8]  # (X, Y, Z)
    mask: NDArray[np.bool_]  # (X, Y, Z): the brain
    label_names: tuple[str, ...]
    channel_names: tuple[str, ...] = CHANNEL_NAMES

    @property
    def spacing(self) -> tuple[float, float, float]:
        """The size of a voxel in mm."""
        return self.grid.spacing

    @property
    def affine(self) -> NDArray[np.float64]:
        """The (4, 4) matrix from voxel indices to mm: left to right, back to front, down to up."""
        return self.grid.affine

    @cached_property
    def probabilities(self) -> NDArray[np.float32]:
        """What an imperfect classifier says, (L, X, Y, Z); made when first asked for."""
        return classify(
            Source(self.seed), self.grid, self.images, self.mask, self.tissue, self.memberships
        )

    def volume_ml(self, label: int) -> float:
        """Return the true volume of one label inside the brain."""
        label = integer(label, "label", minimum=0, maximum=len(self.label_names) - 1)
        return float((self.truth[self.mask] == label).sum()) * self.grid.voxel_ml


def phantom(
    source: Source,
    grid: Grid,
    disease: Disease,
    around: Anatomy,
    lesions: dict[str, Array],
    stage: Stage,
) -> Phantom:
    """Put ``lesions``, name -> share, into the healthy head ``around`` and scan it."""
    left = np.ones(grid.shape, dtype=np.float32)
    for share in lesions.values():
        left -= share
    left = np.maximum(left, 0.0)  # rounding
    healthy = {"white": around.white, "grey": around.grey, "fluid": around.fluid}
    tissue = {name: share * left for name, share in healthy.items()} | lesions
    names = LABEL_NAMES if stage == "pre-operative" else POSTOPERATIVE_LABEL_NAMES
    memberships = np.zeros((len(names), *grid.shape), dtype=np.float32)
    memberships[0] = 1.0
    memberships[0, around.mask] = left[around.mask]
    for name, share in lesions.items():
        memberships[LABEL_OF[name], around.mask] += share[around.mask]
    return Phantom(
        seed=source.seed,
        stage=stage,
        grid=grid,
        disease=disease,
        images=scan(source, grid, around, tissue, stage),
        tissue=tissue,
        memberships=memberships,
        truth=_truth(memberships),
        mask=around.mask,
        label_names=names,
    )


def _truth(memberships: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return enhancing tumour where it fills half a voxel, elsewhere the largest other share.

    The volume of a thin rim is thereby as intended: the largest share alone would favour it where
    three others meet.
    """
    others = memberships.copy()
    others[ENHANCING] = 0.0
    truth: NDArray[np.uint8] = others.argmax(axis=0).astype(np.uint8)
    truth[memberships[ENHANCING] > 0.5] = ENHANCING
    return truth


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


_FINEST_MM, _COARSEST_MM = 0.9, 8.0
_RELIEF = 0.35  # the mass effect that is left right after surgery
_OEDEMA_LEFT = 0.9


def glioblastoma(
    seed: int = 0,
    *,
    spacing_mm: float | Sequence[float] = 2.0,
    mass_effect: float = 1.0,
) -> Phantom:
    """Make a patient with a glioblastoma before surgery.

    The same seed is the same patient at every resolution: only the noise of single voxels differs.

    Parameters
    ----------
    seed
        Which patient to make: 0 or more.
    spacing_mm
        The size of a voxel, one number or three, 0.9 to 8 mm.
    mass_effect
        How hard the tumour pushes: 1 as this patient's does, 0 not at all.
    """
    seed = integer(seed, "seed", minimum=0)
    grid = Grid.over_the_brain(_checked_spacing(spacing_mm))
    push = number(mass_effect, "mass_effect", minimum=0.0)
    source = Source(seed)
    disease = Disease.draw(source).pushing(push)
    around = anatomy(source, grid, disease)
    solid = tumour(source, grid, disease, around)
    outside = 1.0 - solid.core
    swelling = oedema(source, grid, disease, around, around.mask & (outside > 0.5))
    lesions = {
        "necrosis": solid.necrosis,
        "oedema": swelling * outside,
        "non-enhancing": solid.non_enhancing,
        "enhancing": solid.enhancing,
    }
    return phantom(source, grid, disease, around, lesions, "pre-operative")


def resected(patient: Phantom, residual_ml: float = 0.0) -> Phantom:
    """Operate on a patient: the same head, on the same grid, right after surgery.

    Parameters
    ----------
    patient
        A patient before surgery, from ``glioblastoma``.
    residual_ml
        How much enhancing tumour is left at the wall of the cavity; 0 is a complete resection.
    """
    if patient.stage != "pre-operative":
        raise ValueError("patient must be pre-operative, got one who was operated on already")
    residual_ml = number(residual_ml, "residual_ml", minimum=0.0)
    enhancing_ml = patient.volume_ml(ENHANCING)
    if residual_ml >= enhancing_ml:
        raise ValueError(
            f"residual_ml must be below the enhancing volume before surgery, {enhancing_ml:.1f}, "
            f"got {residual_ml:g}"
        )
    grid, source = patient.grid, Source(patient.seed)
    disease = patient.disease.pushing(_RELIEF)
    around = anatomy(source, grid, disease)
    surgery = resection(source, grid, disease, around, residual_ml)
    outside = 1.0 - surgery.all
    swelling = oedema(
        source, grid, disease.with_oedema(_OEDEMA_LEFT), around, around.mask & (outside > 0.5)
    )
    lesions = {
        "oedema": swelling * outside,
        "enhancing": surgery.residual,
        "cavity": surgery.cavity,
        "blood": surgery.blood,
        "air": surgery.air,
    }
    return phantom(source, grid, disease, around, lesions, "post-operative")


def _checked_spacing(spacing_mm: float | Sequence[float]) -> tuple[float, float, float]:
    """Return three spacings that the phantom is made for."""
    given = positive_numbers(spacing_mm, "spacing_mm")
    x, y, z = one_each(given, "spacing_mm", 3, "axis").astype(np.float64).tolist()
    if not all(_FINEST_MM <= step <= _COARSEST_MM for step in (x, y, z)):
        raise ValueError(
            f"spacing_mm must lie between {_FINEST_MM} and {_COARSEST_MM} mm, got {spacing_mm}"
        )
    return x, y, z
