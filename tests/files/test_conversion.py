"""Labels for 3D Slicer and ITK-SNAP: values, names, colours and place."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from helpers.bids_data import errors_in
from helpers.patient_files import AFFINE, SHAPE
from helpers.small_case import read, write_files
from perturb_mpm.files import (
    LabelScheme,
    Source,
    geometry_from_affine,
    label_colours,
    read_volume,
    write_for_program,
)
from perturb_mpm.run import BidsNames, RunSettings, run_case

SCHEME = LabelScheme((0, 1, 4), ("background", 'necrosis "core"', "enhancing tumour"))
GRID = geometry_from_affine(SHAPE, AFFINE)


def labels() -> np.ndarray:
    return np.random.default_rng(1).choice([0, 1, 4], SHAPE).astype(np.uint8)


def test_slicer_gets_segments(tmp_path: Path) -> None:
    path = write_for_program(tmp_path, "slicer", labels(), GRID, SCHEME)
    assert path.name == "labels.seg.nrrd"
    found = read_volume(Source("labels", path))
    np.testing.assert_array_equal(found.voxels, labels())
    np.testing.assert_allclose(found.geometry.affine, AFFINE, atol=1e-6)
    header = path.read_bytes().split(b"\n\n")[0].decode()
    fields = dict(re.findall(r"^(\w+):=(.*)$", header, re.MULTILINE))
    assert fields["Segment0_Name"] == 'necrosis "core"'
    assert fields["Segment1_LabelValue"] == "4"
    assert fields["Segment1_Extent"] == "0 4 0 5 0 3"
    red, green, blue = (float(v) for v in fields["Segment1_Color"].split())
    colour = label_colours(SCHEME.names[1:])[1]
    assert colour == f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"
    assert "Segment2_ID" not in fields


def test_simpleitk_reads_the_segmentation(tmp_path: Path) -> None:
    sitk = pytest.importorskip("SimpleITK", reason="the extra itk is not installed")
    path = write_for_program(tmp_path, "slicer", labels(), GRID, SCHEME)
    found = sitk.ReadImage(str(path))
    np.testing.assert_array_equal(sitk.GetArrayFromImage(found).transpose(2, 1, 0), labels())
    assert found.GetMetaData("Segment1_Name") == "enhancing tumour"


def test_itksnap_gets_names_and_colours(tmp_path: Path) -> None:
    path = write_for_program(tmp_path, "itksnap", labels(), GRID, SCHEME)
    rows = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    pattern = re.compile(r'\s*(\d+)\s+(\d+)\s+(\d+)\s+(\d+)\s+([01])\s+([01])\s+([01])\s+"([^"]+)"')
    found = [pattern.fullmatch(row) for row in rows]
    assert all(found)
    assert [row[1] for row in found if row] == ["0", "1", "4"]
    names = [row[8] for row in found if row]
    assert names == ["Clear Label", "necrosis 'core'", "enhancing tumour"]


def test_tissues_without_background_are_all_there(tmp_path: Path) -> None:
    scheme = LabelScheme((1, 2), ("CSF", "tissue"), background=9)
    values = np.random.default_rng(1).choice([1, 2, 9], SHAPE).astype(np.uint8)
    path = write_for_program(tmp_path, "slicer", values, GRID, scheme)
    found = read_volume(Source("labels", path)).voxels
    np.testing.assert_array_equal(found, np.where(values == 9, 0, values))
    assert b"Segment0_Name:=CSF" in path.read_bytes()


def test_the_validator_finds_no_error(tmp_path: Path) -> None:
    write_files(tmp_path / "in")
    dataset = tmp_path / "dataset"
    case = read(tmp_path / "in")
    settings = RunSettings.of_paper().changed(samples=2, iterations=1)
    run_case(case, settings, dataset, title="x", bids=BidsNames("01", "pre"))
    assert errors_in(dataset) == []
    # The check can fail: a line that validators do not take for a folder lets its files through.
    ignored = dataset / ".bidsignore"
    ignored.write_text(ignored.read_text().replace("**/state\n", "**/state/\n"))
    assert any("state" in error for error in errors_in(dataset))
