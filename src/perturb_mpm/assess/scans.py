"""Extent of resection and residual volume of one patient, from two scans."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.assess.sources import is_run, read_segmentation
from perturb_mpm.biomarkers import (
    RANO_RESECT,
    ResectionClass,
    SampledBiomarker,
    class_probabilities,
    classify,
    distribution,
    extent_of_resection,
    paired_samples,
    region_volume_ml,
)
from perturb_mpm.files import Geometry, InputError, LabelScheme, Source, label_indices, read_volume
from perturb_mpm.posterior import Posterior

PAPER_RULE = "no sample dissents (entropy 0, the paper's rule)"


@dataclass(frozen=True, eq=False)
class Scan:
    """What one scan says of one region."""

    original_ml: float
    corrected_ml: float | None
    """Without uncertain voxels; None where there are no samples."""
    samples_ml: NDArray[np.float64] | None  # (S,)
    perturbation: str | None

    @property
    def samples(self) -> int | None:
        """S, on which the corrected volume depends."""
        return None if self.samples_ml is None else len(self.samples_ml)


def read_scan(
    source: Source, region: Sequence[int], spacing: Sequence[float] | None = None
) -> Scan:
    """Read a folder of ``perturb-mpm run``, or one label map, whose ``region`` is label values.

    A file that does not say how large its voxels are needs ``spacing`` (mm): ml are never guessed.
    """
    if source.path.is_dir() or is_run(source.path):
        return _from_run(source, region, spacing)
    volume = read_volume(source)
    if volume.voxels.ndim != 3:
        raise source.error(f"must be a run or one label map, got shape {volume.voxels.shape}")
    whole = volume.voxels == np.floor(volume.voxels)
    if not whole.all():
        raise source.error(
            f"must be a label map of whole numbers, got {float(volume.voxels[~whole].flat[0]):g}"
        )
    values = tuple(sorted({0, *map(int, np.unique(volume.voxels)), *region}))
    scheme = LabelScheme(values, tuple(map(str, values)))
    labels = label_indices(volume.voxels, scheme, source)
    members = tuple(values.index(value) for value in region)
    step = _spacing(source, volume.geometry, spacing)
    return Scan(region_volume_ml(labels, members, math.prod(step)), None, None, None)


def scan_of(posterior: Posterior, region: Sequence[int], perturbation: str) -> Scan:
    """Return the volumes of a region, label indices, of a posterior by votes."""
    voxel_mm3 = math.prod(posterior.grid.spacing)
    votes = posterior.voxel_counts
    labels = votes.argmax(axis=0)
    certain = votes.max(axis=0) == posterior.samples
    members = tuple(region)
    return Scan(
        region_volume_ml(labels, members, voxel_mm3),
        region_volume_ml(labels, members, voxel_mm3, certain),
        posterior.volumes[:, list(members)].sum(axis=1) / 1000.0,
        perturbation,
    )


def _from_run(source: Source, region: Sequence[int], spacing: Sequence[float] | None) -> Scan:
    if spacing is not None:
        raise InputError(f"--spacing must not be given for a run, which has its own: {source.path}")
    found = read_segmentation(source.path)
    try:
        members = [found.scheme.values.index(value) for value in region]
    except ValueError:
        raise InputError(
            f"--region must be label values out of {', '.join(map(str, found.scheme.values))}, "
            f"got {', '.join(map(str, region))} for {source}"
        ) from None
    if found.posterior is None:
        raise source.error("must be a folder of perturb-mpm run")
    return scan_of(found.posterior, members, found.perturbation)


def _spacing(
    source: Source, geometry: Geometry, spacing: Sequence[float] | None
) -> Sequence[float]:
    if spacing is not None:
        return spacing
    header = geometry.header
    nameless = header.get_xyzt_units()[0] == "unknown"
    if nameless and np.array_equal(np.abs(geometry.affine), np.eye(4)):
        raise source.error(
            "does not say how large its voxels are (its header holds no unit and a grid of ones), "
            "so that no volume can be given in ml: give --spacing in mm"
        )
    return geometry.spacing


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
