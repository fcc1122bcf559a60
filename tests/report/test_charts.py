"""The figures of a report against values worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from helpers.report_cases import report_case
from perturb_mpm.report import pages
from perturb_mpm.report.charts import (
    changes_bits,
    convergence_curve,
    round_ticks,
    shown_snapshots,
    volume_histogram,
)
from perturb_mpm.report.data import Snapshot, VolumeRow
from perturb_mpm.report.report import compare_with_truth, render_report

SHAPE = (4, 5, 6)


def row(volume_ml: float, samples: np.ndarray) -> VolumeRow:
    ends = np.quantile(samples, [0.025, 0.975]) if len(samples) else (math.nan, math.nan)
    return VolumeRow("x", "label", (1,), volume_ml, samples, (float(ends[0]), float(ends[1])))


def test_what_a_row_says_of_its_samples() -> None:
    two = row(0.36, np.array([1.0, 3.0]))
    assert (two.mean_ml, two.median_ml) == (2.0, 2.0)
    assert two.sd_ml == pytest.approx(math.sqrt(2.0))
    assert two.coefficient_of_variation == pytest.approx(math.sqrt(2.0) / 2.0)
    assert row(0.0, np.array([3.0])).sd_ml == 0.0
    assert math.isnan(row(0.0, np.zeros(2)).coefficient_of_variation)
    assert math.isnan(row(0.0, np.zeros(0)).mean_ml)


def test_a_histogram_counts_every_sample_and_reaches_the_label_map() -> None:
    samples = np.array([10.0, 10.0, 10.0, 12.0])
    chart = volume_histogram(row(14.0, samples))
    assert chart is not None
    assert [bar.height for bar in chart.bars] == pytest.approx([100.0, 100.0 / 3.0])
    assert 0.0 < chart.low <= chart.median < chart.high < chart.label_map < 100.0
    # The axis runs from 9.76 to 14.24.
    assert chart.label_map == pytest.approx(100.0 * (14.0 - 9.76) / 4.48)
    assert chart.median == pytest.approx(100.0 * 0.24 / 4.48)


def test_equal_volumes_that_rounding_sets_apart() -> None:
    almost = np.nextafter(0.3, 1.0)
    chart = volume_histogram(row(0.3, np.full(8, almost)))
    assert chart is not None
    (bar,) = chart.bars
    assert bar.height == 100


@pytest.mark.parametrize("samples", [[], [0.0], [5.0, 5.0]])
def test_a_histogram_of_few_or_equal_samples(samples: list[float]) -> None:
    chart = volume_histogram(row(5.0, np.array(samples)))
    assert (chart is None) == (not samples)


def test_ticks_are_round_and_few() -> None:
    assert [text for _, text in round_ticks(108.0, 181.0)] == ["120", "140", "160", "180"]
    assert [text for _, text in round_ticks(0.0, 2.0)] == ["0.0", "0.5", "1.0", "1.5", "2.0"]
    assert [text for _, text in round_ticks(3.141, 3.149)] == ["3.142", "3.144", "3.146", "3.148"]


def test_how_far_each_snapshot_is_from_the_last() -> None:
    final = np.zeros(SHAPE, dtype=np.float32)
    final[0, 0, :4] = 1.0
    early = final.copy()
    early[0, 0, 0], early[0, 0, 1] = 0.5, 0.0
    data = report_case(SHAPE, snapshots=(Snapshot(10, early), Snapshot(50, final)))
    assert changes_bits(data) == [(10, pytest.approx(0.375)), (50, 0.0)]
    agreed = np.zeros(SHAPE, dtype=np.float32)
    same = report_case(SHAPE, snapshots=(Snapshot(1, agreed), Snapshot(2, agreed)))
    assert changes_bits(same) == [(1, 0.0), (2, 0.0)]
    (line,) = convergence_curve(changes_bits(same)).lines
    assert line.points == [(0.0, 0.0), (100.0, 0.0)]


def test_five_snapshots_at_most_and_always_the_last() -> None:
    blank = np.zeros(SHAPE, dtype=np.float32)
    many = tuple(Snapshot(n, blank) for n in (5, 10, 25, 50, 75, 100, 200, 400))
    assert [s.samples for s in shown_snapshots(many)] == [10, 25, 50, 100, 400]
    assert shown_snapshots(many[:3]) == many[:3]


def test_what_uncertainty_says_about_errors() -> None:
    truth = np.zeros(SHAPE, dtype=np.uint8)
    truth[0] = 1  # 30 voxels
    labels = truth.copy()
    labels[0, 0] = 0  # 6 of them missed
    labels[1, 0, :2] = 2  # and 2 invented
    uncertain = np.zeros(SHAPE, dtype=np.uint8)
    uncertain[0, 0, :3] = 2  # 3 of the 8 errors
    uncertain[3, 0, :4] = 2  # and 4 right ones of 112
    found = compare_with_truth(report_case(SHAPE, labels=labels, uncertainty=uncertain), truth)
    assert found.dice == (
        ("necrosis", pytest.approx(2 * 24 / 54)),
        ("oedema", 0.0),
        ("enhancing", None),
    )
    assert (found.wrong, found.wrong_share) == (8, pytest.approx(8 / 120))
    assert found.wrong_ml == pytest.approx(8 * 12 / 1000)
    assert found.flagged_of_wrong == pytest.approx(3 / 8)
    assert found.flagged_of_right == pytest.approx(4 / 112)
    assert found.wrong_of_flagged == pytest.approx(3 / 7)


def test_dice_is_compared_with_what_was_expected() -> None:
    truth = np.zeros(SHAPE, dtype=np.uint8)
    truth[:2] = 1
    labels = truth.copy()
    labels[1] = 0  # Dice 2/3
    case = report_case(SHAPE, labels=labels, agreement={"necrosis": (0.6, 0.5, 0.7)})
    assert compare_with_truth(case, truth).outside == ()
    sure = replace(case, agreement={"necrosis": (0.8, 0.7, 0.9), "oedema": (0.9, 0.8, 1.0)})
    assert compare_with_truth(sure, truth).outside == ("necrosis",)
    text = render_report(replace(sure, truth=truth), viewer=False)[1]
    assert "0.80 (0.70–0.90)" in text
    assert "are wrong. Outside the interval that was expected: the Dice of necrosis." in text


def test_voxels_outside_the_mask_are_neither_right_nor_wrong() -> None:
    mask = np.zeros(SHAPE, dtype=bool)
    mask[0] = True
    truth = np.ones(SHAPE, dtype=np.uint8)
    found = compare_with_truth(report_case(SHAPE, mask=mask, labels=truth), truth)
    assert (found.wrong, found.flagged_of_wrong) == (0, None)


def test_numbers_in_words() -> None:
    assert [pages.ml(x) for x in (0.0, 0.0123, 0.123, 9.87, 45.678, 1234.5)] == [
        "0",
        "0.012",
        "0.12",
        "9.87",
        "45.7",
        "1234",
    ]
    assert pages.interval_ml(23.12, 23.14) == "23.12 – 23.14"
    assert pages.interval_ml(0.5, 0.75) == "0.50 – 0.75"
    assert pages.percent(None) == pages.percent(math.nan) == pages.ml(math.nan) == "–"


def test_parameters_are_laid_out_flat_with_exact_numbers() -> None:
    parameters = {
        "seed": 3,
        "kernels": [{"sigma_mm": 3.0}, {"sigma_mm": 0.1 + 0.2}],
        "run": {"resumed": False, "images": ["a", "b"], "mask": None},
    }
    assert list(pages.parameter_rows(parameters)) == [
        ("seed", "3"),
        ("kernels 1 · sigma_mm", "3.0"),
        ("kernels 2 · sigma_mm", "0.30000000000000004"),
        ("run · resumed", "no"),
        ("run · images", "a, b"),
        ("run · mask", "–"),
    ]
    assert pages.find_parameter({"sampling": {"seed": 5}}, "seed") == "5"
    assert pages.find_parameter({}, "seed") is None


def test_a_histogram_reaches_the_truth_and_the_interval() -> None:
    samples = np.array([10.0, 11.0, 12.0])
    far = VolumeRow("x", "label", (1,), 11.0, samples, (8.0, 13.0), truth_ml=20.0)
    chart = volume_histogram(far)
    assert chart is not None
    assert chart.truth is not None
    assert 0 <= chart.low < chart.label_map < chart.high < chart.truth <= 100
    # The axis runs from 8 - 0.72 to 20 + 0.72.
    assert chart.truth == pytest.approx(100 * (20 - 7.28) / 13.44)
    unknown = volume_histogram(VolumeRow("x", "label", (1,), 11.0, samples, (8.0, 13.0)))
    assert unknown is not None
    assert unknown.truth is None
