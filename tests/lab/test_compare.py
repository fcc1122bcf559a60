"""Every method on one case: the table, the boxes of the slow ones, and the command."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from lab.__main__ import main
from lab.compare import METHODS, ComparePlan, Subject, crop_box, crop_case, run_methods
from lab.patients import phantom_patient
from perturb_mpm.files import save_nifti
from perturb_mpm.phantom import glioblastoma
from perturb_mpm.progress import Silent

PLAN = ComparePlan(6, 3, 2, dense_voxels=27, program_voxels=8)


def subject(spacing_mm: float = 8.0) -> Subject:
    scan = glioblastoma(0, spacing_mm=spacing_mm)
    case = phantom_patient("a", scan, scan.probabilities).case
    return Subject(crop_case(case, crop_box(case, (4,), 8)), (4,), PLAN)


def test_every_method_has_its_row() -> None:
    pytest.importorskip("maxflow")
    given = subject()
    rows = {each.method: each for each in run_methods(given, Silent())}
    assert list(rows) == list(METHODS)
    assert all(not row.note.startswith("not run") for row in rows.values())
    assert rows["votes"].agreement == 0
    assert rows["votes"].voxels == rows["mean field"].voxels == int(given.case.mask.sum())
    assert rows["Gibbs"].voxels <= 27
    assert rows["exact"].voxels <= 8
    assert rows["mean field"].volume_ml is None
    low, middle, high = rows["Alberts' volume uncertainty"].volume_ml or (0, 0, 0)
    assert low <= middle <= high


def test_a_crop_keeps_its_place_in_space() -> None:
    scan = glioblastoma(0, spacing_mm=8.0)
    case = phantom_patient("a", scan, scan.probabilities).case
    box = crop_box(case, (4,), 6)
    small = crop_case(case, box)
    assert small.mask.shape == (6, 6, 6)
    corner = case.geometry.affine @ [*(part.start for part in box), 1]
    np.testing.assert_allclose(small.geometry.affine @ [0, 0, 0, 1], corner)
    np.testing.assert_array_equal(small.mask, case.mask[box])


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stop:
        main([str(each) for each in arguments])
        raise SystemExit(0)
    return int(stop.value.code or 0)


def test_the_command_writes_a_table_and_a_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("maxflow")
    scan = glioblastoma(0, spacing_mm=8.0)
    save_nifti(tmp_path / "t1c.nii.gz", scan.images[1], scan.affine)
    np.savez(tmp_path / "case.npz", probabilities=scan.probabilities.transpose(0, 3, 2, 1))
    common = ("--image", tmp_path / "t1c.nii.gz", "--probabilities", tmp_path / "case.npz")
    out = tmp_path / "out"
    assert run("compare", *common, "--crop", 8, "--quick", "--json", "--output", out) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["method"] for row in found["methods"]] == list(METHODS)
    assert {path.name for path in out.iterdir()} == {"compare.csv", "compare.md", "compare.png"}
    assert run("compare", *common, "--region", 9, "--output", out) == 2
    assert "--region must be some of the labels 0 to 4" in capsys.readouterr().err
