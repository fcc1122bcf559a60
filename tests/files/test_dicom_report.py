"""The structured report: read back by highdicom and dcmqi with the same numbers."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from helpers.dicom_series import COLUMNS, ROWS, SCHEME, SLICES, scanner_affine, write_series
from perturb_mpm.files import SegmentVolume, geometry_from_affine, write_dicom, write_dicom_report

hd = pytest.importorskip("highdicom", reason="the extra dicom is not installed")

VOLUMES = (
    SegmentVolume(
        1,
        "necrosis",
        1.25,
        (1.0, 2.0),
        {"diameter": (12.5, 11.0, 14.0), "axial_diameter": (9.0, 8.5, 9.5)},
    ),
    SegmentVolume(2, "enhancing tumour", 0.5, (math.nan, math.nan)),
)


@pytest.fixture
def report(tmp_path: Path) -> Path:
    series, shape = write_series(tmp_path / "series"), (COLUMNS, ROWS, SLICES)
    labels = np.arange(math.prod(shape)).reshape(shape) % 3
    geometry = geometry_from_affine(shape, scanner_affine())
    write_dicom(tmp_path, series, labels, np.zeros(shape, np.float32), geometry, SCHEME)
    return write_dicom_report(tmp_path, series, VOLUMES, "assumed", ["40 samples, seed 1"])


def test_highdicom_reads_the_same_numbers(report: Path) -> None:
    found = hd.sr.srread(report)
    groups = found.content.get_volumetric_roi_measurement_groups()
    assert [group.tracking_identifier for group in groups] == ["necrosis", "enhancing tumour"]
    for group, expected in zip(groups, VOLUMES, strict=True):
        measurement, *others = group.get_measurements()
        assert measurement.name.meaning == "Volume"
        assert [each.value for each in others] == [v[0] for v in expected.diameters.values()]
        assert {each.unit.value for each in others} <= {"mm"}
        assert measurement.value == expected.volume_ml
        assert measurement.unit.value == "ml"
        assert group.referenced_segment is not None
    text = str(found)
    assert "range of upper measurement uncertainty" in text
    assert text.count("range of lower measurement uncertainty") == 3
    assert "Maximum 3D Diameter" in text
    assert report.read_bytes().count(b"40 samples, seed 1") == 4  # with each measurement


def test_the_same_run_gives_the_same_bytes(report: Path) -> None:
    before = report.read_bytes()
    write_dicom_report(
        report.parent, report.parent / "series", VOLUMES, "assumed", ["40 samples, seed 1"]
    )
    assert report.read_bytes() == before


def test_dcmqi_reads_the_same_numbers(report: Path, tmp_path: Path) -> None:
    program = shutil.which("tid1500reader")
    if program is None:
        pytest.skip("dcmqi's tid1500reader is not installed")
    out = tmp_path / "report.json"
    command = [program, "--inputDICOM", str(report), "--outputMetadata", str(out)]
    subprocess.run(command, check=True, capture_output=True)
    groups = json.loads(out.read_text())["Measurements"]
    values = [[float(item["value"]) for item in each["measurementItems"]] for each in groups]
    expected = [
        [each.volume_ml, *(value[0] for value in each.diameters.values())] for each in VOLUMES
    ]
    assert values == expected
