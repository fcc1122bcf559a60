"""Files of a cohort that a power cut has left short: named or made again, never mixed up."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.small_case import call
from helpers.small_cohort import outputs, write_one, write_small_cohort

NAMES = ("A1", "A2")
SETTINGS = ["--samples", "8", "--iterations", "2", "--seed", "5", "--threads", "1"]
DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "cut short": lambda content: content[: len(content) // 2],
    "zeros": lambda content: bytes(len(content)),
    "no object": lambda _: b"[]",
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished cohort, its inputs beside it."""
    root = tmp_path_factory.mktemp("cohort")
    assert call("cohort", *write_small_cohort(root, NAMES), *SETTINGS, *output(root)) == 0
    return root


@pytest.fixture
def root(whole: Path, tmp_path: Path) -> Path:
    """A copy of the finished cohort, of the same inputs."""
    shutil.copytree(whole / "out", tmp_path / "out")
    for name in ("imagesTs", "predicted", "labelsTs"):
        shutil.copytree(whole / name, tmp_path / name)
    # Records name their inputs by path: the copy is brought up to date before it is damaged.
    assert go_on(tmp_path) == 0
    return tmp_path


def output(root: Path) -> list[str]:
    return ["--output", str(root / "out")]


def go_on(root: Path) -> int:
    files = ["--images", str(root / "imagesTs"), "--probabilities", str(root / "predicted")]
    return call("cohort", *files, *SETTINGS, *output(root))


def damage(path: Path, how: str) -> None:
    path.write_bytes(DAMAGE[how](path.read_bytes()))


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_record_is_named_and_its_case_run_again(
    how: str, root: Path, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(root / "out" / "cohort" / "A1.json", how)
    capsys.readouterr()
    assert go_on(root) == 0
    assert "A1.json is no record of A1" in capsys.readouterr().err
    assert outputs(root / "out", NAMES) == outputs(whole / "out", NAMES)


def test_the_record_of_another_case_is_never_taken(root: Path, whole: Path) -> None:
    records = root / "out" / "cohort"
    (records / "A1.json").write_bytes((records / "A2.json").read_bytes())
    assert go_on(root) == 0
    assert json.loads((records / "A1.json").read_text())["case"] == "A1"
    assert outputs(root / "out", NAMES) == outputs(whole / "out", NAMES)


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_request_is_named(
    how: str, root: Path, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = root / "out" / "cohort" / "request.json"
    damage(path, how)
    capsys.readouterr()
    assert go_on(root) == 2
    assert f"damaged {path}" in capsys.readouterr().err
    path.unlink()
    assert go_on(root) == 0
    assert outputs(root / "out", NAMES) == outputs(whole / "out", NAMES)


@pytest.mark.parametrize("how", DAMAGE)
def test_a_case_whose_state_is_damaged_is_run_anew(how: str, root: Path, whole: Path) -> None:
    damage(root / "out" / "A1" / "state" / "run.json", how)
    assert go_on(root) == 0
    records = json.loads((root / "out" / "cohort.json").read_text())["records"]
    reasons = {each["case"]: each["run_anew"] for each in records}
    assert "its state is damaged" in reasons["A1"]
    assert "run.json" in reasons["A1"]
    assert reasons["A2"] is None
    assert outputs(root / "out", NAMES) == outputs(whole / "out", NAMES)


@pytest.mark.parametrize("name", ["labels.nii.gz", "state/posterior.npz", "state/samples.npz"])
def test_a_finished_case_with_a_file_that_a_power_cut_emptied_is_run_again(
    name: str, root: Path, whole: Path
) -> None:
    (root / "out" / "A1" / name).write_bytes(b"")
    assert go_on(root) == 0
    assert (root / "out" / "A1" / name).stat().st_size > 0
    assert outputs(root / "out", NAMES) == outputs(whole / "out", NAMES)


def test_the_run_of_another_case_in_a_folder_is_not_taken_for_its_own(root: Path) -> None:
    shutil.rmtree(root / "out" / "A1")
    shutil.copytree(root / "out" / "A2", root / "out" / "A1")
    assert go_on(root) == 3
    failed = json.loads((root / "out" / "cohort.json").read_text())["failed"]
    assert failed == ["A1"]


def test_without_record_and_state_the_folder_is_named(root: Path) -> None:
    damage(root / "out" / "cohort" / "A1.json", "cut short")
    damage(root / "out" / "A1" / "state" / "run.json", "empty")
    write_one(root, "A1", 77)
    assert go_on(root) == 3
    records = json.loads((root / "out" / "cohort.json").read_text())["records"]
    (error,) = [each["error"] for each in records if each["case"] == "A1"]
    assert str(root / "out" / "A1") in error
    assert "move or remove that folder" in error
    shutil.rmtree(root / "out" / "A1")
    assert go_on(root) == 0
