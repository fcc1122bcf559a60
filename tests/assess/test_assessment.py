"""`evaluate` and `biomarkers` from files to tables and pages."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from perturb_mpm.assess.evaluation import _near_borders, answer_in_words
from perturb_mpm.assess.scan_pairs import biomarker_rows, calibrate, read_calibration
from perturb_mpm.assess.scans import Biomarkers, Scan, measure_scan, resection
from perturb_mpm.cli import main
from perturb_mpm.evaluation import Measurement, summarise, top_label
from perturb_mpm.files import save_nifti
from perturb_mpm.model.grid import Grid
from perturb_mpm.posterior.posterior import Posterior

AFFINE = np.diag([2.0, 2.0, 2.0, 1.0])
SHAPE = (12, 10, 8)


def ball(radius: float, values: tuple[int, int] = (1, 4)) -> np.ndarray:
    """Return a core inside a shell, in the user's label values."""
    grid = np.indices(SHAPE) - np.reshape([6, 5, 4], (3, 1, 1, 1))
    distance = np.sqrt((grid**2).sum(axis=0))
    labels = np.where(distance < radius, values[0], 0)
    return np.where(distance < radius / 2, values[1], labels).astype(np.uint8)


@pytest.fixture
def case(tmp_path: Path) -> Path:
    maps = np.stack([ball(r) for r in (2.5, 3.0, 3.2, 3.6, 4.0)], axis=-1)
    save_nifti(tmp_path / "samples.nii.gz", maps, AFFINE)
    save_nifti(tmp_path / "truth.nii.gz", ball(3.4), AFFINE)
    save_nifti(tmp_path / "other.nii.gz", ball(2.8), AFFINE)
    return tmp_path


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stop:
        main([str(each) for each in arguments])
        raise SystemExit(0)
    return int(stop.value.code or 0)


def evaluate(case: Path, *more: object) -> int:
    return run(
        "evaluate", "--prediction", case / "samples.nii.gz", "--truth", case / "truth.nii.gz",
        "--labels", "0", "1", "4", "--output", case / "out", *more,
    )  # fmt: skip


def read_rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_evaluate_writes_a_tidy_table_and_a_page(case: Path, capsys: pytest.CaptureFixture) -> None:
    assert evaluate(case, "--region", "whole=1,4", "--rater", case / "other.nii.gz") == 0
    rows = read_rows(case / "out" / "metrics.csv")
    dice = {
        row["against"]: float(row["value"])
        for row in rows
        if (row["metric"], row["region"]) == ("dice", "whole")
    }
    predicted, true = ball(3.2) > 0, ball(3.4) > 0  # the majority of five samples is the middle one
    expected = 2 * (predicted & true).sum() / (predicted.sum() + true.sum())
    assert dice["truth"] == pytest.approx(expected)
    assert set(dice) == {"truth", "rater 1"}
    assert {row["metric"] for row in rows if row["against"] == "all raters"} >= {
        "generalized_energy_distance_iou",
        "matched_iou",
    }
    curvas = {row["region"]: float(row["value"]) for row in rows if "curvas" in row["metric"]}
    share = np.mean([ball(r) > 0 for r in (2.5, 3.0, 3.2, 3.6, 4.0)], axis=0)
    one_rater_ml = 0.008 * (ball(2.8) > 0).sum()  # of one volume: the score is the distance
    assert curvas["whole"] == pytest.approx(abs(0.008 * share.sum() - one_rater_ml), rel=1e-5)
    assert 0 < curvas["all labels"] < 0.1
    summary = json.loads((case / "out" / "summary.json").read_text())
    assert all(each["cases"] + each["undefined"] == 1 for each in summary)
    page = (case / "out" / "evaluation.html").read_text()
    assert "http://" not in page.replace("http://www.w3.org", "")  # names of formats
    assert expected < 1
    assert "whole" in capsys.readouterr().out


def test_evaluate_says_the_same_twice(case: Path) -> None:
    evaluate(case, "--quiet")
    first = [(case / "out" / n).read_bytes() for n in ("metrics.csv", "evaluation.html")]
    evaluate(case, "--quiet")
    assert first == [(case / "out" / n).read_bytes() for n in ("metrics.csv", "evaluation.html")]


def test_evaluate_marginals_give_the_samples_calibration(case: Path) -> None:
    maps = np.stack([ball(r) for r in (2.5, 3.0, 3.2, 3.6, 4.0)])
    marginals = np.stack([(maps == v).mean(axis=0) for v in (0, 1, 4)], axis=-1).astype(np.float32)
    save_nifti(case / "marginals.nii.gz", marginals, AFFINE)
    evaluate(case, "--quiet")
    by_samples = read_rows(case / "out" / "metrics.csv")
    assert run(
        "evaluate", "--prediction", case / "marginals.nii.gz", "--truth", case / "truth.nii.gz",
        "--labels", "0", "1", "4", "--output", case / "out", "--quiet",
    ) == 0  # fmt: skip
    by_marginals = read_rows(case / "out" / "metrics.csv")

    def ece(rows: list[dict[str, str]]) -> list[float]:
        return [float(row["value"]) for row in rows if row["metric"] == "ece_top_label"]

    assert ece(by_samples) == pytest.approx(ece(by_marginals), abs=1e-6)


def test_evaluate_a_cohort(case: Path) -> None:
    table = case / "cohort.csv"
    table.write_text(
        "case,prediction,truth,rater_1\n"
        "a,samples.nii.gz,truth.nii.gz,\n"
        "b,samples.nii.gz,other.nii.gz,truth.nii.gz\n"
    )
    arguments = ("evaluate", "--table", table, "--labels", 0, 1, 4, "--output", case / "out")
    assert run(*arguments, "--json") == 0
    rows = read_rows(case / "out" / "metrics.csv")
    assert {row["case"] for row in rows} == {"a", "b"}
    summary = json.loads((case / "out" / "summary.json").read_text())
    dice = [s for s in summary if (s["metric"], s["against"]) == ("dice", "truth")]
    assert all(each["cases"] == 2 for each in dice)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--region", "core"), "--region must be a name and label values"),
        (("--region", "core=7"), "label values out of 0, 1, 4"),
        (("--region", "core=0,1"), "sets of foreground labels"),
        (("--labels", "4"), "label values must be different"),
        (("--table", "x.csv"), "one of the two"),
        (("--rater", "missing.nii.gz"), "there is no such file"),
    ],
)
def test_evaluate_refuses(
    case: Path, arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture
) -> None:
    assert evaluate(case, *arguments) == 2
    message = capsys.readouterr().err
    assert words in message
    assert message.count("\n") == 1


def test_evaluate_refuses_other_grids_and_values(case: Path, capsys: pytest.CaptureFixture) -> None:
    moved = AFFINE.copy()
    moved[0, 3] = 5.0
    save_nifti(case / "moved.nii.gz", ball(3.0), moved)
    assert evaluate(case, "--rater", case / "moved.nii.gz") == 2
    assert "must lie on the grid of --prediction" in capsys.readouterr().err
    save_nifti(case / "strange.nii.gz", ball(3.0, (1, 3)), AFFINE)
    assert evaluate(case, "--rater", case / "strange.nii.gz") == 2
    assert "must hold the label values 0, 1, 4 alone, got 3" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("case,truth\na,b\n", "must have the columns case, prediction"),
        ("case,prediction,truth,colour\na,b,c,d\n", "must have the columns"),
        ("case,prediction,truth\n", "at least one row"),
        ("case,prediction,truth\na,b,\n", "line 2 must name a truth or a rater"),
        ("case,prediction,truth\na,b,c\na,b,c\n", "must name another case"),
    ],
)
def test_bad_tables(tmp_path: Path, text: str, words: str, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "table.csv").write_text(text)
    assert run("evaluate", "--table", tmp_path / "table.csv", "--output", tmp_path / "out") == 2
    assert words in capsys.readouterr().err


def posterior(sizes: list[int], voxels: int = 100) -> Posterior:
    """Return samples of a row of voxels of 1 ml, the first ``size`` of which are label 1."""
    grid = Grid((voxels,), (1000.0,))
    ones = np.array([np.arange(voxels) < size for size in sizes]).sum(axis=0)
    counts = np.stack([len(sizes) - ones, ones])
    volumes = np.array([[voxels - size, size] for size in sizes]) * 1000.0
    return Posterior(
        grid=grid,
        counts=counts,
        sample_index=np.arange(len(sizes)),
        volumes=volumes,
        problem="a row",
        parameters={},
    )


def biomarkers_of(before: list[int], after: list[int]) -> Biomarkers:
    return resection(
        measure_scan(posterior(before), (1,), "noise"),
        measure_scan(posterior(after), (1,), "noise"),
    )


def test_original_corrected_and_sampled_by_hand() -> None:
    found = biomarkers_of([40, 40, 50, 60], [0, 2, 4, 4])
    # Votes: 40 voxels by all, 10 more by two of four (a tie goes to label 0), 10 by one.
    assert (found.before_ml, found.certain_before_ml) == (40, 40)
    assert (found.residual_ml, found.certain_residual_ml) == (2, 0)
    assert (found.extent, found.certain_extent) == (0.95, 1.0)
    assert found.resection_class == "3A subtotal"
    sampled = found.sampled
    assert sampled is not None
    assert sampled.residual_ml.median == 3
    assert sampled.residual_present == 0.75
    assert sampled.classes["2A complete"] == 0.25
    assert sampled.classes["3A subtotal"] == 0.75
    extents = [1 - a / b for b in (40, 40, 50, 60) for a in (0, 2, 4, 4)]
    assert sampled.extent.median == pytest.approx(np.median(extents))
    assert found.samples == (4, 4)


def test_growth_and_nothing_before() -> None:
    grown = biomarkers_of([10, 10], [20, 20])
    assert grown.extent == -1
    nothing = biomarkers_of([0, 0], [5, 5])
    assert math.isnan(nothing.extent)
    assert nothing.sampled is not None
    assert nothing.sampled.extent.undefined == 4
    assert math.isnan(nothing.sampled.extent.median)
    assert biomarker_rows("x", nothing)[0][6] is None


def test_calibration_by_hand() -> None:
    alone = resection(Scan(1.0, None, None, None), Scan(1.0, None, None, None))
    assert calibrate({"alone": alone}, {"alone": (1.0, 1.0)}) is None  # label maps alone
    one, other = biomarkers_of([40, 40], [0, 2]), biomarkers_of([40, 40], [8, 8])
    found = {"one": one, "other": other, "alone": alone, "unknown": one}
    learnt = calibrate(found, {"one": (40.0, 0.0), "other": (40.0, 2.0), "alone": (1.0, 1.0)})
    assert learnt is not None
    assert learnt.cases == 2
    assert learnt.residual_coverage == 0  # 0 is outside the interpolated interval 0.05 … 1.95
    # True classes complete and subtotal; given 1/2 and 0.
    assert learnt.true_class_probability == pytest.approx(0.25)
    assert learnt.class_brier == pytest.approx((0.25 + 0.25 + 1 + 1) / 2)
    assert learnt.widening_log is None  # two cases are too few


def test_biomarkers_of_label_maps(case: Path, capsys: pytest.CaptureFixture) -> None:
    assert run(
        "biomarkers", "--before", case / "truth.nii.gz", "--after", case / "other.nii.gz",
        "--region", 4, "--output", case / "out",
    ) == 0  # fmt: skip
    (row,) = read_rows(case / "out" / "biomarkers.csv")
    before, after = (ball(3.4) == 4).sum() * 0.008, (ball(2.8) == 4).sum() * 0.008
    assert float(row["before_ml"]) == pytest.approx(before)
    assert float(row["eor_frac"]) == pytest.approx(1 - after / before)
    assert "label maps alone say nothing" in " ".join(capsys.readouterr().out.split())


def test_two_patients_are_told(case: Path, capsys: pytest.CaptureFixture) -> None:
    for name in ("P01_pre", "P01_post", "P02_post"):
        (case / f"{name}.nii.gz").write_bytes((case / "truth.nii.gz").read_bytes())

    def told(before: str, after: str) -> str:
        paths = [case / f"{name}.nii.gz" for name in (before, after)]
        assert run(
            "biomarkers", "--before", paths[0], "--after", paths[1], "--region", 4,
            "--output", case / "pair",
        ) == 0  # fmt: skip
        return capsys.readouterr().err

    words = told("P01_pre", "P02_post")
    assert "warning: P01_pre.nii.gz and P02_post.nii.gz may be of different patients" in words
    (found,) = json.loads((case / "pair" / "biomarkers.json").read_text()).values()
    assert len(found["warnings"]) == 1
    assert told("P01_pre", "P01_post") == ""
    assert "warning: both scans are" in told("P01_pre", "P01_pre")


def test_no_ml_without_a_spacing(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    for name in ("before", "after"):
        nib.save(nib.Nifti1Image(ball(3.0), np.eye(4)), tmp_path / f"{name}.nii.gz")
    arguments = (
        "biomarkers", "--before", tmp_path / "before.nii.gz", "--after", tmp_path / "after.nii.gz",
        "--region", 4, "--output", tmp_path / "out",
    )  # fmt: skip
    assert run(*arguments) == 2
    assert "give --spacing in mm" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert run(*arguments, "--spacing", 1, 1, 5, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["after.nii.gz".removesuffix(".nii.gz")]["rtv_ml"] == pytest.approx(
        (ball(3.0) == 4).sum() * 0.005
    )
    assert run(*arguments, "--spacing", 1, 0, 5) == 2


def test_a_damaged_calibration_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    path.write_text('{"cases": 3}')
    with pytest.raises(ValueError, match="is no calibration of perturb-mpm biomarkers"):
        read_calibration(path)
    with pytest.raises(ValueError, match="cannot be read"):
        read_calibration(tmp_path / "missing.json")


def test_evaluate_keeps_files_that_it_did_not_write(
    case: Path, capsys: pytest.CaptureFixture
) -> None:
    (case / "out").mkdir()
    for name in ("summary.json", "metrics.csv", "evaluation.html", "lesions.json"):
        (case / "out" / name).write_text('{"mine": 1}\n')
        assert evaluate(case) == 2
        message = capsys.readouterr().err
        assert f"{name}, which this command did not write" in message
        assert message.count("\n") == 1
        assert (case / "out" / name).read_text() == '{"mine": 1}\n'
        (case / "out" / name).write_bytes(b"")  # nobody's: a power cut may have left it
    assert evaluate(case, "--quiet") == 0
    assert not (case / "out" / "lesions.json").exists()


def biomarkers(case: Path, *more: object) -> int:
    return run(
        "biomarkers", "--before", case / "truth.nii.gz", "--after", case / "other.nii.gz",
        "--output", case / "out", *more,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--region", "core"), "--region must be a name and label values"),
        (("--region", "1", "4"), "--region must be one set of label values"),
        (("--region", "-1"), "--region"),
        (("--region", "4", "--spacing", "nan", "1", "1"), "--spacing must be three positive"),
        (("--region", "4", "--spacing", "1e9", "1", "1"), "--spacing must be three positive"),
        (("--region", "4", "--noise-floor-ml", "nan"), "--noise-floor-ml must lie between"),
        (("--region", "4", "--noise-floor-ml", "1e9"), "--noise-floor-ml must lie between"),
        (("--region", "4", "--calibration", "bad.json"), "is no calibration"),
    ],
)
def test_biomarkers_refuses(
    case: Path, arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture
) -> None:
    (case / "bad.json").write_text("[3]")
    assert biomarkers(case, *(case / a if a == "bad.json" else a for a in arguments)) == 2
    message = capsys.readouterr().err
    assert words in message
    assert message.count("\n") == 1
    assert not (case / "out").exists()


def test_label_maps_with_any_whole_numbers(case: Path) -> None:
    strange = ball(3.0).astype(np.int32)
    strange[0, 0] = 70000
    strange[1, 0] = -1
    save_nifti(case / "truth.nii.gz", strange, AFFINE)
    assert biomarkers(case, "--region", "tumour=1,4", "--quiet") == 0
    (row,) = read_rows(case / "out" / "biomarkers.csv")
    assert float(row["before_ml"]) == pytest.approx((ball(3.0) > 0).sum() * 0.008)


@pytest.mark.parametrize("option", ["--before", "--after"])
def test_an_empty_file_is_named_by_its_own_option(
    case: Path, option: str, capsys: pytest.CaptureFixture
) -> None:
    name = {"--before": "truth.nii.gz", "--after": "other.nii.gz"}[option]
    (case / name).write_bytes(b"")
    assert biomarkers(case, "--region", "4") == 2
    assert capsys.readouterr().err.startswith(f"perturb-mpm: {option} {case / name}")


def test_names_are_printed_as_they_are(case: Path, capsys: pytest.CaptureFixture) -> None:
    assert evaluate(case, "--region", "a[/b]=1") == 0
    assert "a[/b]" in capsys.readouterr().out
    table = case / "pairs.csv"
    table.write_text("case,before,after\nP[/b],truth.nii.gz,other.nii.gz\n")
    more = ("--table", table, "--region", 4, "--output", case / "y[old]")
    assert run("biomarkers", *more) == 0
    printed = capsys.readouterr().out
    assert "P[/b]: class" in printed
    assert "y[old]" in printed


def test_the_page_is_drawn_in_its_own_colours(case: Path) -> None:
    evaluate(case, "--region", "whole=1,4", "core=4", "--quiet")
    page = (case / "out" / "evaluation.html").read_text()
    assert len(page) < 60_000
    assert page.count("<polyline") >= 5  # two diagonals, three regions, a reliability curve
    assert "stroke-dasharray" in page
    assert 'content="light dark"' in page
    assert "<script" not in page


def test_the_answer_of_an_evaluation_by_hand() -> None:
    rows = [
        Measurement("P", "votes", "all labels", "dilated", "auroc", 0.9, "truth"),
        Measurement("Q", "votes", "all labels", "dilated", "auroc", 0.8, "truth"),
        Measurement("P", "votes", "core", "brain", "volume_covered", 1.0, "truth"),
        Measurement("Q", "votes", "core", "brain", "volume_covered", 0.0, "truth"),
        Measurement("P", "votes", "whole", "brain", "volume_covered", 1.0, "truth"),
        Measurement("P", "votes", "all labels", "dilated", "auroc", 0.1, "rater 1"),
    ]
    assert answer_in_words(summarise(rows)) == (
        "A wrong voxel is more uncertain than a right one in 85 % of pairs (area under ROC). "
        "The 95 % sample intervals contain 2 of 3 true volumes of regions."
    )
    stated = np.full((2, 100), [[0.9], [0.1]])  # 90 %, and right in 73 of 100 voxels
    own = top_label(stated, np.repeat([0, 1], [73, 27]))
    network = top_label(stated, np.repeat([0, 1], [60, 40]))
    assert answer_in_words([], own, network) == (
        "Near borders, a label with 90 % probability is right in 73 % of voxels (network alone: "
        "60 %). Probabilities there are 17.0 percentage points off on average (network alone: "
        "30.0)."
    )
    assert answer_in_words([], top_label(stated[:, :0], np.zeros(0, dtype=int))) == ""


def test_voxels_near_a_border_by_hand() -> None:
    labels = np.zeros((12, 4, 1), dtype=np.uint8)
    labels[6:] = 1  # a border between 5 and 6, voxels of 2 mm
    near = _near_borders([labels], (2.0, 2.0, 2.0))
    assert np.flatnonzero(near[:, 0, 0]).tolist() == [4, 5, 6, 7]
    assert not _near_borders([np.zeros_like(labels)], (2.0, 2.0, 2.0)).any()


def test_certain_voxels_alone_are_given_only_when_asked_for() -> None:
    found = biomarkers_of([40, 40, 50, 60], [0, 2, 4, 4])
    assert [row[1] for row in biomarker_rows("x", found)] == ["original", "samples, median"]
    rows = {row[1]: row for row in biomarker_rows("x", found, certain_only=True)}
    assert rows["certain voxels only"][3] == 0
    assert rows["certain voxels only"][6] == 1.0
