"""Extent of resection and residual volume of one patient, from two scans."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.assess.sources import read_segmentation
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
    sampled_change,
)
from perturb_mpm.files import Geometry, InputError, Source, other_patient_warnings, read_volume
from perturb_mpm.posterior import Posterior

PAPER_RULE = "no sample dissents (entropy 0, the paper's rule)"
LARGEST_SPACING_MM = 1000.0


@dataclass(frozen=True, eq=False)
class Scan:
    """What one scan says of one region."""

    original_ml: float
    certain_ml: float | None
    """Without uncertain voxels; None where there are no samples."""
    samples_ml: NDArray[np.float64] | None  # (S,)
    perturbation: str | None
    """What the samples come from, in words."""
    law: Mapping[str, Any] | None = None
    """The same as numbers, as ``sampling_law`` gives it."""
    files: tuple[Path, ...] = ()
    """The label map, or the folder of a run and the names of the files it was made from."""
    warnings: tuple[str, ...] = ()

    @property
    def samples(self) -> int | None:
        """S, on which the volume of certain voxels depends."""
        return None if self.samples_ml is None else len(self.samples_ml)


def read_scan(
    source: Source, region: Sequence[int], spacing: Sequence[float] | None = None
) -> Scan:
    """Read a folder of ``perturb-mpm run``, or one label map, whose ``region`` is label values.

    A file that does not say how large its voxels are needs ``spacing`` (mm): ml are never guessed.
    """
    if source.path.is_dir():
        return _from_run(source, region, spacing)
    step = None if spacing is None else check_spacing(spacing)
    volume = read_volume(source)
    if volume.voxels.ndim != 3:
        raise source.error(f"must be a run or one label map, got shape {volume.voxels.shape}")
    whole = volume.voxels == np.floor(volume.voxels)
    if not whole.all():
        raise source.error(
            f"must be a label map of whole numbers, got {float(volume.voxels[~whole].flat[0]):g}"
        )
    voxel_mm3 = math.prod(step or _spacing(source, volume.geometry))
    volume_ml = region_volume_ml(volume.voxels, tuple(region), voxel_mm3)
    return Scan(volume_ml, None, None, None, files=(source.path,))


def measure_scan(
    posterior: Posterior,
    region: Sequence[int],
    perturbation: str | None = None,
    labels: NDArray[np.integer] | None = None,
) -> Scan:
    """Return the volumes of a region, label indices, of a posterior by votes.

    ``perturbation`` says in other words what the samples come from; ``labels`` (N,) is the label
    map inside the mask where that is not the one of most votes.
    """
    voxel_mm3 = math.prod(posterior.grid.spacing)
    votes = posterior.voxel_counts
    labels = votes.argmax(axis=0) if labels is None else labels
    certain = votes.max(axis=0) == posterior.samples
    members = tuple(region)
    law = sampling_law(posterior)
    return Scan(
        region_volume_ml(labels, members, voxel_mm3),
        region_volume_ml(labels, members, voxel_mm3, certain),
        posterior.volumes[:, list(members)].sum(axis=1) / 1000.0,
        law_in_words(law) if perturbation is None else perturbation,
        law,
    )


def check_spacing(spacing: Sequence[float]) -> tuple[float, ...]:
    """Return a voxel size in mm after checking that it is one."""
    if len(spacing) != 3 or not all(0 < each <= LARGEST_SPACING_MM for each in spacing):
        raise InputError(
            "`spacing` must be three positive numbers in mm, at most "
            f"{LARGEST_SPACING_MM:g}, got {', '.join(f'{each:g}' for each in spacing)}"
        )
    return tuple(float(each) for each in spacing)


def _from_run(source: Source, region: Sequence[int], spacing: Sequence[float] | None) -> Scan:
    if spacing is not None:
        raise InputError(f"`spacing` must not be given for a run, which has its own: {source}")
    found = read_segmentation(source)
    unknown = [value for value in region if value not in found.scheme.values]
    if unknown or found.posterior is None:
        raise InputError(
            f"`regions` must be label values out of {', '.join(map(str, found.scheme.values))}, "
            f"got {', '.join(map(str, region))} for {source}"
        )
    members = [found.scheme.values.index(value) for value in region]
    scan = measure_scan(found.posterior, members, labels=found.prediction.labels)
    return replace(scan, files=(source.path, *found.inputs), warnings=found.warnings)


def _spacing(source: Source, geometry: Geometry) -> Sequence[float]:
    nameless = geometry.header.get_xyzt_units()[0] == "unknown"
    if nameless and np.array_equal(np.abs(geometry.affine), np.eye(4)):
        raise source.error(
            "does not say how large its voxels are (its header holds no unit and a grid of ones), "
            "so that no volume can be given in ml: give `spacing` in mm"
        )
    return geometry.spacing


@dataclass(frozen=True, eq=False)
class SampledResection:
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
    """One patient: as segmented, by certain voxels alone, and by samples."""

    before_ml: float
    residual_ml: float
    extent: float
    resection_class: str
    certain_before_ml: float | None
    certain_residual_ml: float | None
    certain_extent: float | None
    sampled: SampledResection | None
    samples: tuple[int | None, int | None]
    perturbation: str | None
    laws: tuple[Mapping[str, Any] | None, Mapping[str, Any] | None] = (None, None)
    """What the samples before and after come from, as ``sampling_law`` gives it."""
    warnings: tuple[str, ...] = ()


def resection(
    before: Scan,
    after: Scan,
    classes: Sequence[ResectionClass] = RANO_RESECT,
    noise_floor_ml: float = 0.0,
) -> Biomarkers:
    """Compare two scans; NaN where there was nothing before, never clamped."""
    index = int(classify(before.original_ml, after.original_ml, classes, noise_floor_ml))
    certain = None
    if before.certain_ml is not None and after.certain_ml is not None:
        certain = float(extent_of_resection(before.certain_ml, after.certain_ml))
    return Biomarkers(
        before_ml=before.original_ml,
        residual_ml=after.original_ml,
        extent=float(extent_of_resection(before.original_ml, after.original_ml)),
        resection_class=classes[index].name,
        certain_before_ml=before.certain_ml,
        certain_residual_ml=after.certain_ml,
        certain_extent=certain,
        sampled=_summarise_samples(before, after, classes, noise_floor_ml),
        samples=(before.samples, after.samples),
        perturbation=_in_words(before, after),
        laws=(before.law, after.law),
        warnings=(
            *other_scan_warnings(before.files, after.files),
            *before.warnings,
            *after.warnings,
        ),
    )


def other_scan_warnings(before: Sequence[Path], after: Sequence[Path]) -> Iterator[str]:
    """Yield what speaks against two scans being of one patient at two times, by their files."""
    if before and before[:1] == after[:1]:
        yield f"both scans are {before[0]}: name one before and one after"
        return
    for one, other in zip(before, after):
        if found := other_patient_warnings(one, [other]):
            yield from found
            return


def _in_words(before: Scan, after: Scan) -> str | None:
    both = before.samples_ml is not None and after.samples_ml is not None
    if both and before.perturbation != after.perturbation:
        return f"{before.perturbation} before, {after.perturbation} after"
    return after.perturbation


def _summarise_samples(
    before: Scan, after: Scan, classes: Sequence[ResectionClass], noise_floor_ml: float
) -> SampledResection | None:
    if before.samples_ml is None or after.samples_ml is None:
        return None
    first, second = paired_samples(before.samples_ml, after.samples_ml)
    change = sampled_change(first, second, paired=True)  # every pair stands there already
    present: NDArray[np.bool_] = after.samples_ml > noise_floor_ml
    return SampledResection(
        distribution(-change.relative.values),
        distribution(after.samples_ml),
        distribution(before.samples_ml),
        class_probabilities(first, second, classes, noise_floor_ml),
        float(present.mean()),
    )


def sampling_law(posterior: Posterior) -> dict[str, Any]:
    """Return the law of a posterior's samples, seed aside, as values that JSON can hold.

    Two runs sample from the same perturbation where this is equal.
    """
    found = posterior.parameters.get("perturbation")
    if not isinstance(found, Mapping):
        return {}
    law = {name: value for name, value in found.items() if name != "seed"}
    return {**law, "estimator": posterior.estimator}


def law_in_words(law: Mapping[str, Any]) -> str:
    """Return what the samples come from."""
    lengths = law.get("lengths_mm")
    words = "independent Gumbel noise at every voxel"
    if lengths:
        over = ("the whole image" if mm == "inf" else f"{mm:g} mm" for mm, _ in lengths)
        words = f"Gumbel noise correlated over {' and '.join(over)}"
    if law.get("scale", 1.0) != 1.0:
        words += f" times {law['scale']:g}"
    if law.get("antithetic"):
        words += " in antithetic pairs"
    if law.get("estimator") == "conditional":
        words += ", conditional estimates"
    return words if lengths else f"{words}, which makes volumes far too certain"
