"""``perturb-mpm convert``: from one format to another and back."""

from __future__ import annotations

import json
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from helpers.patient_files import AFFINE, SHAPE, probabilities, write
from helpers.small_case import call
from perturb_mpm.files import Source, read_volume


def convert(*words: str | Path) -> int:
    return call("convert", *map(str, words))


@pytest.mark.parametrize("ending", [".nii", ".nrrd", ".mha", ".mgz", ".seg.nrrd"])
def test_a_label_map_there_and_back(
    tmp_path: Path, ending: str, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = np.random.default_rng(1).integers(0, 3, SHAPE).astype(np.uint8)
    start = write(tmp_path / "labels.nii.gz", labels)
    middle, end = tmp_path / f"m{ending}", tmp_path / "end.nii.gz"
    assert convert("--input", start, "--output", middle) == 0
    assert "5 × 6 × 4" in capsys.readouterr().out
    assert convert("--input", middle, "--output", end, "--json") == 0
    assert json.loads(capsys.readouterr().out)["shape"] == list(SHAPE)
    found = nib.load(end)
    assert found.get_data_dtype() == np.uint8
    np.testing.assert_array_equal(np.asarray(found.dataobj), labels)
    np.testing.assert_allclose(found.affine, AFFINE, atol=1e-5)


def test_several_files_become_maps_and_an_npz_too(tmp_path: Path) -> None:
    files = [write(tmp_path / f"{l}.nii", probabilities()[..., l]) for l in range(3)]
    assert convert("--input", *files, "--output", tmp_path / "all.nrrd", "--quiet") == 0
    found = read_volume(Source("image", tmp_path / "all.nrrd"))
    np.testing.assert_array_equal(found.voxels, probabilities())
    np.savez(tmp_path / "P.npz", probabilities=probabilities().transpose(3, 2, 1, 0))
    words = ("--input", tmp_path / "P.npz", "--output", tmp_path / "P.mha")
    assert convert(*words) == 2
    assert convert(*words, "--reference", files[0], "--quiet") == 0
    np.testing.assert_array_equal(
        read_volume(Source("image", tmp_path / "P.mha")).voxels, probabilities()
    )


def test_what_cannot_be_converted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start = write(tmp_path / "a.nii", np.zeros(SHAPE, np.uint8))
    for output, words in (
        ("a.xyz", "--output must end in one of .nii.gz"),
        ("a.png", "a .png must have one slice, got 4"),
        ("missing/a.nrrd", "--output must lie in a folder that exists"),
        ("a.nii", "--output must be a new file"),
    ):
        assert convert("--input", start, "--output", tmp_path / output) == 2
        assert words in capsys.readouterr().err
