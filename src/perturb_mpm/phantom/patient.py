"""One made-up patient: images and truth, with a glioblastoma or right after its resection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.checks import integer, number, one_each, positive_numbers
from perturb_mpm.phantom.anatomy import Anatomy, Disease, anatomy, oedema, resection, tumour
from perturb_mpm.phantom.classifier import (
    ENHANCING,
    LABEL_NAMES,
    POSTOPERATIVE_LABEL_NAMES,
    TISSUE_LABELS,
    classify,
    imitate_network,
)
from perturb_mpm.phantom.scanner import CHANNEL_NAMES, scan
from perturb_mpm.phantom.space import Array, PhantomGrid, RandomSource

Stage = Literal["pre-operative", "post-operative"]

_FINEST_MM, _COARSEST_MM = 0.9, 8.0
_RELIEF = 0.35  # the mass effect that is left right after surgery
_OEDEMA_LEFT = 0.9  # and of the volume of its oedema


@dataclass(frozen=True)
class Phantom:
    """A patient whose truth is known.

    Examples
    --------
    >>> from perturb_mpm.phantom import glioblastoma
    >>> patient = glioblastoma(seed=0, spacing_mm=8.0)
    >>> patient.label_names
    ('healthy', 'necrosis', 'oedema', 'non-enhancing core', 'enhancing tumour')
    >>> patient.probabilities.shape == (5, *patient.truth.shape)
    True
    """

    seed: int
    stage: Stage
    grid: PhantomGrid
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
        return classify(self)

    @cached_property
    def network_probabilities(self) -> NDArray[np.float32]:
        """What a segmentation network says, (L, X, Y, Z); made when first asked for."""
        return imitate_network(self)

    def volume_ml(self, label: int) -> float:
        """Return the true volume of one label inside the brain."""
        label = integer(label, "label", minimum=0, maximum=len(self.label_names) - 1)
        return float((self.truth[self.mask] == label).sum()) * self.grid.voxel_ml


def glioblastoma(
    seed: int = 0, *, spacing_mm: float | Sequence[float] = 2.0, mass_effect: float = 1.0
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

    Examples
    --------
    >>> from perturb_mpm.phantom import glioblastoma
    >>> patient = glioblastoma(seed=0, spacing_mm=8.0)
    >>> patient.images.shape[0], patient.channel_names
    (4, ('T1', 'T1c', 'T2', 'FLAIR'))
    """
    seed = integer(seed, "seed", minimum=0)
    grid = PhantomGrid.over_the_brain(_check_spacing(spacing_mm))
    push = number(mass_effect, "mass_effect", minimum=0.0)
    source = RandomSource(seed)
    disease = Disease.draw(source).with_mass_effect(push)
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
    return _scan_phantom(source, grid, disease, around, lesions, "pre-operative")


def resect(patient: Phantom, residual_ml: float = 0.0) -> Phantom:
    """Operate on a patient: the same head, on the same grid, right after surgery.

    Parameters
    ----------
    patient
        A patient before surgery, from ``glioblastoma``.
    residual_ml
        How much enhancing tumour is left at the wall of the cavity; 0 is a complete resection.

    Examples
    --------
    >>> from perturb_mpm.phantom import glioblastoma, resect
    >>> after = resect(glioblastoma(seed=0, spacing_mm=8.0), residual_ml=1.5)
    >>> after.stage
    'post-operative'
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
    grid, source = patient.grid, RandomSource(patient.seed)
    disease = patient.disease.with_mass_effect(_RELIEF)
    around = anatomy(source, grid, disease)
    surgery = resection(source, grid, disease, around, residual_ml)
    outside = 1.0 - surgery.all
    drained = replace(disease, oedema_ml=disease.oedema_ml * _OEDEMA_LEFT)
    swelling = oedema(source, grid, drained, around, around.mask & (outside > 0.5))
    lesions = {
        "oedema": swelling * outside,
        "enhancing": surgery.residual,
        "cavity": surgery.cavity,
        "blood": surgery.blood,
        "air": surgery.air,
    }
    return _scan_phantom(source, grid, disease, around, lesions, "post-operative")


def _scan_phantom(
    source: RandomSource,
    grid: PhantomGrid,
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
        memberships[TISSUE_LABELS[name], around.mask] += share[around.mask]
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


def _check_spacing(spacing_mm: float | Sequence[float]) -> tuple[float, float, float]:
    """Return three spacings that the phantom is made for."""
    given = positive_numbers(spacing_mm, "spacing_mm")
    x, y, z = one_each(given, "spacing_mm", 3, "axis").astype(np.float64).tolist()
    if not all(_FINEST_MM <= step <= _COARSEST_MM for step in (x, y, z)):
        raise ValueError(
            f"spacing_mm must lie between {_FINEST_MM} and {_COARSEST_MM} mm, got {spacing_mm}"
        )
    return x, y, z
