"""Volumes, diameters and their uncertainty as a DICOM structured report (TID 1500).

Each segment of the DICOM segmentation beside it is a measurement group with its volume and, where
they were measured, its diameters; where there is an interval, with how far that reaches above and
below (TID 310).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perturb_mpm.files.conversion import PROGRAM_FILES
from perturb_mpm.files.dicom import (
    DICOM_FILES,
    PURPOSE,
    coded_concept,
    describe_equipment,
    find_codes,
    make_uid,
    read_series,
    take_dates_of_series,
)
from perturb_mpm.files.source import Source
from perturb_mpm.optional import optional_package
from perturb_mpm.storage import atomic_open
from perturb_mpm.version import version

REPORT_FILE = PROGRAM_FILES["sr"]
DIAMETERS = {  # measure -> its code
    "diameter": ("L0JK", "IBSI", "Maximum 3D Diameter"),
    "axial_diameter": ("103339001", "SCT", "Long Axis"),
    "perpendicular_diameter": ("103340004", "SCT", "Short Axis"),
}
_VOLUME = ("118565006", "SCT", "Volume")
_EQUIPMENT = (  # what a report takes of an object's numbers and names
    *("series_instance_uid", "series_number", "sop_instance_uid", "instance_number"),
    "manufacturer",
)
_MILLILITRE, _MILLIMETRE = ("ml", "UCUM", "milliliter"), ("mm", "UCUM", "millimeter")


@dataclass(frozen=True)
class SegmentVolume:
    """The volume of one label: a segment of the DICOM segmentation, numbered from 1."""

    segment: int
    name: str
    volume_ml: float
    interval_ml: tuple[float, float]  # 95 %; NaN where there is none
    diameters: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)
    """By a name of ``DIAMETERS``: value and both ends of its 95 %, mm."""


def write_dicom_report(
    folder: Path,
    series_folder: Path,
    volumes: Sequence[SegmentVolume],
    basis: str,
    settings: Sequence[str] = (),
) -> Path:
    """Write measurements.sr.dcm beside the DICOM segmentation of a folder, and return it.

    ``basis`` says in words what the intervals rest on, ``settings`` how samples were drawn.
    """
    hd, pydicom = (optional_package(name, PURPOSE) for name in ("highdicom", "pydicom"))
    series = read_series(series_folder)
    segmentation = pydicom.dcmread(folder / DICOM_FILES["dicom_labels"])
    identity = hashlib.sha256(
        repr(
            [version(), str(segmentation.SOPInstanceUID), list(volumes), basis, *settings]
        ).encode()
    ).digest()
    parameters = [text[:64] for text in (f"95 % interval: {basis}", *settings)]
    equipment = describe_equipment(series, identity, 3)
    with Source("dicom_series", series_folder).refuse_damage():
        report = hd.sr.MeasurementReport(
            observation_context=_observer(hd, identity),
            procedure_reported=hd.sr.CodedConcept("363679005", "SCT", "Imaging procedure"),
            imaging_measurements=[
                _group(hd, each, segmentation, series.slices, identity, parameters)
                for each in volumes
            ],
        )
        dataset = hd.sr.EnhancedSR(
            evidence=[*series.slices, segmentation],
            content=report[0],
            series_description="perturb-mpm measurements",
            is_complete=True,
            **{name: equipment[name] for name in _EQUIPMENT},
        )
    take_dates_of_series(dataset, series)
    path = folder / REPORT_FILE
    with atomic_open(path) as file:
        dataset.save_as(file, enforce_file_format=True)
    return path


def _observer(hd: Any, identity: bytes) -> Any:  # noqa: ANN401
    return hd.sr.ObservationContext(
        observer_device_context=hd.sr.ObserverContext(
            observer_type=hd.sr.CodedConcept("121007", "DCM", "Device"),
            observer_identifying_attributes=hd.sr.DeviceObserverIdentifyingAttributes(
                uid=make_uid(identity, "device"), name="perturb-mpm"
            ),
        )
    )


def _group(
    hd: Any,  # noqa: ANN401
    volume: SegmentVolume,
    segmentation: Any,  # noqa: ANN401
    slices: Sequence[Any],
    identity: bytes,
    parameters: Sequence[str],
) -> Any:  # noqa: ANN401
    category, kind = find_codes(volume.name)
    return hd.sr.VolumetricROIMeasurementsAndQualitativeEvaluations(
        tracking_identifier=hd.sr.TrackingIdentifier(
            uid=make_uid(identity, f"segment {volume.segment}"), identifier=volume.name[:64]
        ),
        referenced_segment=hd.sr.ReferencedSegment(
            sop_class_uid=segmentation.SOPClassUID,
            sop_instance_uid=segmentation.SOPInstanceUID,
            segment_number=volume.segment,
            source_series=hd.sr.SourceSeriesForSegmentation(str(slices[0].SeriesInstanceUID)),
        ),
        finding_category=coded_concept(category),
        finding_type=coded_concept(kind),
        measurements=[
            _measurement(
                hd, _VOLUME, _MILLILITRE, (volume.volume_ml, *volume.interval_ml), parameters
            ),
            *(
                _measurement(hd, DIAMETERS[name], _MILLIMETRE, values, parameters)
                for name, values in volume.diameters.items()
            ),
        ],
    )


def _measurement(
    hd: Any,  # noqa: ANN401
    name: tuple[str, str, str],
    unit: tuple[str, str, str],
    values: tuple[float, float, float],
    parameters: Sequence[str],
) -> Any:  # noqa: ANN401
    """Return a measurement of a value and the ends of its interval, NaN where there is none."""
    value, low, high = values
    return hd.sr.Measurement(
        name=hd.sr.CodedConcept(*name),
        value=value,
        unit=hd.sr.CodedConcept(*unit),
        algorithm_id=hd.sr.AlgorithmIdentification(
            name="perturb-mpm", version=version(), parameters=list(parameters)
        ),
        properties=None
        if math.isnan(low)
        else hd.sr.MeasurementProperties(
            upper_measurement_uncertainty=max(high - value, 0.0),
            lower_measurement_uncertainty=max(value - low, 0.0),
        ),
    )
