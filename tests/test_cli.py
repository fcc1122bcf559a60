from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from perturb_mpm.cli import main

VOLUMES = ("t1", "t1ce", "t2", "flair", "truth", "classifier", "labels", "entropy")
FILES = {*(f"{name}.nii.gz" for name in VOLUMES), "demo.png"}
COARSE = ("--voxel-mm", "8")


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ending:
        main(arguments)
    assert isinstance(ending.value.code, int)
    return ending.value.code


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo") / "made" / "here"
    assert call("demo", "--output", str(folder), "--quiet", *COARSE) == 0
    return folder


def test_the_demo_writes_a_picture_and_volumes(folder: Path) -> None:
    assert set(os.listdir(folder)) == FILES
    assert (folder / "demo.png").read_bytes().startswith(b"\x89PNG\r\n")


def test_the_demos_volumes_share_one_geometry(folder: Path) -> None:
    images = {name: nib.load(folder / f"{name}.nii.gz") for name in VOLUMES}
    for image in images.values():
        assert image.shape == (20, 24, 18)
        np.testing.assert_allclose(image.header.get_zooms(), (8.0, 8.0, 8.0))
        np.testing.assert_array_equal(image.affine, images["t1"].affine)
    labels = np.asanyarray(images["labels"].dataobj)
    assert labels.dtype == np.uint8
    assert set(np.unique(labels)) <= {0, 1, 2, 3}


def test_the_demos_entropy_is_in_bits_and_highest_in_the_tumour(folder: Path) -> None:
    entropy = np.asanyarray(nib.load(folder / "entropy.nii.gz").dataobj)
    flair = np.asanyarray(nib.load(folder / "flair.nii.gz").dataobj)
    truth = np.asanyarray(nib.load(folder / "truth.nii.gz").dataobj)
    assert entropy.min() >= 0.0
    assert entropy.max() <= 2.0
    assert (entropy[flair == 0.0] == 0.0).all()
    assert entropy[truth > 0].mean() > 3.0 * entropy[(truth == 0) & (flair > 0.0)].mean()


def test_quiet_prints_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert call("demo", "--output", str(tmp_path), "--quiet", *COARSE) == 0
    assert capfd.readouterr().out == ""


def test_json_tells_what_was_made_and_how_good_it_is(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert call("demo", "--output", str(tmp_path), "--json", *COARSE) == 0
    summary = json.loads(capfd.readouterr().out)
    assert {Path(file).name for file in summary["files"]} == FILES
    assert all(Path(file).is_file() for file in summary["files"])
    assert summary["converged"]
    assert [row["label"] for row in summary["labels"]] == [
        "necrotic core",
        "oedema",
        "enhancing rim",
    ]
    for row in summary["labels"]:
        assert row["truth_ml"] > 0.0
        assert set(row["volume_ml"]) == set(row["dice"]) == {"classifier", "crf"}
    oedema = summary["labels"][1]
    assert oedema["dice"]["crf"] > oedema["dice"]["classifier"]


def test_the_table_names_every_label_and_file(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert call("demo", "--output", str(tmp_path), "--seed", "1", *COARSE) == 0
    printed = capfd.readouterr().out
    for text in ("necrotic core", "oedema", "enhancing rim", "Dice", "ml", *FILES):
        assert text in printed


def test_the_demo_gives_the_same_bytes_again(folder: Path, tmp_path: Path) -> None:
    assert call("demo", "--output", str(tmp_path), "--quiet", *COARSE) == 0
    for name in FILES:
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes(), name


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["demo", "--seed", "one"], "--seed"),
        (["demo", "--seed", "-1"], "--seed must not be negative, got -1"),
        (["demo", "--voxel-mm", "0.1"], "--voxel-mm must be between 1 and 8, got 0.1"),
        (["demo", "--voxel-mm", "nan"], "--voxel-mm must be between 1 and 8, got nan"),
        (["demo", "--colour", "red"], "--colour"),
        (["demo", "left", "over"], "left"),
        (["dmeo"], "dmeo"),
    ],
)
def test_bad_arguments_are_one_line_on_stderr_and_exit_2(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(*arguments) == 2
    printed = capfd.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("perturb-mpm: ")
    assert printed.err.count("\n") == 1
    assert message in printed.err
    assert os.listdir(tmp_path) == []


def test_an_output_that_is_a_file_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").write_text("mine")
    assert call("demo", "--output", str(tmp_path / "taken")) == 2
    assert "--output must be a folder, got the file" in capfd.readouterr().err
    assert (tmp_path / "taken").read_text() == "mine"


def test_an_output_below_a_file_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").write_text("mine")
    assert call("demo", "--output", str(tmp_path / "taken" / "below")) == 2
    assert "--output must be a folder that can be made" in capfd.readouterr().err


def test_a_folder_that_may_not_be_written_to_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    # Told rather than tried: the superuser may write everywhere.
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert call("demo", "--output", str(tmp_path)) == 2
    assert "--output must be a folder you may write to" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("problem", "code", "message"),
    [
        (OSError("the disk is full"), 1, "perturb-mpm: the disk is full\n"),
        (KeyboardInterrupt(), 130, "perturb-mpm: interrupted\n"),
    ],
)
def test_failures_are_one_line_too(
    problem: BaseException,
    code: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise problem

    monkeypatch.setattr("perturb_mpm.phantom.glioma_phantom", fail)
    assert call("demo", "--output", str(tmp_path)) == code
    assert capfd.readouterr().err == message


def run_and_list_modules(code: str) -> tuple[str, set[str]]:
    watch = "\nimport sys; sys.stderr.write(' '.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code + watch], check=True, capture_output=True, text=True
    )
    return done.stdout, set(done.stderr.split())


@pytest.mark.parametrize(
    ("arguments", "example"),
    [
        (["--help"], "perturb-mpm demo --output demo"),
        (["demo", "--help"], "perturb-mpm demo --output demo --seed 3"),
        ([], "perturb-mpm demo --output demo"),
    ],
)
def test_help_shows_an_example_and_loads_nothing_heavy(arguments: list[str], example: str) -> None:
    printed, modules = run_and_list_modules(
        "from perturb_mpm.cli import main\n"
        f"try:\n    main({arguments})\nexcept SystemExit as ending:\n    assert not ending.code"
    )
    assert f"Example:  {example}" in printed
    assert not modules & {"numba", "torch", "matplotlib", "nibabel", "scipy"}


def test_version_is_that_of_the_package(capfd: pytest.CaptureFixture[str]) -> None:
    from importlib.metadata import version

    assert call("--version") == 0
    assert capfd.readouterr().out.strip() == version("perturb-mpm")
