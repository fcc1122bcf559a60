"""Make a patient: with a glioblastoma, and right after its resection."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perturb_mpm.checks import integer, number, one_each, positive_numbers
from perturb_mpm.phantom.anatomy import anatomy
from perturb_mpm.phantom.disease import Disease
from perturb_mpm.phantom.labels import ENHANCING
from perturb_mpm.phantom.oedema import oedema
from perturb_mpm.phantom.patient import Phantom, phantom
from perturb_mpm.phantom.resection import resection
from perturb_mpm.phantom.space import Grid, Source
from perturb_mpm.phantom.tumour import tumour

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
