from __future__ import annotations

import numpy as np
import pytest

from helpers.reproduction import TINY
from lab.synthetic import measuring as synthetic
from lab.synthetic.claims import claims
from lab.synthetic.maxima import measure_maxima
from lab.synthetic.measuring import ErrorRow, KernelSetting, errors, problem, single_voxel
from lab.synthetic.run import SyntheticOutcome, measure_parts
from lab.synthetic.summary import ErrorSummary, compared_in_map, readings, summarise
from lab.synthetic.synthetic_page import page
from lab.words import count, join_words, markdown_table, paragraph, power


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[ErrorRow]:
    return measure_parts(tmp_path_factory.mktemp("run"), TINY)


def with_votes(rows: list[ErrorRow], factor: float) -> ErrorSummary:
    """Make the errors of votes and conditional a multiple of those of mean field."""
    plain = {(*row[:6], row.draw): row for row in rows if row.estimator == "mean field"}
    changed = []
    for row in rows:
        if row.estimator in {"votes", "conditional"} and row.experiment in {"curves", "map"}:
            mine = factor * (0.9 if row.estimator == "votes" else 2.5)
            of = plain[(*row[:6], row.draw)]
            changed.append(
                row._replace(
                    total_variation_run_error=0.0,
                    log_probability_error_nats_run_error=0.0,
                    total_variation=mine * of.total_variation,
                    log_probability_error_nats=mine * of.log_probability_error_nats,
                )
            )
        else:
            changed.append(row)
    return summarise(changed)


@pytest.mark.parametrize(
    ("factor", "verdict", "samples"), [(1.0, "holds", 10), (2.0, "does not hold", None)]
)
def test_verdicts_follow_the_numbers(
    factor: float, verdict: str, samples: int | None, rows: list[ErrorRow]
) -> None:
    summary = with_votes(rows, factor)
    found = readings(summary, TINY)
    assert [size.lower_from for r in found for size in r.sizes] == [samples] * 16
    assert {reading.holds for reading in found} == {verdict == "holds"}
    first, second, third, *_ = claims(summary, TINY, found)
    assert first.verdict == second.verdict == verdict
    assert third.verdict == "holds"  # the error does not change with the number of samples
    outcome = SyntheticOutcome(summary, found, [first], measure_maxima(TINY, 0), [])
    text = page(outcome, TINY, dict.fromkeys(("curves", "map", "overview", "maxima"), "a.png"))
    lower = 4 if verdict == "holds" else 0
    assert f"votes end below mean field in {lower} of 4 cases" in " ".join(text.split())
    assert "To use conditional, leave the self term out" in " ".join(text.split())


def test_a_claim_that_starts_late_holds_for_some_sizes_only(rows: list[ErrorRow]) -> None:
    late = [
        row._replace(total_variation=9.0, total_variation_run_error=0.0)
        if (row.experiment, row.estimator, row.voxels, row.samples) == ("curves", "votes", 6, 50)
        else row._replace(total_variation=1e-9, total_variation_run_error=0.0)
        if (row.experiment, row.estimator) == ("curves", "votes")
        else row
        for row in rows
    ]
    found = [r for r in readings(summarise(late), TINY) if r.metric == "total_variation"]
    assert {reading.verdict for reading in found} == {"holds for N = 9"}


def test_the_map_is_counted_over_all_grids(rows: list[ErrorRow]) -> None:
    better, worse = (
        compared_in_map(with_votes(rows, factor), TINY, "total_variation", "votes", self_term=True)
        for factor in (1.0, 2.0)
    )
    assert (better.lower, better.points, better.largest_excess) == (8, 8, 0.0)
    assert (worse.lower, worse.points) == (0, 8)
    assert worse.largest_excess > 0


def test_the_printed_sign_fails_with_three_labels_and_not_with_two() -> None:
    errors_by_labels = {}
    for labels in (2, 3):
        found = single_voxel(labels, draws=10, samples=20_000, seed=3)
        for name in ("noise subtracted", "noise added, as printed", "noise of unit variance"):
            of_name = [row.total_variation for row in found if row.estimator == name]
            errors_by_labels[labels, name] = np.mean(of_name)
    for labels in (2, 3):
        assert errors_by_labels[labels, "noise subtracted"] < 0.006
        assert errors_by_labels[labels, "noise of unit variance"] > 0.02
    assert errors_by_labels[2, "noise added, as printed"] < 0.006
    assert errors_by_labels[3, "noise added, as printed"] > 0.02


def test_with_two_labels_the_printed_sign_has_the_same_law() -> None:
    crf = problem(9, 0, KernelSetting(1.0, 1.0, False))
    samples = 40_000
    one, other = (
        synthetic.votes(crf, [samples], 0, printed_sign=printed)[0] / samples
        for printed in (False, True)
    )
    assert (one != other).any()
    assert np.abs(one - other).max() < 4 * np.sqrt(2 * 0.25 / samples)


def test_errors_of_certain_marginals_are_finite() -> None:
    variation, logarithmic = errors(np.array([0.0, 1.0]), np.array([0.5, 0.5]))
    assert variation == pytest.approx(0.5)
    assert logarithmic == pytest.approx((np.log(2) + np.log(0.5e12)) / 2, rel=1e-3)


def test_words() -> None:
    assert [power(n) for n in (1, 10, 50, 100, 10**6)] == ["1", "10", "50", "10²", "10⁶"]
    assert [join_words(items) for items in (["a"], ["a", "b"], ["a", "b", "c"])] == [
        "a",
        "a and b",
        "a, b and c",
    ]
    assert [count(1, "draw"), count(20, "draw")] == ["1 draw", "20 draws"]
    assert markdown_table(["a", "b"], [["1", "2"]]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"
    assert max(len(line) for line in paragraph("word " * 100).splitlines()) <= 100
