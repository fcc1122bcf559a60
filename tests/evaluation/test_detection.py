"""Does uncertainty find errors? Each measure against cases by hand or by another library."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn import metrics

from perturb_mpm.evaluation import (
    auroc,
    binary_entropy_percent,
    detection_curve,
    dice,
    error_detection,
    error_overlap,
    filtered_curve,
    lesion_detection,
    patch_counts,
)


def test_error_detection_by_hand() -> None:
    u = np.array([0.0, 0.2, 0.9, 0.0, 0.05])
    wrong = np.array([True, True, True, False, False])
    counts = error_detection(u, wrong, 0.0)
    assert (counts.sensitivity, counts.specificity) == (2 / 3, 1 / 2)
    counts = error_detection(u, wrong, 0.1)
    assert (counts.sensitivity, counts.specificity) == (2 / 3, 1)


@pytest.mark.parametrize("levels", [3, 20, 10_000])
def test_curves_with_ties_as_scikit_learn(levels: int) -> None:
    generator = np.random.default_rng(levels)
    u = generator.integers(levels, size=3000) / levels
    wrong = generator.random(3000) < 0.1 + 0.5 * u
    assert auroc(u, wrong) == pytest.approx(metrics.roc_auc_score(wrong, u), abs=1e-12)
    expected = metrics.average_precision_score(wrong, u)
    assert detection_curve(u, wrong).average_precision == pytest.approx(expected, abs=1e-12)


def test_a_constant_map_knows_nothing() -> None:
    wrong = np.array([True, False, False, False])
    curve = detection_curve(np.zeros(4), wrong)
    assert curve.auroc == 0.5
    assert curve.average_precision == curve.prevalence == 0.25


def test_no_errors_and_nothing_but_errors() -> None:
    u = np.array([0.1, 0.2])
    right, wrong = np.array([False, False]), np.array([True, True])
    assert math.isnan(auroc(u, right))
    assert math.isnan(auroc(u, wrong))
    assert math.isnan(detection_curve(u, right).average_precision)
    assert math.isnan(error_detection(u, right, 0).sensitivity)
    assert math.isnan(detection_curve(u, right).sensitivity_at(0.5))


def test_sensitivity_at_a_specificity() -> None:
    u = np.array([3.0, 2.0, 1.0, 3.0, 1.0, 0.0])
    wrong = np.array([True, True, True, False, False, False])
    curve = detection_curve(u, wrong)
    # From the strictest: (spec, sens) = (1, 0), (2/3, 1/3), (2/3, 2/3), (1/3, 1), (0, 1).
    assert curve.specificity == pytest.approx([1, 2 / 3, 2 / 3, 1 / 3, 0])
    assert curve.sensitivity == pytest.approx([0, 1 / 3, 2 / 3, 1, 1])
    assert curve.sensitivity_at(0.5) == pytest.approx(5 / 6)


def test_uncertainty_must_be_finite_and_fit() -> None:
    with pytest.raises(ValueError, match="uncertainty must be finite"):
        auroc([0.1, math.nan], np.array([True, False]))
    with pytest.raises(ValueError, match="same shape"):
        auroc([0.1], np.array([True, False]))
    with pytest.raises(TypeError, match="error must be an array of booleans"):
        auroc([0.1], np.array([1]))


def test_filtering_by_hand() -> None:
    predicted = np.array([True, True, True, False, False, False])
    true = np.array([True, True, False, True, False, False])
    u = np.array([0.0, 40.0, 90.0, 90.0, 0.0, 10.0])
    curve = filtered_curve(predicted, true, u)
    # Below 40 one hit is left, from 40 on two, from 90 on both errors come back.
    assert curve.dice[[0, 39, 40, 89, 90, 100]] == pytest.approx([1, 1, 1, 1, 4 / 6, 4 / 6])
    assert curve.filtered_true_positives[[0, 39, 40]] == pytest.approx([0.5, 0.5, 0])
    assert curve.filtered_true_negatives[[9, 10]] == pytest.approx([0.5, 0])
    assert curve.true_positive_area == pytest.approx((39.5 * 0.5) / 100)
    assert curve.dice_area == pytest.approx(1 - (10.5 * 2 / 6) / 100)
    expected = (curve.dice_area + 1 - curve.true_positive_area + 1 - curve.true_negative_area) / 3
    assert curve.score == pytest.approx(expected)


def test_filtering_against_thresholds_one_by_one() -> None:
    generator = np.random.default_rng(0)
    predicted, true = generator.random((2, 400)) < 0.4
    u = np.round(generator.uniform(0, 100, 400), 1)
    curve = filtered_curve(predicted, true, u)
    for threshold in (0, 1, 37, 64, 100):
        kept = u <= threshold
        assert curve.dice[threshold] == pytest.approx(dice(predicted & kept, true & kept))
    with pytest.raises(ValueError, match="between 0 and 100"):
        filtered_curve(predicted, true, 2 * u)


def test_binary_entropy() -> None:
    assert binary_entropy_percent([0.0, 0.5, 1.0, 0.25]) == pytest.approx(
        [0, 100, 0, 81.1278], abs=1e-3
    )


def test_error_overlap_against_dice() -> None:
    generator = np.random.default_rng(1)
    u = generator.integers(11, size=500) / 10
    wrong = generator.random(500) < u / 2
    result = error_overlap(u, wrong)
    for threshold, value in zip(result.thresholds, result.overlap):
        assert value == pytest.approx(dice(u > threshold, wrong))
    assert result.best == result.overlap.max()
    assert result.overlap[list(result.thresholds).index(result.best_threshold)] == result.best
    assert error_overlap(np.zeros(3), np.zeros(3, dtype=bool)).best == 1
    with pytest.raises(ValueError, match="between 0 and 1"):
        error_overlap([2.0], np.array([True]))


def test_patches_by_hand() -> None:
    u = np.array([[0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 1.0, 1.0]])
    right = np.array([[True, True, False, False], [True, False, True, False]])
    brain = np.ones((2, 4), dtype=bool)
    counts = patch_counts(u, right, brain, threshold=0.5, width=2)
    assert (counts.accurate_certain, counts.inaccurate_uncertain, counts.pavpu) == (1, 1, 1)
    # One voxel a patch: the counts of error detection.
    single = patch_counts(u, right, brain, threshold=0.5, width=1)
    detected = error_detection(u, ~right, 0.5)
    assert single.uncertain_given_inaccurate == detected.sensitivity
    brain[:, :2] = False
    assert patch_counts(u, right, brain, threshold=0.5, width=2).accurate_certain == 0


def test_lesions_are_scored_as_by_hand() -> None:
    """Scores .9 .8 .8 .3, hits 1 0 1 1, one lesion without a candidate, two scans."""
    found = lesion_detection([0.9, 0.8, 0.8, 0.3], [1, 0, 1, 1], missed=1, scans=2)
    np.testing.assert_allclose(found.sensitivity, [0.25, 0.5, 0.75])
    np.testing.assert_allclose(found.alarms, [0.0, 0.5, 0.5])
    assert found.average_precision == pytest.approx(0.25 * (1 + 2 / 3 + 3 / 4))
    assert (found.sensitivity_at(0.0), found.sensitivity_at(0.5)) == (0.25, 0.75)
    np.testing.assert_array_equal(found.reliability.voxels, [0, 1, 0, 0, 3])


def test_without_lesions_there_is_no_precision() -> None:
    assert math.isnan(lesion_detection([0.4], [False], missed=0, scans=1).average_precision)
    with pytest.raises(ValueError, match="scans must be at least 1, got 0"):
        lesion_detection([0.4], [False], missed=0, scans=0)
