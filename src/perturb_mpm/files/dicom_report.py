"""Volumes and their uncertainty as a DICOM structured report (TID 1500).

Each segment of the DICOM segmentation beside it is a measurement group with its volume, and where
there is an interval, how far that reaches above and below (TID 310).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class SegmentVolume:
    """The volume of one label: a segment of the DICOM segmentation, numbered from 1."""

    segment: int
    name: str
    volume_ml: float
    interval_ml: tuple[float, float]  # 95 %; NaN where there is none


def write_dicom_report(
    folder: Path, series_folder: Path, volumes: Sequence[SegmentVolume], basis: str
) -> Path:
    """Write measurements.sr.dcm beside the DICOM segmentation of a folder, and return it.

    ``basis`` says in words what the intervals rest on.
    """
    hd, pydicom = (optional_package(name, PURPOSE) for name in ("highdicom", "pydicom"))
    series = read_series(series_folder)
    segmentation = pydicom.dcmread(folder / DICOM_FILES["dicom_labels"])
    identity = hashlib.sha256(
        repr([version(), str(segmentation.SOPInstanceUID), list(volumes), basis]).encode()
    ).digest()
    with Source("dicom_series", series_folder).refuse_damage():
        report = hd.sr.MeasurementReport(
            observation_context=_observer(hd, identity),
            procedure_reported=hd.sr.CodedConcept("363679005", "SCT", "Imaging procedure"),
            imaging_measurements=[
                _group(hd, each, segmentation, series.slices, identity, basis) for each in volumes
            ],
        )
        dataset = hd.sr.EnhancedSR(
            evidence=[*series.slices, segmentation],
            content=report[0],
            series_description="perturb-mpm volumes",
            is_complete=True,
            **_report_equipment(describe_equipment(series, identity, 3)),
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


def _report_equipment(equipment: dict[str, Any]) -> dict[str, Any]:
    """Return what a report takes of an object's numbers and names."""
    taken = (
        *("series_instance_uid", "series_number", "sop_instance_uid", "instance_number"),
        "manufacturer",
    )
    return {name: equipment[name] for name in taken}


def _group(
    hd: Any,  # noqa: ANN401
    volume: SegmentVolume,
    segmentation: Any,  # noqa: ANN401
    slices: Sequence[Any],
    identity: bytes,
    basis: str,
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
        measurements=[_volume_measurement(hd, volume, basis)],
    )


def _volume_measurement(hd: Any, volume: SegmentVolume, basis: str) -> Any:  # noqa: ANN401
    low, high = volume.interval_ml
    known = not math.isnan(low)
    return hd.sr.Measurement(
        name=hd.sr.CodedConcept("118565006", "SCT", "Volume"),
        value=volume.volume_ml,
        unit=hd.sr.CodedConcept("ml", "UCUM", "milliliter"),
        algorithm_id=hd.sr.AlgorithmIdentification(
            name="perturb-mpm", version=version(), parameters=[f"95 % interval: {basis}"[:64]]
        ),
        properties=hd.sr.MeasurementProperties(
            upper_measurement_uncertainty=high - volume.volume_ml,
            lower_measurement_uncertainty=volume.volume_ml - low,
        )
        if known
        else None,
    )
