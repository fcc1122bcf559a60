"""`evaluate` and `biomarkers` on folders that `run` wrote."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from helpers.small_case import call, save, truth, write_files
from perturb_mpm.evaluation import dice
from perturb_mpm.run.state import load_state


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of one patient under different noise, and the truth beside them."""
    folder = tmp_path_factory.mktemp("runs")
    inputs = write_files(folder / "patient")
    for seed, name in enumerate(("before", "after")):
        more = ["--samples", "12", "--seed", str(seed), "--engine", "reference", "--quiet"]
        values = ["--label-values", "0", "3", "7"]
        assert call("run", *inputs, *values, *more, "--output", str(folder / name)) == 0
    save(folder / "truth.nii.gz", np.array([0, 3, 7], dtype=np.uint8)[truth()])
    return folder


def test_a_run_is_evaluated_in_its_own_label_values(runs: Path, tmp_path: Path) -> None:
    arguments = ("--prediction", str(runs / "before"), "--truth", str(runs / "truth.nii.gz"))
    regions = ("--region", "both=3,7", "core=7")
    done = call("evaluate", *arguments, *regions, "--output", str(tmp_path), "--quiet")
    assert done == 0
    with (tmp_path / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    found = next(r for r in rows if (r["metric"], r["region"]) == ("dice", "core"))
    state = load_state(runs / "before")
    expected = dice(state.posterior.labels == 2, truth() == 2)
    assert float(found["value"]) == pytest.approx(expected)


def test_a_region_must_be_labels_of_the_run(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scans = ("--before", str(runs / "before"), "--after", str(runs / "after"))
    assert call("biomarkers", *scans, "--region", "2", "--output", str(tmp_path)) == 2
    assert "--region must be label values out of 0, 3, 7, got 2" in capsys.readouterr().err
    spacing = ("--spacing", "1", "1", "1")
    assert call("biomarkers", *scans, "--region", "7", *spacing, "--output", str(tmp_path)) == 2
    assert "--spacing must not be given for a run" in capsys.readouterr().err


def test_probabilities_of_classes_come_with_a_calibration(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scans = ("--before", str(runs / "before"), "--after", str(runs / "after"), "--region", "7")
    assert call("biomarkers", *scans, "--output", str(tmp_path / "one")) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "Probabilities of classes are withheld" in words
    assert "independent Gumbel noise at every voxel" in words
    alone = json.loads((tmp_path / "one" / "biomarkers.json").read_text())
    assert "class_probabilities" not in alone["after"]

    table = runs / "pairs.csv"
    table.write_text(
        "case,before,after,truth_before,truth_after\nP,before,after,truth.nii.gz,truth.nii.gz\n"
    )
    learnt = tmp_path / "cohort"
    assert call("biomarkers", "--table", str(table), "--region", "7", "--output", str(learnt)) == 0
    capsys.readouterr()
    calibration = ("--calibration", str(learnt / "calibration.json"))
    assert call("biomarkers", *scans, *calibration, "--output", str(tmp_path / "two")) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "On 1 cases with known volumes the true class got" in words
    found = json.loads((tmp_path / "two" / "biomarkers.json").read_text())["after"]
    assert sum(found["class_probabilities"].values()) == pytest.approx(1)
    assert found["samples"] == [12, 12]

    other = json.loads((learnt / "calibration.json").read_text())
    (learnt / "other.json").write_text(json.dumps({**other, "perturbation": "fields"}))
    wrong = ("--calibration", str(learnt / "other.json"))
    assert call("biomarkers", *scans, *wrong, "--output", str(tmp_path / "three")) == 2
    assert "--calibration rests on fields" in capsys.readouterr().err
