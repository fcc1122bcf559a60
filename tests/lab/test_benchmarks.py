import json
from pathlib import Path

import numpy as np
import pytest

from lab.benchmarks import figures, files, synthetic
from lab.benchmarks.accuracy import exact_rows, sample_rows, softmax, tumour_border
from lab.benchmarks.measure import Plan, Row, measure
from lab.benchmarks.problems import Problem, crf_of, in_fours
from lab.benchmarks.scaling import exponents
from perturb_mpm.engines import prepare


@pytest.fixture(scope="module")
def tiny() -> Problem:
    return synthetic.box((12, 11, 10), seed=3)


def test_exact_rows_are_those_of_the_reference_engine(tiny: Problem) -> None:
    crf = crf_of(tiny, bilateral_only=True)
    solver = prepare(crf, engine="reference")
    solver.load(crf.energies[np.newaxis])
    rows = sample_rows(tiny).all
    ours = exact_rows(crf.terms[0].features(), softmax(crf.energies), rows, columns=100)
    np.testing.assert_allclose(ours, 1 - solver.pairwise()[0][:, rows].T, atol=1e-6)


def test_border_voxels_are_tumour_beside_something_else(tiny: Problem) -> None:
    classes = np.zeros_like(tiny.classes)
    classes[3:6, 3:6, 3:6] = synthetic.TUMOUR
    block = Problem("block", tiny.unary, tiny.images, tiny.mask, classes, tiny.tumour, tiny.setting)
    border = tumour_border(block)
    assert border.sum() == 26
    assert not border[4, 4, 4]


def test_voxels_come_in_fours_at_the_cost_of_the_last_ones() -> None:
    mask = np.array([[True, True, False], [True, True, True], [True, False, True]])
    assert in_fours(mask).tolist() == [[True, True, False], [True, True, False], [False] * 3]
    assert in_fours(in_fours(mask)).sum() == 4


def test_a_brain_has_the_voxels_asked_for_and_probabilities_for_energies() -> None:
    brain = synthetic.brain(20_000)
    assert brain.voxels == pytest.approx(20_000, rel=0.05)
    assert set(np.unique(brain.classes[brain.mask])) == set(range(brain.labels))
    np.testing.assert_allclose(np.exp(-brain.unary).sum(axis=0), 1, atol=1e-5)


def test_a_problem_survives_the_way_to_a_worker(tiny: Problem, tmp_path: Path) -> None:
    tiny.save(tmp_path)
    again = Problem.load(tmp_path)
    assert (again.name, again.tumour, again.setting) == (tiny.name, tiny.tumour, tiny.setting)
    np.testing.assert_array_equal(again.unary, tiny.unary)
    np.testing.assert_array_equal(again.images, tiny.images)


def test_a_measured_row_is_complete_and_says_that_the_peer_is_missing(tiny: Problem) -> None:
    plan = Plan(engine="reference", accuracies=("exact",), batch=2, rounds=1, threads=1)
    theirs, ours = measure(tiny, plan, None, lambda _: None)
    assert "not installed" in theirs.note
    assert ours.one_s > 0
    assert ours.batch_s > 0
    assert ours.one_peak_gb > ours.input_gb
    assert ours.error.maximum < 1e-6
    assert ours.one_speedup is None


def test_time_that_grows_linearly_has_exponent_one() -> None:
    rows = [
        Row(f"brain {n}", n, 5, "", "cpu", one_s=n * 1e-6, batch_s=n * 2e-7) for n in (10, 40, 160)
    ]
    assert exponents(rows)["cpu"] == pytest.approx({"one_s": 1.0, "batch_s": 1.0})


def test_results_are_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "cpu.json"
    files.write_json(path, {"rows": [1.5]})
    assert json.loads(path.read_text()) == {"rows": [1.5]}
    assert [p.name for p in path.parent.iterdir()] == ["cpu.json"]


def test_the_readme_shows_the_figures_of_the_committed_run() -> None:
    text = figures.README.read_text(encoding="utf-8")
    rendered = figures.rendered(files.read_json(figures.RESULTS))
    assert figures.with_figures(text, rendered) == text
    assert figures.with_figures(text, "nothing") != text
