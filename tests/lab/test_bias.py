"""The experiment over a segmenter's bias, and the pictures of patients."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lab.__main__ import main
from lab.clinical import bias, bias_page, illustrations
from lab.clinical.biomarkers import error_tests, measure_biomarkers
from lab.patients import phantom_patient
from perturb_mpm.assess import Scan
from perturb_mpm.phantom import glioblastoma

PLAN = bias.BiasPlan(8.0, 2, 4, (0.0, 2.0), (), 2, 1)


def run(*arguments: object) -> None:
    with pytest.raises(SystemExit) as stop:
        main([str(each) for each in arguments])
        raise SystemExit(0)
    assert not stop.value.code


def test_a_bias_multiplies_the_odds_of_the_region() -> None:
    scan = glioblastoma(0, spacing_mm=8.0)
    patient = phantom_patient("a", scan, scan.probabilities)
    raised = bias.bias_patient(patient, 2.0, (4,)).case.probabilities.astype(np.float64)
    plain = scan.probabilities.astype(np.float64)
    np.testing.assert_allclose(raised.sum(axis=0), 1, rtol=1e-5)
    odds = [p[4] / (1 - p[4]) for p in (raised, plain)]
    known = (plain[4] > 1e-3) & (plain[4] < 0.9)
    np.testing.assert_allclose(odds[0][known], np.exp(2.0) * odds[1][known], rtol=1e-3)


@pytest.fixture(scope="module")
def findings() -> bias_page.BiasFindings:
    """Findings of scans that draw 40·b ml too much, all of which correction drops."""
    compared = [bias.Segmenter(0.0), bias.Segmenter(2.0)]
    patients = list(bias.made_up_patients(PLAN, 0)) * 6
    for number, each in enumerate(patients):
        patients[number] = type(each)(
            *(
                type(scan)(f"phantom {number}", scan.case, scan.raters)
                for scan in (each.before, each.after)
            )
        )

    def scanner(extra: float):  # noqa: ANN202 - a function
        def measure(patient):  # noqa: ANN001, ANN202 - a stand-in
            truth = patient.volume_ml(patient.truth, bias.REGION)
            samples = np.full(4, truth + extra)
            return Scan(truth + extra, truth, samples, "made up")

        return measure

    results = measure_biomarkers(
        patients, bias.REGION, {each.name: scanner(40 * each.bias_nats) for each in compared}
    )
    learned = bias.learn_by_overlap(PLAN, 0)
    return bias_page.BiasFindings(PLAN, learned, compared, results, error_tests(results))


def test_the_page_says_at_which_bias_correction_helps(findings: bias_page.BiasFindings) -> None:
    text = bias_page.page(findings)
    assert "- our kernels at full strength, +0 nats: no significant change" in text
    assert "+2 nats: nearer to rater 1, rater 2, rater 3 and rater 4" in text
    assert "Everything on this page is made up" in text
    assert "learned by the intersection over union" in text
    figure = bias_page.boxplots(findings.results, findings.segmenters)
    assert len(figure.axes) == 2
    curve = bias_page.learning_curve(findings.learned).axes[0].lines[0]
    assert len(curve.get_ydata()) == len(findings.learned.trace)


def test_learning_by_overlap_does_not_lower_it(findings: bias_page.BiasFindings) -> None:
    assert findings.learned.objective_after >= findings.learned.objective_before
    crf = bias.Segmenter(0.0, findings.learned).crf(next(bias.made_up_patients(PLAN, 0)).after)
    assert crf.n_labels == 6


def test_growing_samples_are_those_of_one_run() -> None:
    scan = glioblastoma(1, spacing_mm=8.0)
    patient = phantom_patient("a", scan, scan.probabilities)
    few, many = illustrations.grow_samples(patient, (2, 5), 0)
    assert (few.samples, many.samples) == (2, 5)
    whole = illustrations.grow_samples(patient, (5,), 0)[0]
    np.testing.assert_array_equal(many.counts, whole.counts)


def test_growth_is_measured_where_the_samples_are() -> None:
    scan = glioblastoma(1, spacing_mm=8.0)
    patient = phantom_patient("a", scan, scan.probabilities)
    found = illustrations.grow_samples(patient, (2, 5), 0)
    first, last = illustrations.growth_rows(patient, found)
    uncertain = found[1].entropy > 0
    assert (first.samples, last.samples) == (2, 5)
    assert first.uncertain_ml < last.uncertain_ml == pytest.approx(uncertain.sum() * 0.512)
    assert first.change_bits is None
    moved = np.abs(found[1].entropy - found[0].entropy)[uncertain]
    assert last.change_bits == pytest.approx(moved.mean())
    assert 0.5 < last.at_border <= 1
    assert "| 5 | " in illustrations.growth_table([first, last])


def test_the_border_is_what_has_another_label_around() -> None:
    labels = np.zeros((5, 5, 5), dtype=int)
    labels[2, 2, 2] = 1
    assert illustrations.label_borders(labels).sum() == 27
    assert not illustrations.label_borders(np.ones((4, 4, 4), dtype=int)).any()


def test_other_noise_moves_samples_and_not_labels() -> None:
    plan = replace(PLAN, repeats=2)
    first, again = bias.Segmenter(2.0), bias.repeat_with_other_noise(plan)
    assert [each.name for each in again] == [f"{first.name}, other noise {n}" for n in (1, 2)]
    patient = next(bias.made_up_patients(PLAN, 0)).after
    (posterior, labels), (other, same) = (each.sample(patient, 4, 0) for each in (first, again[0]))
    np.testing.assert_array_equal(labels, same)
    assert (posterior.counts != other.counts).any()


@pytest.mark.slow
def test_the_quick_commands_write_their_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(illustrations, "QUICK", illustrations.IllustrationPlan(8.0, 3, (2, 4)))
    monkeypatch.setattr(bias, "QUICK", replace(PLAN, learned_biases_nats=(2.0,), repeats=1))
    run("figures", "--quick", "--json", "--output", tmp_path / "figures")
    found = json.loads(capsys.readouterr().out)
    assert len(found["files"]) == 3
    assert all(Path(name).stat().st_size > 10_000 for name in found["files"])
    assert 0 <= found["uncertain_share"] <= 1
    assert [row["samples"] for row in found["growth"]] == [2, 4]
    run("bias", "--quick", "--quiet", "--output", tmp_path / "bias")
    names = {"reproduce-bias.csv", "reproduce-bias.md"}
    assert names <= {path.name for path in (tmp_path / "bias").iterdir()}
    text = (tmp_path / "bias" / "reproduce-bias.md").read_text(encoding="utf-8")
    assert "With 1 further seed of the noise, at +2 nats" in " ".join(text.split())
    assert ", other noise" not in text
