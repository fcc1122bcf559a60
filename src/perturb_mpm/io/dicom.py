"""The labels as a DICOM segmentation and their entropy as a DICOM parametric map.

Both refer to the series they were made from and lie on its slices. Their identifiers come from
their content and their dates from the series, so that the same result gives the same bytes.
"""

from __future__ import annotations

import hashlib
import math
import uuid
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.io.atomic import atomic_open
from perturb_mpm.io.case import Geometry, LabelScheme
from perturb_mpm.io.dicom_codes import Code, codes_of
from perturb_mpm.io.dicom_series import Series, on_series, read_series, require_on_series
from perturb_mpm.optional import optional_package
from perturb_mpm.version import version

FILES = {"dicom_labels": "labels.seg.dcm", "dicom_entropy": "entropy.pmap.dcm"}
_PURPOSE = "writing DICOM"


def check_series(series_folder: Path, geometry: Geometry) -> None:
    """Refuse at once a series that is not on the grid of the images, or a missing package."""
    optional_package("highdicom", _PURPOSE)
    require_on_series(read_series(series_folder), geometry)


def write_dicom(
    folder: Path,
    series_folder: Path,
    labels: NDArray[Any],
    entropy: NDArray[np.float32],
    geometry: Geometry,
    scheme: LabelScheme,
) -> dict[str, Path]:
    """Write the files of ``FILES`` into a folder and return them.

    ``labels`` (X, Y, Z) are indices 0 … L − 1; every label but the first is a segment, numbered
    by its index. ``entropy`` (X, Y, Z) is in bits. ``series_folder`` holds the DICOM series whose
    grid ``geometry`` must be.
    """
    series = read_series(series_folder)
    axes = require_on_series(series, geometry)
    objects = {
        "dicom_labels": _segmentation(series, on_series(labels, axes), scheme),
        "dicom_entropy": _parametric_map(series, on_series(entropy, axes), len(scheme)),
    }
    written = {}
    for name, dataset in objects.items():
        written[name] = folder / FILES[name]
        with atomic_open(written[name]) as file:
            dataset.save_as(file, enforce_file_format=True)
    return written


def _segmentation(series: Series, labels: NDArray[Any], scheme: LabelScheme) -> Any:  # noqa: ANN401
    """Return the segments of labels (slices, rows, columns)."""
    hd = optional_package("highdicom", _PURPOSE)
    frames = labels.astype(np.uint8)
    segments = []
    for index, (value, name) in enumerate(zip(scheme.values, scheme.names)):
        if index == 0:
            continue
        category, kind = codes_of(name)
        segment = hd.seg.SegmentDescription(
            segment_number=index,
            segment_label=name[:64],
            segmented_property_category=_coded(category),
            segmented_property_type=_coded(kind),
            algorithm_type="AUTOMATIC",
            algorithm_identification=hd.AlgorithmIdentificationSequence(
                name="perturb-mpm", version=version(), family=_algorithm()
            ),
        )
        segment.SegmentDescription = f"value {value} in the label map"
        segments.append(segment)
    identity = _identity(series, frames, [*scheme.values, *scheme.names])
    dataset = hd.seg.Segmentation(
        source_images=series.slices,
        pixel_array=frames,
        segmentation_type="BINARY",
        segment_descriptions=segments,
        content_label="SEGMENTATION",
        content_description="Most frequent label of the samples",
        series_description="perturb-mpm labels",
        **_equipment(series, identity, 1),
    )
    return _dated(dataset, series, identity)


def _parametric_map(series: Series, entropy: NDArray[Any], labels: int) -> Any:  # noqa: ANN401
    """Return the map of entropies (slices, rows, columns) in bits."""
    hd = optional_package("highdicom", _PURPOSE)
    frames = entropy.astype(np.float32)
    most = math.log2(labels)
    bits = hd.sr.CodedConcept("bit", "UCUM", "bit")
    identity = _identity(series, frames, [])
    dataset = hd.pm.ParametricMap(
        source_images=series.slices,
        pixel_array=frames,
        contains_recognizable_visual_features=False,
        real_world_value_mappings=[
            hd.pm.RealWorldValueMapping(
                lut_label="entropy",
                lut_explanation="entropy of the marginals, bits",
                unit=bits,
                value_range=(0.0, most),
                slope=1.0,
                intercept=0.0,
            )
        ],
        voi_lut_transformations=[hd.VOILUTTransformation(most / 2, most)],
        content_label="ENTROPY",
        content_description="Entropy of the marginals in bits",
        series_description="perturb-mpm entropy",
        **_equipment(series, identity, 2),
    )
    return _dated(dataset, series, identity)


def _equipment(series: Series, identity: bytes, place: int) -> dict[str, Any]:
    """Return who made an object, and its numbers and names."""
    first = int(series.slices[0].get("SeriesNumber") or 0)
    return {
        "series_instance_uid": _uid(identity, "series"),
        "series_number": 1000 + first * 10 + place,
        "sop_instance_uid": _uid(identity, "instance"),
        "instance_number": 1,
        "manufacturer": "The perturb-mpm developers",
        "manufacturer_model_name": "perturb-mpm",
        "software_versions": version(),
        "device_serial_number": "0",
    }


def _dated(dataset: Any, series: Series, identity: bytes) -> Any:  # noqa: ANN401
    """Take out of an object what would differ if it were made again."""
    first = series.slices[0]
    day = first.get("ContentDate") or first.get("StudyDate") or "19000101"
    time = first.get("ContentTime") or first.get("StudyTime") or "000000"
    for name, value in (("Date", day), ("Time", time)):
        for event in ("Content", "InstanceCreation", "Series"):
            if f"{event}{name}" in dataset:
                setattr(dataset, f"{event}{name}", value)
    for equipment in dataset.get("ContributingEquipmentSequence", ()):
        equipment.pop("ContributionDateTime", None)
    organisation = _uid(identity, "dimensions")
    dataset.DimensionOrganizationSequence[0].DimensionOrganizationUID = organisation
    for index in dataset.DimensionIndexSequence:
        index.DimensionOrganizationUID = organisation
    return dataset


def _identity(series: Series, frames: NDArray[Any], words: list[object]) -> bytes:
    """Return a digest of what an object holds and of where it comes from."""
    digest = hashlib.sha256(repr([version(), words, frames.shape]).encode())
    for one in series.slices:
        digest.update(str(one.SOPInstanceUID).encode())
    digest.update(frames.tobytes())
    return digest.digest()


def _uid(identity: bytes, what: str) -> str:
    """Return an identifier made from a digest, in the form DICOM has for UUIDs."""
    name = hashlib.sha256(identity + what.encode()).digest()
    return f"2.25.{uuid.UUID(bytes=name[:16], version=5).int}"


def _coded(code: Code) -> Any:  # noqa: ANN401
    concept = optional_package("highdicom", _PURPOSE).sr.CodedConcept
    return concept(code.value, "SCT", code.meaning)


def _algorithm() -> Any:  # noqa: ANN401
    concept = optional_package("highdicom", _PURPOSE).sr.CodedConcept
    return concept("123110", "DCM", "Artificial Intelligence")
