import json
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from lab.benchmarks import accuracy, evidence, figures, machine, problems, scale, whole
from lab.benchmarks.cpu import growth_exponents
from lab.benchmarks.gpu_pack import PackedProblem
from lab.benchmarks.measure import (
    BenchmarkRow,
    CpuPlan,
    exact_rows,
    measure,
    sample_rows,
    softmax,
    tumour_border,
)
from lab.benchmarks.problems import BenchmarkProblem, BenchmarkSetting, crf_of, in_fours
from perturb_mpm.engines import prepare


@pytest.fixture(scope="module")
def tiny() -> BenchmarkProblem:
    return problems.box((12, 11, 10), seed=3)


def test_exact_rows_are_those_of_the_reference_engine(tiny: BenchmarkProblem) -> None:
    crf = crf_of(tiny, bilateral_only=True)
    solver = prepare(crf, engine="reference")
    solver.load(crf.energies[np.newaxis])
    rows = sample_rows(tiny).all
    ours = exact_rows(crf.terms[0].features(), softmax(crf.energies), rows, columns=100)
    np.testing.assert_allclose(ours, 1 - solver.pairwise()[0][:, rows].T, atol=1e-6)


def test_border_voxels_are_tumour_beside_something_else(tiny: BenchmarkProblem) -> None:
    classes = np.zeros_like(tiny.classes)
    classes[3:6, 3:6, 3:6] = problems.SYNTHETIC_TUMOUR
    block = BenchmarkProblem(
        "block", tiny.unary, tiny.images, tiny.mask, classes, tiny.tumour, tiny.setting
    )
    border = tumour_border(block)
    assert border.sum() == 26
    assert not border[4, 4, 4]


def test_voxels_come_in_fours_at_the_cost_of_the_last_ones() -> None:
    mask = np.array([[True, True, False], [True, True, True], [True, False, True]])
    assert in_fours(mask).tolist() == [[True, True, False], [True, True, False], [False] * 3]
    assert in_fours(in_fours(mask)).sum() == 4


def test_a_brain_has_the_voxels_asked_for_and_probabilities_for_energies() -> None:
    brain = problems.brain(20_000)
    assert brain.voxels == pytest.approx(20_000, rel=0.05)
    assert set(np.unique(brain.classes[brain.mask])) == set(range(brain.labels))
    np.testing.assert_allclose(np.exp(-brain.unary).sum(axis=0), 1, atol=1e-5)


def test_a_problem_survives_the_way_to_a_worker(tiny: BenchmarkProblem, tmp_path: Path) -> None:
    tiny.save(tmp_path)
    again = BenchmarkProblem.load(tmp_path)
    assert (again.name, again.tumour, again.setting) == (tiny.name, tiny.tumour, tiny.setting)
    np.testing.assert_array_equal(again.unary, tiny.unary)
    np.testing.assert_array_equal(again.images, tiny.images)


def test_a_measured_row_is_complete_and_says_that_the_peer_is_missing(
    tiny: BenchmarkProblem,
) -> None:
    plan = CpuPlan(engine="reference", accuracies=("exact",), batch=2, rounds=1, threads=1)
    theirs, ours = measure(tiny, plan, None, lambda _: None)
    assert "not installed" in theirs.note
    assert ours.one_s > 0
    assert ours.batch_s > 0
    assert ours.one_peak_gb > ours.input_gb
    assert ours.error.maximum < 1e-6
    assert ours.one_speedup is None


def test_time_that_grows_linearly_has_exponent_one() -> None:
    rows = [
        BenchmarkRow(f"brain {n}", n, 5, "", "cpu", one_s=n * 1e-6, batch_s=n * 2e-7)
        for n in (10, 40, 160)
    ]
    assert growth_exponents(rows)["cpu"] == pytest.approx({"one_s": 1.0, "batch_s": 1.0})


def test_results_are_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "cpu.json"
    machine.write_results(path, {"rows": [1.5]})
    assert json.loads(path.read_text()) == {"rows": [1.5]}
    assert [p.name for p in path.parent.iterdir()] == ["cpu.json"]


def test_a_packed_problem_survives_the_way_to_the_gpu_machine(
    tiny: BenchmarkProblem, tmp_path: Path
) -> None:
    packed = PackedProblem.of(tiny, (BenchmarkSetting(20.0, 0.5), BenchmarkSetting(30.0, 1.0)))
    packed.save(tmp_path / "0.npz")
    again = PackedProblem.load(tmp_path / "0.npz")
    assert (again.name, again.tumour, again.settings) == (tiny.name, tiny.tumour, packed.settings)
    np.testing.assert_array_equal(again.mask, tiny.mask)
    np.testing.assert_allclose(
        again.crf(again.settings[0]).energies, tiny.unary[:, tiny.mask], rtol=1e-3
    )


def test_the_pages_show_the_figures_of_the_committed_runs() -> None:
    cpu, gpu = map(machine.read_results, (figures.CPU_RESULTS, figures.GPU_RESULTS))
    frozen = machine.read_results(figures.FROZEN_RESULTS)
    asked = machine.read_results(evidence.RESULTS)
    near = machine.read_results(accuracy.RESULTS)
    for path, rendered, begin, end in (
        (figures.PAGE, figures.cpu_rendered(cpu), figures.BEGIN, figures.END),
        (figures.PAGE, figures.gpu_rendered(gpu), figures.GPU_BEGIN, figures.GPU_END),
        (figures.PAGE, figures.render_frozen(frozen), figures.FROZEN_BEGIN, figures.FROZEN_END),
        (figures.README, figures.cost_rendered(cpu, gpu), figures.COST_BEGIN, figures.COST_END),
        (figures.PAGE, whole.render(machine.read_results(whole.RESULTS)), whole.BEGIN, whole.END),
        (figures.PAGE, evidence.render(asked), evidence.BEGIN, evidence.END),
        (figures.PAGE, accuracy.render(near), accuracy.BEGIN, accuracy.END),
        (figures.PAGE, scale.render(machine.read_results(scale.RESULTS)), scale.BEGIN, scale.END),
    ):
        text = path.read_text(encoding="utf-8")
        assert figures.with_figures(text, rendered, begin, end) == text
        assert figures.with_figures(text, "nothing", begin, end) != text


def test_filters_are_measured_beside_all_pairs() -> None:
    rows = accuracy.measure(crops=1, side=8)
    assert [row["filter"] for row in rows] == list(accuracy.FILTERS)
    assert all(0 < row["total_variation"] < 0.05 for row in rows)
    assert all(row["labels_off"] <= row["voxels"] == rows[0]["voxels"] <= 8**3 for row in rows)


def test_cost_is_measured_at_every_point_and_drawn() -> None:
    rows = scale.sweep(scale.QUICK_SWEEPS, scale.measure)
    assert [row["sweep"] for row in rows] == [n for n in scale.SWEEPS for _ in range(2)]
    assert [row["labels"] for row in rows if row["sweep"] == "labels"] == [2, 4]
    assert all(min(row["prepare_s"], row["sample_s"], row["peak_gb"]) > 0 for row in rows)
    picture = BytesIO()
    scale.draw(rows, picture)
    assert picture.getvalue().startswith(b"\x89PNG")


def test_what_was_not_measured_lies_on_the_line_through_what_was() -> None:
    sizes = [1_000, 10_000, 100_000]
    about = [("prepare_s", 2e-6, 1.1), ("sample_s", 3e-5, 0.9), ("peak_gb", 4e-7, 1.0)]
    rows = [
        {"sweep": "voxels", "voxels": n, **{key: a * n**slope for key, a, slope in about}}
        for n in sizes
    ]
    for key, a, slope in about:
        assert scale.predict(rows, key, 10**8) == pytest.approx(a * 10 ** (8 * slope))
        assert scale.fit(*scale.of_sweep(rows, "voxels", key))[0] == pytest.approx(slope)


def test_noise_that_goes_together_is_told_where_it_was_measured() -> None:
    clause = "7 s with noise over 20 mm and 60 mm"
    results = machine.read_results(figures.CPU_RESULTS)
    for row in results["rows"]:
        row.pop("sample_correlated_s", None)
    assert clause not in figures.cpu_rendered(results)
    for row in results["rows"]:
        row["sample_correlated_s"] = 7.0
    assert clause in figures.cpu_rendered(results)


def test_gpu_figures_follow_the_results() -> None:
    results = machine.read_results(figures.GPU_RESULTS)
    text = figures.gpu_rendered(results)
    assert results["machine"]["gpu"] in text
    results["rows"][1]["bits"]["repeated"] = False
    results["rows"][0]["calibrated"]["job_s"] = 123.0
    changed = figures.gpu_rendered(results)
    assert changed.count("OTHER BITS") == text.count("OTHER BITS") + 1
    assert "| 123.00 |" in changed
    assert "| 123.00 |" not in text


def test_a_network_is_interpolated_between_the_middles_of_its_voxels() -> None:
    coarse = np.array([[0.8, 0.2], [0.2, 0.8]]).reshape(2, 1, 1, 2)
    fine = whole.interpolate(coarse, (1, 1, 4))
    np.testing.assert_allclose(fine[0].ravel(), [0.8, 0.65, 0.35, 0.2], rtol=1e-6)
    np.testing.assert_allclose(fine.sum(axis=0), 1, rtol=1e-6)
    np.testing.assert_allclose(whole.interpolate(coarse, coarse.shape[1:]), coarse, rtol=1e-6)
