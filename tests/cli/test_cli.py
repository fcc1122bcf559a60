from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from perturb_mpm.cli import main

IMAGES = ("t1c", "t1", "t2", "flair")
MAPS = ("labels", "marginals", "entropy", "uncertainty")
PATIENT = {f"{name}.nii.gz" for name in (*IMAGES, "probabilities", "mask", "truth")}
FILES = {*(f"{name}.nii.gz" for name in MAPS), "volumes.csv", "summary.json", "report.html"}
NAMES = ("necrosis", "oedema", "non-enhancing core", "enhancing tumour")
COARSE = ("--spacing", "8", "--samples", "12")


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


def volume(file: Path) -> np.ndarray:
    return np.asanyarray(nib.load(file).dataobj)


def test_the_demo_writes_a_patient_and_what_run_writes(folder: Path) -> None:
    assert set(os.listdir(folder)) == {*FILES, "patient", "state"}
    assert set(os.listdir(folder / "patient")) == PATIENT
    assert "Phantom glioblastoma, seed 0" in (folder / "report.html").read_text()


def test_the_demos_volumes_share_one_geometry(folder: Path) -> None:
    files = [folder / "patient" / name for name in PATIENT]
    files += [folder / f"{name}.nii.gz" for name in MAPS]
    images = [nib.load(file) for file in files]
    for image in images:
        assert image.shape[:3] == (20, 25, 21)
        np.testing.assert_allclose(image.header.get_zooms()[:3], (8.0, 8.0, 8.0))
        np.testing.assert_array_equal(image.affine, images[0].affine)
    labels = volume(folder / "labels.nii.gz")
    assert labels.dtype == np.uint8
    assert set(np.unique(labels)) <= {0, 1, 2, 3, 4}


def test_the_demos_entropy_is_in_bits_and_highest_in_the_tumour(folder: Path) -> None:
    entropy = volume(folder / "entropy.nii.gz")
    mask = volume(folder / "patient" / "mask.nii.gz") > 0
    truth = volume(folder / "patient" / "truth.nii.gz")
    assert entropy.min() >= 0.0
    assert entropy.max() <= np.log2(5) + 1e-6
    assert (entropy[~mask] == 0.0).all()
    assert entropy[truth > 0].mean() > 3.0 * entropy[(truth == 0) & mask].mean()


def test_the_command_that_the_demo_prints_gives_the_same_maps(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call("demo", "--output", str(tmp_path / "demo"), *COARSE) == 0
    (line,) = [
        line
        for line in capfd.readouterr().out.splitlines()
        if line.startswith("the same by hand: ")
    ]
    program, *command = shlex.split(line.removeprefix("the same by hand: "))
    assert program == "perturb-mpm"
    monkeypatch.chdir(tmp_path)
    assert call(*command, "--quiet") == 0
    for name in (*(f"{name}.nii.gz" for name in MAPS), "volumes.csv"):
        assert (tmp_path / "mine" / name).read_bytes() == (folder / name).read_bytes(), name
    ours, theirs = (
        json.loads((each / "summary.json").read_text()) for each in (tmp_path / "mine", folder)
    )
    for key in ("answer", "regions", "labels", "parameters", "reading", "problem_sha256"):
        assert ours[key] == theirs[key], key


def test_quiet_prints_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert call("demo", "--output", str(tmp_path), "--quiet", *COARSE) == 0
    printed = capfd.readouterr()
    assert printed.out == printed.err == ""


def test_json_tells_what_was_made_and_how_good_it_is(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert call("demo", "--output", str(tmp_path), "--json", *COARSE) == 0
    summary = json.loads(capfd.readouterr().out)
    assert summary["output"] == str(tmp_path)
    assert set(summary["files"].values()) == FILES
    assert summary["samples"] == 12
    assert not summary["volumes_reflect_voxel_noise_alone"]
    assert [row["label"] for row in summary["truth"]] == list(NAMES)
    for row, found in zip(summary["truth"], summary["labels"][1:]):
        assert found["name"] == row["label"]
        assert row["truth_ml"] > 0.0
        assert row["volume_ml"]["perturb_mpm"] == pytest.approx(found["volume_ml"])
        assert set(row["dice"]) == {"network", "perturb_mpm"}
    assert summary["truth"][1]["dice"]["perturb_mpm"] > 0.5


def test_the_table_names_every_label_and_the_report(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert call("demo", "--output", str(tmp_path), "--seed", "1", *COARSE) == 0
    printed = capfd.readouterr()
    report = f"report: {tmp_path / 'report.html'}"
    for text in (*NAMES, "Dice", "true", "found", "95 %", "uncertain", report):
        assert text in printed.out
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["answer"].startswith("Whole ")
    assert summary["answer"] in printed.out
    assert re.search(rf"wrote \d+ files to {tmp_path} in [\d.]+ (s|min)", printed.out)
    assert f"perturb-mpm view {tmp_path}" in printed.out
    assert "perturb-mpm tune" in printed.out
    assert "making a patient" in printed.err


def test_the_demo_again_replaces_the_first_and_gives_the_same_bytes(
    folder: Path, tmp_path: Path
) -> None:
    assert call("demo", "--output", str(tmp_path), "--quiet", "--seed", "1", *COARSE) == 0
    (tmp_path / "mine.txt").write_text("kept")
    assert call("demo", "--output", str(tmp_path), "--quiet", *COARSE) == 0
    same = [*(f"patient/{name}" for name in PATIENT), *(f"{name}.nii.gz" for name in MAPS)]
    for name in (*same, "volumes.csv"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes(), name
    assert (tmp_path / "mine.txt").read_text() == "kept"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["demo", "--seed", "one"], "--seed"),
        (["demo", "--seed", "-1"], "--seed must be between 0 and 18446744073709551615, got -1"),
        (["demo", "--spacing", "0.1"], "--spacing must be between 1 and 8, got 0.1"),
        (["demo", "--samples", "5000000000"], "--samples must be between 1 and 10000000"),
        (["demo", "--seed", str(2**64)], "--seed must be between 0 and 18446744073709551615"),
        (["demo", "--spacing", "nan"], "--spacing must be between 1 and 8, got nan"),
        (["demo", "--samples", "0"], "--samples must be between 1 and 10000000, got 0"),
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


def test_the_demo_does_not_replace_a_run_of_ones_own(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(folder, tmp_path / "mine", ignore=shutil.ignore_patterns("patient"))
    before = (tmp_path / "mine" / "labels.nii.gz").read_bytes()
    assert call("demo", "--output", str(tmp_path / "mine"), "--seed", "1", *COARSE) == 2
    said = capfd.readouterr().err
    assert "--output must be a new folder or that of a demo" in said
    assert "labels.nii.gz would be replaced, which is not a demo's" in said
    assert (tmp_path / "mine" / "labels.nii.gz").read_bytes() == before


@pytest.mark.parametrize("name", ["labels.nii.gz", "report.html", "patient/t1.nii.gz"])
def test_the_demo_writes_over_no_file_of_somebody_else(
    name: str, folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes((folder / "labels.nii.gz").read_bytes())  # no report, and no T1
    before = path.read_bytes()
    assert call("demo", "--output", str(tmp_path), *COARSE) == 2
    assert f"{path} would be replaced, which is not a demo's" in capfd.readouterr().err
    assert [each for each in tmp_path.rglob("*") if each.is_file()] == [path]
    assert path.read_bytes() == before


def test_the_demo_goes_over_what_a_killed_one_left(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "patient", tmp_path / "patient")
    assert call("demo", "--output", str(tmp_path), "--quiet", *COARSE) == 0


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

    monkeypatch.setattr("perturb_mpm.cli.demo.glioblastoma", fail)
    assert call("demo", "--output", str(tmp_path), "--quiet") == code
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
        (["run", "--help"], "perturb-mpm run --image"),
        (["cohort", "--help"], "perturb-mpm cohort --images"),
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


def test_an_error_is_one_line_that_fits(capfd: pytest.CaptureFixture[str]) -> None:
    from perturb_mpm.checks import LONGEST_MESSAGE

    long = [f"{number}/image.nii.gz" for number in range(400)]
    assert call("run", "--image", "a.nii.gz", "--output", "/dev/null/" + "x/" * 900) == 2
    assert call("run", *long, "--output", "o") == 2
    for line in capfd.readouterr().err.splitlines():
        assert len(line) <= LONGEST_MESSAGE


def test_torture_without_its_package_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['hypothesis'] = None\n"
        "from lab.__main__ import app\n"
        "from perturb_mpm.cli import run_app\n"
        "run_app(app, ['torture', '--help'])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "pip install 'perturb-mpm[test]'" in done.stderr


def test_version_is_that_of_the_package(capfd: pytest.CaptureFixture[str]) -> None:
    from importlib.metadata import version

    assert call("--version") == 0
    assert capfd.readouterr().out.strip() == version("perturb-mpm")


def test_the_package_runs_as_the_command_does() -> None:
    command = [sys.executable, "-m", "perturb_mpm", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", done.stdout.strip())


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_the_shell_completes_commands_and_options(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "perturb_mpm", "--install-completion"]
    home = {**os.environ, "HOME": str(tmp_path), "SHELL": "/bin/bash"}
    subprocess.run(command, env=home, capture_output=True, check=True)
    (script,) = tmp_path.rglob("perturb-mpm")
    asking = (
        f"source {script}; for words in 'coh' 'cohort --gat'; do COMP_WORDS=(perturb-mpm $words); "
        "COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _perturb_mpm; echo ${COMPREPLY[@]}; done"
    )
    bash = shutil.which("bash")
    assert bash is not None
    done = subprocess.run([bash, "-c", asking], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["cohort", "--gather"]
