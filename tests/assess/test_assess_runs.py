"""`evaluate` and `biomarkers` on folders that `run` wrote."""

from __future__ import annotations

import csv
import json
import shutil
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from helpers.accessibility import violations
from helpers.page_pictures import faults, slices_of
from helpers.small_case import call, options, save, truth, write_files
from perturb_mpm.assess.evaluation import assess
from perturb_mpm.assess.sources import read_segmentation
from perturb_mpm.evaluation import dice
from perturb_mpm.files import Source
from perturb_mpm.run import load_run
from perturb_mpm.view import Session, open_session


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of one patient under different noise, and the truth beside them."""
    folder = tmp_path_factory.mktemp("runs")
    inputs = write_files(folder / "patient")
    for seed, name in enumerate(("before", "after")):
        more = ["--samples", "12", "--seed", str(seed), "--engine", "reference", "--quiet"]
        values = ["--labels", "0", "3", "7"]
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
    state = load_run(runs / "before")
    expected = dice(state.labels == 2, truth() == 2)
    assert float(found["value"]) == pytest.approx(expected)
    share = 100 * max(state.summary["image_evidence"], 0)
    page = (tmp_path / "evaluation.html").read_text()
    assert f"Voxels that look alike predict {share:.0f} % of what the probabilities say." in page


@pytest.mark.slow
def test_the_page_shows_maps_over_the_image_as_reports_do(runs: Path, tmp_path: Path) -> None:
    given = ["--prediction", str(runs / "before"), "--truth", str(runs / "truth.nii.gz")]
    assert call("evaluate", *given, "--output", str(tmp_path / "out"), "--quiet") == 0
    page = (tmp_path / "out" / "evaluation.html").read_text()
    assert len(slices_of(page)) == 2  # errors and uncertainty
    assert all(len(greys) == 1 for greys, _ in slices_of(page))
    assert faults(page) == set()
    assert '<span class="side on-left">R</span>' in page
    assert "The 95 % sample intervals contain" in page
    for width, scheme in ((1400, "light"), (390, "dark")):
        assert violations(tmp_path / "out" / "evaluation.html", width, scheme) == []


def test_the_worst_slice_is_seen_from_the_patient_s_feet(runs: Path) -> None:
    """One wrong voxel to the patient's front left appears on top, to the right."""
    found = read_segmentation(Source("prediction", runs / "before"))
    grid = found.prediction.grid
    labels = grid.scatter(found.prediction.labels, 0).astype(np.uint8)
    inside = np.argwhere(np.ones(grid.shape, bool) if grid.mask is None else grid.mask)
    directions = inside @ found.geometry.affine[:3, :3].T  # mm to the right, front and top
    i, j, k = inside[np.argmax(directions @ [-1.0, 1.0, 0.0])]
    truth = labels.copy()
    truth[i, j, k] = 1 if labels[i, j, k] != 1 else 2
    worst = assess("P", found, truth, {"one": (1,)}).worst
    ((row, column),) = np.argwhere(worst.labels != worst.truth)
    rows, columns = worst.labels.shape
    assert row < rows / 2
    assert column > columns / 2
    assert worst.grey is not None
    assert worst.grey.shape == worst.labels.shape


def test_a_file_is_decided_by_the_regions_that_are_asked_for(tmp_path: Path) -> None:
    true = np.zeros((6, 6, 6), dtype=np.uint8)
    true[:3] = 2
    marginals = np.zeros((6, 6, 6, 4), dtype=np.float32)
    marginals[:3] = 0.4, 0.2, 0.2, 0.2  # tumour by .6, and yet background the most probable
    marginals[3:] = 0.7, 0.1, 0.1, 0.1
    save(tmp_path / "mean.nii.gz", marginals)
    save(tmp_path / "truth.nii.gz", true)
    named = ("--prediction", str(tmp_path / "mean.nii.gz"), "--truth")
    common = (*named, str(tmp_path / "truth.nii.gz"), "--labels", "0", "1", "2", "4", "--quiet")

    def whole_dice(*regions: str) -> float:
        out = tmp_path / "-".join(regions)
        assert call("evaluate", *common, "--region", *regions, "--output", str(out)) == 0
        with (out / "metrics.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        found = [r["value"] for r in rows if (r["metric"], r["region"]) == ("dice", "whole")]
        return float(found[0])

    assert whole_dice("whole=1,2,4", "core=1,4") == 1.0
    assert whole_dice("whole=1,2,4", "other=4,1", "odd=2,4") == 0.0  # overlapping decide nothing


def test_a_run_with_regions_is_measured_by_them(runs: Path, tmp_path: Path) -> None:
    inputs = options(runs / "patient")
    out = str(tmp_path / "run")
    more = ["--labels", "0", "3", "7", "--region", "both=3,7", "--samples", "6", "--quiet"]
    assert call("run", *inputs, *more, "--output", out) == 0
    arguments = ("--prediction", out, "--truth", str(runs / "truth.nii.gz"), "--quiet")
    assert call("evaluate", *arguments, "--output", str(tmp_path / "evaluation")) == 0
    with (tmp_path / "evaluation" / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    found_dice = {
        (row["method"], row["region"]): float(row["value"])
        for row in rows
        if row["metric"] == "dice"
    }
    state = load_run(out)
    assert found_dice["blend", "both"] == pytest.approx(dice(state.labels > 0, truth() > 0))
    assert {("blend", "label_3"), ("blend", "label_7")} <= set(found_dice)
    given = state.case.probabilities[1:].sum(axis=0) > 0.5  # of the region, inside the mask
    alone = dice(given & state.case.mask, truth() > 0)
    assert found_dice["network alone", "both"] == pytest.approx(alone)
    page = (tmp_path / "evaluation" / "evaluation.html").read_text()
    assert '<th scope="col" class="number">network alone</th>' in page
    scans = ("--before", out, "--after", out, "--region", "both=3,7", "--quiet")
    assert call("biomarkers", *scans, "--output", str(tmp_path / "b")) == 0
    found = json.loads((tmp_path / "b" / "biomarkers.json").read_text())["run"]
    assert found["before_ml"] == pytest.approx(state.summary["regions"][0]["volume_ml"])


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
    assert "Gumbel noise correlated over" in words
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
    (learnt / "other.json").write_text(
        json.dumps({**other, "perturbation": "other noise", "law": {}})
    )
    wrong = ("--calibration", str(learnt / "other.json"))
    assert call("biomarkers", *scans, *wrong, "--output", str(tmp_path / "three")) == 2
    assert "--calibration rests on other noise" in capsys.readouterr().err


def test_the_folder_of_a_run_is_not_written_to(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, summary = runs / "before", runs / "before" / "summary.json"
    content = summary.read_bytes()
    truth_file = ("--truth", str(runs / "truth.nii.gz"))
    assert call("evaluate", "--prediction", str(before), *truth_file, "--output", str(before)) == 2
    assert "--output must not be the folder of a run" in capsys.readouterr().err
    scans = ("--before", str(before), "--after", str(before), "--region", "7")
    assert call("biomarkers", *scans, "--output", str(before)) == 2
    assert summary.read_bytes() == content
    assert not (before / "metrics.csv").exists()


def test_truth_outside_the_mask_does_not_count(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outside = np.array([0, 3, 7], dtype=np.uint8)[truth()]
    outside[0, 0, :4] = 7  # a corner, where the images are 0
    save(tmp_path / "outside.nii.gz", outside)
    rows = {}
    for name, file in (("in", runs / "truth.nii.gz"), ("out", tmp_path / "outside.nii.gz")):
        arguments = ("--prediction", str(runs / "before"), "--truth", str(file))
        assert call("evaluate", *arguments, "--output", str(tmp_path / name)) == 0
        with (tmp_path / name / "metrics.csv").open(newline="") as table:
            found = {
                (r["region"], r["domain"], r["metric"]): r["value"] for r in csv.DictReader(table)
            }
        rows[name] = found
    counted = ("all labels", "image", "truth_outside_mask_voxels")
    assert (float(rows["in"].pop(counted)), float(rows["out"].pop(counted))) == (0, 4)
    assert rows["in"] == rows["out"]
    assert "4 voxels of the truth of before lie outside the mask" in capsys.readouterr().err
    assert "4 voxels of before (truth)" in (tmp_path / "out" / "evaluation.html").read_text()
    assert "does not count" not in (tmp_path / "in" / "evaluation.html").read_text()


@pytest.fixture(scope="module")
def together(runs: Path) -> Path:
    """Two runs that differ in the length of their noise alone."""
    for name, length_mm in (("short", 10), ("long", 40)):
        more = ["--samples", "4", "--engine", "reference", "--quiet"]
        more += ["--noise-length", str(length_mm)]
        values = ["--labels", "0", "3", "7"]
        inputs = options(runs / "patient")
        assert call("run", *inputs, *values, *more, "--output", str(runs / name)) == 0
    return runs


def test_a_calibration_holds_for_its_own_noise_alone(
    together: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = together / "short.csv"
    head = "case,before,after,truth_before,truth_after\n"
    table.write_text(head + "P,short,short,truth.nii.gz,truth.nii.gz\n")
    region = ("--region", "enhancing=7")
    learnt = tmp_path / "short"
    assert call("biomarkers", "--table", str(table), *region, "--output", str(learnt)) == 0
    calibration = ("--calibration", str(learnt / "calibration.json"), *region)
    short = ("--before", str(together / "short"), "--after", str(together / "short"))
    assert call("biomarkers", *short, *calibration, "--output", str(tmp_path / "same")) == 0
    capsys.readouterr()
    other = ("--before", str(together / "long"), "--after", str(together / "long"))
    assert call("biomarkers", *other, *calibration, "--output", str(tmp_path / "other")) == 2
    message = capsys.readouterr().err
    assert "over 10 mm" in message
    assert "over 40 mm" in message
    more = ("--classes", "karschnia", "--output", str(tmp_path / "other"))
    assert call("biomarkers", *short, *calibration, *more) == 2
    assert "rests on the classes" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


def test_nothing_is_written_where_no_calibration_can_be_learnt(
    together: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = together / "mixed.csv"
    table.write_text(
        "case,before,after,truth_before,truth_after\n"
        "P,short,short,truth.nii.gz,truth.nii.gz\n"
        "Q,long,long,truth.nii.gz,truth.nii.gz\n"
    )
    output = ("--output", str(tmp_path / "out"))
    assert call("biomarkers", "--table", str(table), "--region", "7", *output) == 2
    message = capsys.readouterr().err
    assert "sampled with one perturbation" in message
    assert message.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_an_empty_folder_is_named_by_its_own_option(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    scans = ("--before", str(tmp_path / "empty"), "--after", str(runs / "after"))
    assert call("biomarkers", *scans, "--region", "7", "--output", str(tmp_path / "out")) == 2
    assert capsys.readouterr().err.startswith(f"perturb-mpm: --before {tmp_path / 'empty'}: ")


def test_values_of_the_truth_may_stand_for_others(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path / "truth.nii.gz", np.array([0, 3, 4], dtype=np.uint8)[truth()])
    words = ("--prediction", str(runs / "before"), "--truth", str(tmp_path / "truth.nii.gz"))
    assert call("evaluate", *words, "--output", str(tmp_path / "a"), "--quiet") == 2
    assert "--map says which of these another value stands for" in capsys.readouterr().err
    own = ("--prediction", str(runs / "before"), "--truth", str(runs / "truth.nii.gz"))
    assert call("evaluate", *own, "--output", str(tmp_path / "b"), "--quiet") == 0
    mapped = (*words, "--map", "4=7", "--output", str(tmp_path / "c"), "--quiet")
    assert call("evaluate", *mapped) == 0
    assert (tmp_path / "b/metrics.csv").read_bytes() == (tmp_path / "c/metrics.csv").read_bytes()
    assert call("evaluate", *words, "--map", "four=7", "--output", str(tmp_path / "d")) == 2
    assert "--map must be pairs of label values such as 4=3" in capsys.readouterr().err


def test_marginals_and_specificities_are_chosen(runs: Path, tmp_path: Path) -> None:
    words = ("--prediction", str(runs / "before"), "--truth", str(runs / "truth.nii.gz"))

    def metrics(name: str, *more: str) -> dict[str, float]:
        out = tmp_path / name
        assert call("evaluate", *words, *more, "--output", str(out), "--quiet") == 0
        with (out / "metrics.csv").open(newline="") as file:
            rows = [r for r in csv.DictReader(file) if r["region"] == "all labels"]
        return {
            f"{r['method']} {r['domain']} {r['metric']}": float(r["value"] or "nan") for r in rows
        }

    usual = metrics("usual")
    votes = metrics("votes", "--estimator", "votes", "--specificity", "0.5", "0.99")
    assert "blend dilated brier" in usual
    assert "votes dilated brier" in votes
    assert usual["blend dilated brier"] != votes["votes dilated brier"]
    assert "blend dilated sensitivity_at_0.9_specificity" in usual
    strict, lax = (votes[f"votes dilated sensitivity_at_{s}_specificity"] for s in ("0.99", "0.5"))
    assert strict <= lax
    assert "votes dilated sensitivity_at_0.9_specificity" not in votes


def test_tissues_without_background_have_a_truth_of_0_outside_the_mask(tmp_path: Path) -> None:
    inputs = write_files(tmp_path / "patient")
    run = ["--labels", "1", "2", "3", "--samples", "3", "--engine", "reference", "--quiet"]
    assert call("run", *inputs, *run, "--output", str(tmp_path / "run")) == 0
    inside = load_run(tmp_path / "run").case.mask
    tissues = np.where(inside, truth() + 1, 0).astype(np.uint8)
    save(tmp_path / "truth.nii.gz", tissues)
    words = ("--prediction", str(tmp_path / "run"), "--truth", str(tmp_path / "truth.nii.gz"))
    assert call("evaluate", *words, "--output", str(tmp_path / "a"), "--quiet") == 0
    tissues[inside.nonzero()[0][0], inside.nonzero()[1][0], inside.nonzero()[2][0]] = 0
    save(tmp_path / "truth.nii.gz", tissues)  # a voxel that counts, and has no tissue
    assert call("evaluate", *words, "--output", str(tmp_path / "b"), "--quiet") == 2


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two small runs, the first of them also as corrected: ten voxels of a label taken away."""
    folder = tmp_path_factory.mktemp("quick")
    inputs = write_files(folder / "patient")
    few = ["--samples", "6", "--iterations", "2", "--threads", "1", "--strength", "0", "--quiet"]
    for seed, name in enumerate(("before", "after")):
        options = [*few, "--seed", str(seed), "--output", str(folder / name)]
        assert call("run", *inputs, *options) == 0
    shutil.copytree(folder / "before", folder / "corrected")
    with closing(open_session(folder / "corrected")) as session:
        voxels = np.flatnonzero(session.run.labels == 1)[:10]
        session.update({int(voxel): 0 for voxel in voxels}, 0)
        session.wait()
        assert not session.status.error
    return folder


@pytest.mark.parametrize("command", ["measure", "change", "evaluate", "biomarkers"])
def test_a_correction_that_does_not_count_is_named(
    command: str, quick: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    after, true = str(quick / "after"), str(tmp_path / "truth.nii.gz")
    save(Path(true), truth().astype(np.uint8))
    words = "was corrected by hand (10 voxels), which does not count here"
    for name, told in (("corrected", True), ("before", False)):
        folder, out = str(quick / name), tmp_path / name
        options = {
            "measure": ["measure", folder, "--measure", "volume"],
            "change": ["change", folder, after],
            "evaluate": ["evaluate", "--prediction", folder, "--truth", true],
            "biomarkers": ["biomarkers", "--before", folder, "--after", after],
        }[command]
        options += ["--region", "tumour=1,2"] if command == "biomarkers" else []
        assert call(*options, "--output", str(out)) == 0
        assert (words in " ".join(capsys.readouterr().err.split())) == told
        assert any(words.encode() in path.read_bytes() for path in out.iterdir()) == told


@pytest.mark.parametrize(("moved", "told"), [(0, False), (4, True)])
def test_a_corrected_label_map_of_another_patient_is_noticed(
    moved: int,
    told: bool,
    quick: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(Session, "update", lambda *_: None)  # solves for seconds
    shutil.copytree(quick / "before", tmp_path / "case")
    corrected = tmp_path / "corrected.nii.gz"
    save(corrected, np.roll(truth(), moved, axis=0).astype(np.uint8))
    assert call("view", str(tmp_path / "case"), "--correction", str(corrected)) == 0
    words = " ".join(capsys.readouterr().err.split())
    assert ("hardly overlap (Dice 0." in words) == told
