"""Measures of whole structures, images and raters against cases computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from perturb_mpm.evaluation import (
    best_dice,
    curvas_crps,
    curvas_ece,
    generalized_energy_distance,
    level_dice,
    matched_iou,
    pairwise_dice,
    rater_correlation,
    risk_coverage,
    volume_variation,
)
from perturb_mpm.evaluation.structures import pairwise_overlap


def masks(*rows: str) -> np.ndarray:
    return np.array([[mark == "x" for mark in row] for row in rows])


@pytest.mark.parametrize("volume", [8.0, 10.0, 10.7, 12.5])
def test_the_volume_score_of_curvas_is_the_crps_of_the_raters_law(volume: float) -> None:
    from scipy.integrate import quad
    from scipy.stats import norm

    raters = [9.0, 10.0, 12.0]
    law = norm(np.mean(raters), np.std(raters))
    below, _ = quad(lambda y: law.cdf(y) ** 2, -20, volume)
    above, _ = quad(lambda y: (1 - law.cdf(y)) ** 2, volume, 40)
    assert curvas_crps(volume, raters) == pytest.approx(below + above, rel=1e-6)
    assert curvas_crps(10.0, [10.0]) == 0
    # The challenge's script stops at three standard deviations: inside them it says the same.
    low, high = (law.mean() + sign * 3 * law.std() for sign in (-1, 1))
    below, _ = quad(lambda y: law.cdf(y) ** 2, low, volume)
    above, _ = quad(lambda y: (1 - law.cdf(y)) ** 2, volume, high)
    assert curvas_crps(volume, raters) == pytest.approx(below + above, abs=1e-3 * law.std())


def test_a_prediction_that_spreads_as_made_up_raters_do_has_the_best_scores_of_curvas() -> None:
    rng = np.random.default_rng(3)
    share = 1 / (1 + np.exp(-np.linspace(-6, 6, 400)))  # of raters who see foreground in a voxel
    raters = (rng.random((3, 400)) < share).astype(np.int64)
    predictions = {"right": share, "sure": (share > 0.5) * 0.98 + 0.01, "large": share**0.3}
    scores = {
        name: (curvas_ece(np.stack([1 - p, p]), raters), curvas_crps(p.sum(), raters.sum(axis=1)))
        for name, p in predictions.items()
    }
    assert scores["right"][0] < min(scores["sure"][0], scores["large"][0])
    assert scores["right"][1] < scores["large"][1]
    by_hand = np.array([[0.1, 0.1, 0.9], [0.9, 0.9, 0.1]])  # (L, N): sure of 0.9, thrice
    assert curvas_ece(by_hand, np.array([[1, 1, 0], [1, 0, 1]])) == pytest.approx(
        (abs(1 - 0.9) + abs(1 / 3 - 0.9)) / 2
    )


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
