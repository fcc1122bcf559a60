"""``python -m lab segmentation``: classifier, default and tuned CRF on patients left out."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from helpers.reproduction import TINY_SEGMENTATION
from lab.__main__ import main
from lab.segmentation import left_out as experiment
from lab.segmentation.left_out import HeldOutProbabilities
from lab.segmentation.patients import LeaveOneOut, LeftOut
from lab.segmentation.run import reproduce_segmentation
from lab.segmentation.segmentation_page import overlap_findings, patients_csv
from lab.segmentation.summary import calibration_rows, mean_dice, overlap_rows
from lab.segmentation.turn import label_iou
from lab.store import OtherSettingsError, PartStore
from perturb_mpm.files import save_nifti
from perturb_mpm.segmenter.calibration import Calibration
from perturb_mpm.segmenter.training import ReadScene

METHODS = (
    "classifier",
    "CRF, default",
    "CRF, tuned for overlap",
    "CRF, tuned for both",
    "CRF, tuned for likelihood",
    "votes, tuned for both",
)


def call(*arguments: str) -> object:
    with pytest.raises(SystemExit) as ending:
        main(["segmentation", *arguments])
    return ending.value.code


def turn(name: str, dice: float, truth: float) -> dict[str, Any]:
    """One patient with one region, whose tuned CRF finds 20 ml."""
    curve = {"confidence": [None, 0.8], "accuracy": [None, 0.6], "voxels": [0, 10]}
    return {
        "patient": name,
        "truth_ml": {"all": truth},
        "volume_ml": {method: {"all": 20.0} for method in METHODS},
        "dice": {method: {"all": dice if method != "classifier" else 0.5} for method in METHODS},
        "reliability": dict.fromkeys(METHODS, curve),
        "log_score_nats": dict.fromkeys(METHODS, 0.3),
    }


TURNS = [turn("a", 0.6, 30.0), turn("b", 0.8, 10.0), turn("c", 0.7, 25.0)]


def test_means_and_errors_by_hand() -> None:
    rows = overlap_rows(TURNS)
    assert mean_dice(rows, "classifier") == {"all": 0.5}
    assert mean_dice(rows, "CRF, default")["all"] == pytest.approx(0.7)
    assert calibration_rows(TURNS)[0].pooled_ece == pytest.approx(0.2)
    assert "Tuned for both the CRF is worse than the classifier in no region's mean." in (
        overlap_findings(TURNS)
    )
    assert calibration_rows(TURNS)[-1].log_score_nats == pytest.approx(0.3)
    worse = [turn("a", 0.4, 30.0), turn("b", 0.4, 30.0)]
    assert "Tuned for both the CRF is worse than the classifier for: all." in overlap_findings(
        worse
    )


def test_tables_are_csv() -> None:
    rows = list(csv.DictReader(io.StringIO(patients_csv(TURNS))))
    assert len(rows) == 3 * len(METHODS)
    assert rows[0] == {
        "patient": "a",
        "method": "classifier",
        "region": "all",
        "dice": "0.5",
        "volume_ml": "20",
        "truth_ml": "30",
    }


@pytest.fixture(autouse=True)
def quick_is_tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lab.segmentation.run.QUICK", TINY_SEGMENTATION)


def left_out(said: NDArray[np.float32]) -> LeaveOneOut:
    """Patients a, b and c, of whom a forest says the same in every turn."""

    def turns(tests: Sequence[str]) -> Iterator[LeftOut]:
        for test in tests:
            yield LeftOut(test, said, said[::-1], {"other": said})

    return LeaveOneOut({}, {}, "", "", {"seed": 0}, turns)


def test_a_first_run_and_a_resumed_one_see_the_same_bits(tmp_path: Path) -> None:
    said = np.random.default_rng(0).dirichlet(np.ones(3), size=50).astype(np.float32)
    store = PartStore(tmp_path, {"seed": 0})
    first = list(left_out(said).stored_turns(["b", "c"], store))
    resumed = list(left_out(said / 2).stored_turns(["a", "b", "c"], store))
    assert [turn.test for turn in resumed] == ["a", "b", "c"]
    np.testing.assert_array_equal(resumed[0].raw, said / 2)  # grown in the second run
    for turn in (*first, *resumed[1:]):
        np.testing.assert_array_equal(turn.raw, said)
        np.testing.assert_array_equal(turn.probabilities, said[::-1])
        np.testing.assert_array_equal(turn.tuning["other"], said)


def test_a_turn_of_another_forest_is_refused(tmp_path: Path) -> None:
    said = np.full((4, 2), 0.5, dtype=np.float32)
    list(left_out(said).stored_turns(["a"], PartStore(tmp_path / "one", {"seed": 0})))
    other = PartStore(tmp_path / "other", {"seed": 1})
    (tmp_path / "other" / "a.npz").write_bytes((tmp_path / "one" / "a.npz").read_bytes())
    with pytest.raises(OtherSettingsError, match="a part of a run with other settings, a; name"):
        list(left_out(said).stored_turns(["a"], other))
    with pytest.raises(OtherSettingsError, match=r"`forests` must .* seed is 1 there and 2 now"):
        PartStore(tmp_path / "other", {"seed": 2}, "forests")


@pytest.mark.slow
def test_the_command_on_made_up_patients(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("--quick", "--quiet", "--json", "--output", str(tmp_path / "out")) == 0
    found = json.loads(capsys.readouterr().out)
    assert {row["method"] for row in found["overlap"]} >= set(METHODS)
    assert {Path(file).name for file in found["files"]} == {
        *("segmentation.csv", "segmentation.md", "calibration.png"),
    }
    page = (tmp_path / "out" / "segmentation.md").read_text()
    assert "The patients are made up: 2 at 8 mm" in page
    dice = {(row["method"], row["region"]): row["mean_dice"] for row in found["overlap"]}
    assert dice["CRF, tuned for both", "whole tumour"] > 0.5
    # What is done is not done again: the measurements are read from the folder.
    file = min((tmp_path / "out" / "turns").glob("phantom*.json"))
    changed = json.loads(file.read_text())
    changed["content"]["dice"]["classifier"]["whole tumour"] = 0.0
    file.write_text(json.dumps(changed))
    assert call("--quick", "--quiet", "--json", "--output", str(tmp_path / "out")) == 0
    again = json.loads(capsys.readouterr().out)
    lower = {(row["method"], row["region"]): row["mean_dice"] for row in again["overlap"]}
    assert lower["classifier", "whole tumour"] < dice["classifier", "whole tumour"]
    # Of another seed or plan they are not: each is refused in one line.
    for arguments, words in ((["--quick", "--seed", "5"], "patients is"), ([], "patients is")):
        assert call(*arguments, "--quiet", "--output", str(tmp_path / "out")) == 2
        said = capsys.readouterr().err
        assert said.startswith("python -m lab: --output must be a folder for this run: ")
        assert words in said


def write_patients(folder: Path, count: int) -> dict[str, NDArray[np.uint8]]:
    """Files in the BraTS layout: a ball of three labels in a brain of 12³ voxels."""
    affine = np.diag([4.0, 4.0, 4.0, 1.0])
    maps = {}
    for number in range(count):
        rng = np.random.default_rng(number)
        radius = np.sqrt(((np.indices((12, 12, 12)) - 5.5 - 0.3 * number) ** 2).sum(axis=0))
        labels = np.select([radius < 1.5, radius < 2.5, radius < 4], [1, 4, 2], 0).astype(np.uint8)
        name = f"P{number}"
        (folder / name).mkdir(parents=True)
        for sequence in ("t1", "t1ce", "t2", "flair"):
            image = 10.0 + labels + rng.normal(0, 0.5, labels.shape)
            image[0] = 0.0  # outside the brain
            path = folder / name / f"{name}_{sequence}.nii.gz"
            save_nifti(path, image.astype(np.float32), affine)
        save_nifti(folder / name / f"{name}_seg.nii.gz", labels, affine)
        maps[name] = labels
    return maps


def test_patients_from_files_are_measured_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maps = write_patients(tmp_path / "data", 2)

    def answers(cases: Mapping[str, ReadScene], n_labels: int, **options: Any) -> Iterator[Any]:
        labels = {name: read().truth for name, read in cases.items()}
        said = {
            name: (0.7 * np.eye(n_labels)[x] + 0.3 / n_labels).astype(np.float32)
            for name, x in labels.items()
        }
        for test in options["tests"]:
            others = {name: each for name, each in said.items() if name != test}
            yield HeldOutProbabilities(
                test, said[test], said[test], others, Calibration((1.0,) * 4)
            )

    monkeypatch.setattr(experiment, "held_out_probabilities", answers)
    (tmp_path / "out").mkdir()
    outcome = reproduce_segmentation(tmp_path / "data", tmp_path / "out", quick=True)
    assert [found["patient"] for found in outcome.turns] == ["P0", "P1"]
    for found in outcome.turns:
        inside = maps[found["patient"]][1:]  # the brain
        assert found["truth_ml"]["whole tumour"] == pytest.approx((inside > 0).sum() * 0.064)
        assert found["truth_ml"]["enhancing"] == pytest.approx((inside == 4).sum() * 0.064)
        assert found["dice"]["classifier"] == {"whole tumour": 1.0, "core": 1.0, "enhancing": 1.0}
        for name in ("votes, default", "votes, tuned for both"):
            volumes = found["volume_ml"][name]
            assert 0 <= volumes["enhancing"] <= volumes["core"] <= volumes["whole tumour"]
    assert "The patients are real: 2 of data" in outcome.page
    # Stopped after the forests and started again, it measures the same, bit for bit.
    (tmp_path / "out" / "turns" / "P1.json").unlink()
    monkeypatch.setattr(experiment, "held_out_probabilities", lambda *_, **_options: iter(()))
    again = reproduce_segmentation(tmp_path / "data", tmp_path / "out", quick=True)
    assert again.turns == outcome.turns
    # Other data under the same names are not taken for these.
    shutil.copy(tmp_path / "data/P0/P0_t1.nii.gz", tmp_path / "data/P0/P0_t2.nii.gz")
    with pytest.raises(OtherSettingsError, match="data_sha256 is"):
        reproduce_segmentation(tmp_path / "data", tmp_path / "out", quick=True)
    assert "by trees that saw neither the patient they" in outcome.page


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--forest"], "--forest must come with --data"),
        (["--seed", "-1"], "--seed must not be negative, got -1"),
        (["--data", "nowhere"], "--data must be a folder of patients, got nowhere"),
    ],
)
def test_bad_options_are_refused(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert call(*arguments) == 2
    assert words in capsys.readouterr().err


def test_the_iou_of_labels_is_that_of_masks() -> None:
    truth, labels = np.array([0, 0, 1, 1, 2, 2]), np.array([0, 1, 1, 2, 2, 0])
    wanted = [1 / 3, 1 / 3, 1 / 3, np.nan]
    np.testing.assert_allclose(label_iou(labels, truth, 4), wanted)
