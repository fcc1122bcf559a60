"""Extent of resection and residual volume of one patient, from two scans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.assessment.scans import Scan
from perturb_mpm.biomarkers.resection import (
    SampledBiomarker,
    distribution,
    extent_of_resection,
    paired_samples,
)
from perturb_mpm.biomarkers.resection_classes import (
    RANO_RESECT,
    ResectionClass,
    class_probabilities,
    classify,
)


@dataclass(frozen=True, eq=False)
class Sampled:
    """The biomarkers as distributions over samples."""

    extent: SampledBiomarker
    residual_ml: SampledBiomarker
    before_ml: SampledBiomarker
    classes: dict[str, float]
    """The share of samples in each class of resection: worth what the perturbation is worth."""
    residual_present: float
    """The share of samples with more than the noise floor left."""


@dataclass(frozen=True, eq=False)
class Biomarkers:
    """One patient: as segmented, corrected by dropping uncertain voxels, and by samples."""

    before_ml: float
    residual_ml: float
    extent: float
    resection_class: str
    corrected_before_ml: float | None
    corrected_residual_ml: float | None
    corrected_extent: float | None
    sampled: Sampled | None
    samples: tuple[int | None, int | None]
    perturbation: str | None


def resection(
    before: Scan,
    after: Scan,
    classes: Sequence[ResectionClass] = RANO_RESECT,
    noise_floor_ml: float = 0.0,
) -> Biomarkers:
    """Compare two scans; NaN where there was nothing before, never clamped."""
    index = int(classify(before.original_ml, after.original_ml, classes, noise_floor_ml))
    corrected = None
    if before.corrected_ml is not None and after.corrected_ml is not None:
        corrected = float(extent_of_resection(before.corrected_ml, after.corrected_ml))
    return Biomarkers(
        before_ml=before.original_ml,
        residual_ml=after.original_ml,
        extent=float(extent_of_resection(before.original_ml, after.original_ml)),
        resection_class=classes[index].name,
        corrected_before_ml=before.corrected_ml,
        corrected_residual_ml=after.corrected_ml,
        corrected_extent=corrected,
        sampled=_sampled(before, after, classes, noise_floor_ml),
        samples=(before.samples, after.samples),
        perturbation=after.perturbation,
    )


def _sampled(
    before: Scan, after: Scan, classes: Sequence[ResectionClass], noise_floor_ml: float
) -> Sampled | None:
    if before.samples_ml is None or after.samples_ml is None:
        return None
    first, second = paired_samples(before.samples_ml, after.samples_ml)
    present: NDArray[np.bool_] = after.samples_ml > noise_floor_ml
    return Sampled(
        distribution(extent_of_resection(first, second)),
        distribution(after.samples_ml),
        distribution(before.samples_ml),
        class_probabilities(first, second, classes, noise_floor_ml),
        float(present.mean()),
    )
