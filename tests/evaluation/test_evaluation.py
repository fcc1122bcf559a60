"""Each measure of uncertainty against a case computed by hand or by another library."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn import metrics

from perturb_mpm.evaluation import (
    auroc,
    best_dice,
    binary_entropy_percent,
    confusion,
    detection_curve,
    dice,
    error_detection,
    error_overlap,
    filtered_curve,
    generalized_energy_distance,
    image_uncertainty,
    lesions,
    level_dice,
    matched_iou,
    pairwise_dice,
    patch_counts,
    rater_correlation,
    risk_coverage,
    surface_distances,
    volume_variation,
)
from perturb_mpm.evaluation import (
    reliability as calibration,
)
from perturb_mpm.evaluation.case import domain_mask
from perturb_mpm.evaluation.structures import pairwise_overlap

A = np.array([True, True, True, False, False, False])
B = np.array([True, False, False, True, False, False])


def test_overlap_by_hand() -> None:
    counts = confusion(A, B)
    assert (counts.both, counts.first_only, counts.second_only, counts.neither) == (1, 2, 1, 2)
    assert dice(A, B) == 2 / 5
    assert counts.iou == 1 / 4
    assert (counts.sensitivity, counts.specificity, counts.precision) == (1 / 2, 1 / 2, 1 / 3)


def test_overlap_of_empty_masks() -> None:
    nothing = np.zeros(3, dtype=bool)
    assert dice(nothing, nothing) == confusion(nothing, nothing).iou == 1
    assert dice(nothing, ~nothing) == 0
    assert math.isnan(confusion(nothing, nothing).sensitivity)
    assert math.isnan(confusion(nothing, ~nothing).specificity)


def test_masks_must_be_booleans_of_one_shape() -> None:
    with pytest.raises(TypeError, match="first must be an array of booleans, got dtype int64"):
        dice(np.array([0, 1]), np.array([True, False]))
    with pytest.raises(ValueError, match=r"same shape, got \(2,\) and \(3,\)"):
        dice(np.array([True, False]), np.array([True, False, True]))


def test_surface_distances_of_shifted_boxes() -> None:
    first = np.zeros((20, 12, 12), dtype=bool)
    second = np.zeros_like(first)
    first[4:8, 4:8, 4:8] = True
    second[7:11, 4:8, 4:8] = True  # shifted by 3 voxels of 2 mm
    apart = surface_distances(first, second, (2.0, 1.0, 1.0))
    assert apart.hausdorff95 == pytest.approx(6.0)
    assert apart.dice(6.0) == 1
    assert apart.dice(1.0) < 0.5
    assert surface_distances(first, first, 1.0).hausdorff95 == 0
    nothing = np.zeros_like(first)
    lone, none = (surface_distances(each, nothing, 1.0) for each in (first, nothing))
    assert (lone.hausdorff95, lone.dice(1.0)) == (math.inf, 0)
    assert (none.hausdorff95, none.dice(1.0)) == (0, 1)


def test_domains() -> None:
    brain = np.array([True] * 9 + [False])
    predicted = np.zeros(10, dtype=bool)
    true = np.zeros(10, dtype=bool)
    predicted[[3, 4]] = True
    true[[4, 5]] = True

    def voxels(domain: str) -> list[int]:
        mask = domain_mask(domain, predicted, true, brain, (2.0,), margin_mm=4.0)  # type: ignore[arg-type]
        return np.flatnonzero(mask).tolist()

    assert voxels("brain") == list(range(9))
    assert voxels("prediction") == [3, 4]
    assert voxels("truth") == [4, 5]
    assert voxels("union") == [3, 4, 5]
    assert voxels("dilated") == [1, 2, 3, 4, 5, 6, 7]
    with pytest.raises(ValueError, match="domain must be one of brain, union"):
        voxels("tumour")


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


def test_calibration_by_hand() -> None:
    curve = calibration.reliability([0.1, 0.15, 0.9, 1.0], [False, True, True, True], bins=2)
    assert curve.confidence == pytest.approx([0.125, 0.95])
    assert curve.accuracy == pytest.approx([0.5, 1.0])
    assert curve.expected_error == pytest.approx((0.375 + 0.05) / 2)
    assert curve.average_error == pytest.approx((0.375 + 0.05) / 2)
    assert curve.largest_error == pytest.approx(0.375)


def test_votes_on_the_edge_of_a_bin_fall_into_the_upper_one() -> None:
    votes = np.arange(101) / 100
    curve = calibration.reliability(votes, np.zeros(101, dtype=bool), bins=100)
    assert curve.voxels[:99].tolist() == [1] * 99
    assert curve.voxels[99] == 2  # 0.99 and 1


def test_pooled_curves_are_those_of_all_voxels() -> None:
    generator = np.random.default_rng(2)
    p = generator.random(300)
    event = generator.random(300) < p
    first = calibration.reliability(p[:100], event[:100], 10)
    whole = calibration.reliability(p, event, 10)
    pooled = first.merge(calibration.reliability(p[100:], event[100:], 10))
    assert pooled.expected_error == pytest.approx(whole.expected_error)


def test_calibration_without_voxels() -> None:
    nothing = calibration.reliability(np.zeros(0), np.zeros(0, dtype=bool), 10)
    assert math.isnan(nothing.expected_error)
    assert math.isnan(nothing.average_error)
    assert math.isnan(nothing.largest_error)


def test_scores_by_hand() -> None:
    marginals = np.array([[1.0, 0.5], [0.0, 0.5]])
    truth = np.array([1, 0])
    assert calibration.brier(marginals, truth) == pytest.approx((2 + 0.5) / 2)
    expected = -(math.log(0.5 / 11) + math.log(5.5 / 11)) / 2
    assert calibration.negative_log_likelihood(marginals, truth, 10) == pytest.approx(expected)
    assert calibration.negative_log_likelihood(marginals, truth, None) == math.inf
    with pytest.raises(ValueError, match="truth must lie between 0 and 1"):
        calibration.brier(marginals, np.array([0, 2]))


def test_top_label_calibration_as_torchmetrics() -> None:
    torch = pytest.importorskip("torch")
    functional = pytest.importorskip("torchmetrics.functional.classification")
    generator = np.random.default_rng(3)
    p = generator.dirichlet(
        [2.0, 1.5, 1.0], size=2000
    ).T  # never 1, which they put into a bin apart
    truth = generator.integers(3, size=2000)
    curve = calibration.top_label(p, truth)
    for norm, ours in (("l1", curve.expected_error), ("max", curve.largest_error)):
        theirs = functional.multiclass_calibration_error(
            torch.tensor(p.T), torch.tensor(truth), num_classes=3, n_bins=15, norm=norm
        )
        assert ours == pytest.approx(float(theirs), abs=1e-6)


def test_dice_as_torchmetrics() -> None:
    torch = pytest.importorskip("torch")
    segmentation = pytest.importorskip("torchmetrics.functional.segmentation")
    generator = np.random.default_rng(4)
    first, second = generator.random((2, 8, 8, 8)) < 0.3
    theirs = segmentation.dice_score(
        torch.tensor(first[np.newaxis, np.newaxis]),
        torch.tensor(second[np.newaxis, np.newaxis]),
        num_classes=1,
        input_format="one-hot",
    )
    assert dice(first, second) == pytest.approx(float(theirs), abs=1e-6)


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


def masks(*rows: str) -> np.ndarray:
    return np.array([[mark == "x" for mark in row] for row in rows])


def test_energy_distance_by_hand() -> None:
    samples, raters = masks("xx..", "x..."), masks("xx..", ".xx.")
    # d(S, Y): 0, 2/3; 1/2, 1. d(S, S'): 0, 1/2 twice. d(Y, Y'): 0, 2/3 twice.
    expected = 2 * (0 + 2 / 3 + 1 / 2 + 1) / 4 - 2 * (1 / 2) / 4 - 2 * (2 / 3) / 4
    assert generalized_energy_distance(samples, raters) == pytest.approx(expected)
    assert generalized_energy_distance(raters, raters) == pytest.approx(0)
    by_dice = pairwise_overlap(samples, raters, "dice")
    assert by_dice == pytest.approx(np.array([[1, 1 / 2], [2 / 3, 0]]))


def test_matching_by_hand() -> None:
    samples, raters = masks("xx..", "x..."), masks("xx..", ".xx.")
    # Matched straight they overlap with 1 and 0, crossed with 1/3 and 1/2.
    assert matched_iou(samples, raters) == pytest.approx(0.5)
    assert matched_iou(masks("xx.."), raters) == pytest.approx((1 + 1 / 3) / 2)
    assert best_dice(samples, raters) == pytest.approx([1, 1 / 2])


def test_empty_masks_agree() -> None:
    nothing = masks("....", "....")
    assert generalized_energy_distance(nothing, nothing) == 0
    assert matched_iou(nothing, masks("x...")) == 0


def test_rater_maps() -> None:
    raters = masks("xx..", "x...")
    assert rater_correlation([0.0, 1.0, 0.0, 0.0], raters) == pytest.approx(1)
    assert rater_correlation([1.0, 0.0, 1.0, 1.0], raters) == pytest.approx(-1)
    assert math.isnan(rater_correlation([0.0, 1.0, 0.0, 0.0], raters[:1]))
    assert level_dice([1.0, 0.5, 0.0, 0.0], raters) == pytest.approx(1)
    # At 0.1 … 0.5 the raters hold two voxels, the map one; above, one and one.
    assert level_dice([1.0, 0.0, 0.0, 0.0], raters) == pytest.approx((5 * 2 / 3 + 4) / 9)
    with pytest.raises(ValueError, match="raters must be booleans"):
        level_dice([1.0], [[1]])
    with pytest.raises(ValueError, match="masks on one grid"):
        pairwise_overlap(raters, raters[:, :3])


def test_structures_by_hand() -> None:
    assert volume_variation([1.0, 3.0]) == pytest.approx(math.sqrt(2) / 2)
    assert math.isnan(volume_variation([0.0, 0.0]))
    # Two samples of two voxels that share one: Dice 1/2.
    assert pairwise_dice([1, 2, 1, 0], samples=2) == pytest.approx(0.5)
    assert pairwise_dice([3, 3, 0], samples=3) == 1
    assert pairwise_dice([0, 0], samples=3) == 1


def test_lesions_one_by_one() -> None:
    structure = np.zeros((6, 5, 1), dtype=bool)
    structure[0:2, 0, 0] = True
    structure[4, 4, 0] = True
    entropy = np.arange(30.0).reshape(6, 5, 1)
    share = np.full((6, 5, 1), 0.5)
    truth = np.zeros_like(structure)
    truth[1, 0, 0] = True
    found = lesions(structure, entropy, share, (2.0, 2.0, 2.0), truth)
    assert [each.volume_ml for each in found] == pytest.approx([0.016, 0.008])
    assert [each.mean_entropy_bits for each in found] == pytest.approx([2.5, 24.0])
    assert [each.hit for each in found] == [True, False]
    assert len(lesions(structure, entropy, share, (1, 1, 1), fewest_voxels=2)) == 1
    assert lesions(np.zeros_like(structure), entropy, share, (1, 1, 1)) == []


def test_one_number_for_an_image() -> None:
    u = np.zeros((20, 20, 20))
    u[3:13, 3:13, 3:13] = 0.5
    mask = np.ones(u.shape, dtype=bool)
    values = image_uncertainty(u, mask)
    assert values["sum"] == pytest.approx(500)
    assert values["patch"] == pytest.approx(0.5)
    assert values["above"] == pytest.approx(0.5)
    assert math.isnan(image_uncertainty(u, ~mask)["sum"])


def test_risk_coverage_by_hand() -> None:
    curve = risk_coverage([0.9, 0.5, 0.7], [0.1, 0.6, 0.2])
    assert curve.risk == pytest.approx([0.1, 0.15, 0.3])
    assert curve.aurc == pytest.approx(0.55 / 3)
    assert curve.excess == pytest.approx(0)
    inverted = risk_coverage([0.5, 0.9, 0.7], [0.1, 0.6, 0.2])
    assert inverted.risk == pytest.approx([0.6, 0.4, 0.3])
    # Where all are equally confident every coverage has the mean risk.
    assert risk_coverage([1, 1, 1], [0.1, 0.6, 0.2]).risk == pytest.approx([0.3, 0.3, 0.3])
    with pytest.raises(ValueError, match="same length"):
        risk_coverage([1.0], [0.1, 0.2])
