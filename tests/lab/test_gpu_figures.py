"""The committed GPU figures: complete, and in the README as they are."""

from __future__ import annotations

import copy

import pytest

from lab.benchmarks import figures, files, gpu_figures

RESULTS = files.read_json(figures.GPU_RESULTS)


def test_every_problem_has_all_its_figures() -> None:
    assert RESULTS["machine"]["gpu"]
    assert len(RESULTS["rows"]) == 3
    for row in RESULTS["rows"]:
        assert row["plain_equals_cpu"]["share"] >= 0.999
        assert all(row["bits"].values())
        assert row["small_memory"]["same_bits"]
        assert row["small_memory"]["peak_reserved_gb"] <= 8
        assert row["against_exact"]["calibrated"]["share"] <= row["two_seeds"]["share"]


def test_figures_follow_the_results() -> None:
    text = gpu_figures.rendered(RESULTS)
    assert RESULTS["machine"]["gpu"] in text
    assert f"| {RESULTS['rows'][0]['calibrated']['job_s']:.2f} |" in text
    assert "OTHER BITS" not in text
    other = copy.deepcopy(RESULTS)
    other["rows"][1]["bits"]["repeated"] = False
    other["rows"][0]["calibrated"]["job_s"] = 123.0
    changed = gpu_figures.rendered(other)
    assert "OTHER BITS" in changed
    assert "| 123.00 |" in changed


def test_the_readme_shows_them() -> None:
    text = figures.README.read_text(encoding="utf-8")
    if figures.GPU_BEGIN not in text:
        pytest.skip("the README has no room for GPU figures")
    shown = figures.with_figures(
        text, gpu_figures.rendered(RESULTS), figures.GPU_BEGIN, figures.GPU_END
    )
    assert shown == text
