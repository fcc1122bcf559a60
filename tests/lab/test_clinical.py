"""The clinical experiments: their arithmetic by hand, and the commands from end to end."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest

from lab.__main__ import main as laboratory
from lab.clinical import biomarkers, biomarkers_page, cohorts, quality, quality_page
from lab.clinical.raters import compare_raters, rater_row, table
from perturb_mpm.assess.scans import Scan, resection
from perturb_mpm.biomarkers import wilcoxon_exact
from perturb_mpm.cli import main
from perturb_mpm.evaluation import Measurement

RNG = np.random.default_rng(5)


def operated(name: str, residual: float) -> dict[str, object]:
    """Return a patient of 20 ml before and samples around a residual that is found too large."""
    before = Scan(20.0, 19.0, np.array([19.0, 20.0, 21.0]), "noise")
    after = Scan(residual + 1.0, residual + 0.2, residual + np.array([0.5, 1.0, 1.5]), "noise")
    return {"name": name, "found": resection(before, after), "truth": (20.0, residual)}


@pytest.fixture(scope="module")
def results() -> biomarkers.BiomarkerResults:
    patients = [operated(f"p{i}", residual) for i, residual in enumerate(np.linspace(0, 5, 12))]
    found = {"noise": {str(p["name"]): p["found"] for p in patients}}
    references = {
        "truth": {str(p["name"]): p["truth"] for p in patients},
        "rater 1": {str(p["name"]): p["truth"] for p in patients},
        "rater 2": {str(p["name"]): (20.0, p["truth"][1] + 1.2) for p in patients},  # type: ignore[index]
    }
    estimates = list(biomarkers._estimates(found, references))  # type: ignore[arg-type]
    return biomarkers.BiomarkerResults(estimates, found, references, {})  # type: ignore[arg-type]


def test_errors_keep_their_sign(results: biomarkers.BiomarkerResults) -> None:
    errors = biomarkers.signed_errors(results, "noise", "rtv_ml", "original", "rater 1")
    assert errors == pytest.approx(np.ones(12))
    errors = biomarkers.signed_errors(results, "noise", "rtv_ml", "corrected", "rater 2")
    assert errors == pytest.approx(np.full(12, -1.0))


def test_every_rater_is_tested(results: biomarkers.BiomarkerResults) -> None:
    tests = biomarkers.error_tests(results)
    assert len(tests) == 2 * 2 * 2  # two methods, two quantities, two raters
    closer = next(t for t in tests if (t.quantity, t.method) == ("rtv_ml", "corrected"))
    expected = wilcoxon_exact(np.ones(12), np.full(12, 0.2))
    assert closer.pvalue == expected.pvalue
    assert closer.bonferroni == pytest.approx(4 * expected.pvalue)
    assert closer.bias_before == pytest.approx(1.0)
    assert closer.bias_after == pytest.approx(0.2)


def test_coverage_of_each_reference(results: biomarkers.BiomarkerResults) -> None:
    covered = {(c.quantity, c.reference): c.share for c in biomarkers.interval_coverage(results)}
    assert covered["rtv_ml", "truth"] == 0  # samples lie 0.5 to 1.5 ml above
    assert covered["rtv_ml", "rater 2"] == 1  # and this rater draws 1.2 ml more


def test_the_page_says_which_is_closer(results: biomarkers.BiomarkerResults) -> None:
    text = biomarkers_page.page(
        results,
        biomarkers.error_tests(results),
        biomarkers.interval_coverage(results),
        "made up",
    )
    assert "Bonferroni, m = 4" in text
    assert "| noise | RTV, ml | 0.600 (median 0.600) | 0.600 (median 0.600)" in text
    figure = biomarkers_page.boxplots(results, "noise", "rtv_ml")
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == [
        "rater 1",
        "rater 2",
    ]


def test_estimators_are_compared_by_patient() -> None:
    rows = []
    for case in range(12):
        for method, base in (("votes", 0.5), ("conditional", 0.8), ("mean_field", 0.8)):
            value = base + 0.01 * case
            rows += [
                Measurement(str(case), method, "core", "dilated", metric, value)
                for metric in ("auroc", "auprc", "ece_region")
            ]
    found = quality.compare_estimators(quality.Quality(rows, {}, 12), ["core"])
    by_name = {(c.metric, c.first, c.second): c for c in found}
    better = by_name["auroc", "conditional", "votes"]
    assert better.shift == pytest.approx(0.3)
    assert better.pvalue == 2 / 2**12
    assert by_name["auroc", "conditional", "mean_field"].pvalue == 1
    verdicts = quality_page._verdicts(found)
    assert "- core, area under ROC: conditional is better than votes." in verdicts
    assert "- core, calibration error: votes is better than conditional." in verdicts


def test_drawings_are_held_against_each_other() -> None:
    drawings = np.array([[1, 1, 0, 0], [1, 1, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0]], dtype=bool)
    row = rater_row("a", "b", drawings[:, :, np.newaxis, np.newaxis], held_out=2)
    assert row.mean_pairwise_dice == pytest.approx((1 + 1 + 4 * 2 / 3) / 6)
    # Two of a kind against two of the other kind, and twice mixed pairs, whose distance is 0.
    assert row.energy_distance_iou == pytest.approx((2 * 0.5 + 0 + 0) / 3)
    assert row.matched_iou == pytest.approx((0.5 + 1 + 1) / 3)


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stop:
        main([str(each) for each in arguments])
        raise SystemExit(0)
    return int(stop.value.code or 0)


def run_experiment(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stop:
        laboratory([str(each) for each in arguments])
        raise SystemExit(0)
    return int(stop.value.code or 0)


def data_folder() -> Path:
    import os

    path = Path(os.environ.get("PERTURB_MPM_DATA", Path(__file__).parents[3] / "shared" / "data"))
    if not (path / "lidc_multirater_masks").is_dir():
        pytest.skip("the real label maps are not here")
    return path


def test_real_raters_stand_in_the_docs() -> None:
    text = table(compare_raters(data_folder()))
    page = Path(__file__).parents[2] / "docs" / "evaluate.md"
    assert text in page.read_text(encoding="utf-8")


def test_real_scans_need_a_spacing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = data_folder() / "brain_tumor_progression_crop" / "01"
    arguments = (
        "biomarkers", "--before", case / "Pre_mask.nii.gz", "--after", case / "Post_mask.nii.gz",
        "--region", 1, "--output", tmp_path,
    )  # fmt: skip
    assert run(*arguments) == 2
    assert "give --spacing in mm" in capsys.readouterr().err
    assert run(*arguments, "--spacing", 1, 1, 5, "--json") == 0
    (found,) = json.loads(capsys.readouterr().out).values()
    assert found["eor_frac"] < 0  # it grew


@pytest.mark.slow
def test_quality_from_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cohorts, "QUICK_SPACING_MM", 8.0)
    assert run_experiment("quality", "--quick", "--quiet", "--output", tmp_path) == 0
    with (tmp_path / "quality.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["case"] for row in rows} == {"phantom 1", "phantom 2", "phantom 3"}
    assert {row["estimator"] for row in rows} == {"votes", "conditional", "mean_field"}
    dice = [
        float(row["value"])
        for row in rows
        if (row["metric"], row["region"], row["estimator"]) == ("dice", "tumour core", "votes")
    ]
    assert np.mean(dice) > 0.4
    found = [
        float(row["value"])
        for row in rows
        if (row["metric"], row["domain"]) == ("auroc", "dilated")
    ]
    assert np.nanmean(found) > 0.6
    assert "paper's sensitivity" in (tmp_path / "quality.md").read_text(encoding="utf-8")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_biomarkers_from_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cohorts, "QUICK_SPACING_MM", 8.0)
    rough = tmp_path / "rough.toml"
    rough.write_text('[sampling]\niterations = 2\n[compute]\naccuracy = "plain"\n')
    arguments = ("--settings", rough, "--quick", "--quiet", "--output", tmp_path)
    assert run_experiment("biomarkers", *arguments) == 0
    with (tmp_path / "biomarkers.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert (
        len(rows) == 3 * 2 * 2 * 3 * 5
    )  # patients, perturbations, quantities, methods, references
    residual = [
        (float(r["value"]), float(r["reference_value"]))
        for r in rows
        if (r["quantity"], r["method"], r["reference"]) == ("rtv_ml", "original", "truth")
    ]
    assert all(not math.isnan(value) for pair in residual for value in pair)
    assert sorted(path.name for path in tmp_path.glob("*.png")) == [
        "eor-paper.png",
        "eor-together.png",
        "rtv-paper.png",
        "rtv-together.png",
    ]
