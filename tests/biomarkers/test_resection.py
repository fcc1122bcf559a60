"""Extent of resection, residual volume, resection classes, volume intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest

from perturb_mpm.biomarkers import (
    KARSCHNIA_2021,
    ResectionClass,
    class_probabilities,
    classify,
    conformal_widening,
    coverage,
    crps,
    distribution,
    extent_of_resection,
    paired_samples,
    region_volume_ml,
)


def test_extent_is_never_clamped() -> None:
    extent = extent_of_resection([10.0, 10.0, 10.0, 0.0, 0.0], [0.0, 2.5, 12.0, 0.0, 1.0])
    assert extent[:3] == pytest.approx([1.0, 0.75, -0.2])
    assert np.isnan(extent[3:]).all()


def test_extent_of_bad_volumes() -> None:
    with pytest.raises(ValueError, match="before_ml must be volumes of at least 0"):
        extent_of_resection([-1.0], [0.0])
    with pytest.raises(ValueError, match="after_ml must be volumes"):
        extent_of_resection([1.0], [math.nan])
    with pytest.raises(ValueError, match="fit together"):
        extent_of_resection([1.0, 2.0], [1.0, 2.0, 3.0])


def test_corrected_volume_drops_uncertain_voxels() -> None:
    labels = np.array([[0, 4, 4], [4, 1, 0]])
    certain = np.array([[True, True, False], [True, True, True]])
    assert region_volume_ml(labels, (4,), 8.0) == pytest.approx(0.024)
    assert region_volume_ml(labels, (4,), 8.0, certain) == pytest.approx(0.016)
    assert region_volume_ml(labels, (1, 4), 8.0, certain) == pytest.approx(0.024)
    with pytest.raises(ValueError, match="keep must be booleans"):
        region_volume_ml(labels, (4,), 8.0, certain[:1])


def test_distribution_leaves_undefined_samples_out() -> None:
    result = distribution([0.0, 1.0, 2.0, 3.0, 4.0, math.nan], confidence=0.5)
    assert (result.median, result.lower, result.upper, result.undefined) == (2, 1, 3, 1)
    assert math.isnan(distribution([math.nan, math.nan]).median)


def test_every_sample_before_meets_every_sample_after() -> None:
    before, after = paired_samples([1.0, 2.0], [3.0, 4.0, 5.0])
    assert sorted(zip(before, after)) == [(1, 3), (1, 4), (1, 5), (2, 3), (2, 4), (2, 5)]
    many = paired_samples(np.arange(300.0), np.arange(300.0), seed=1)
    again = paired_samples(np.arange(300.0), np.arange(300.0), seed=1)
    assert len(many[0]) == 40_000
    assert np.array_equal(many[0], again[0])
    assert abs(np.corrcoef(*many)[0, 1]) < 0.02


def test_classes_by_residual_volume() -> None:
    assert classify(30.0, [0.0, 0.5, 1.0, 1.01, 5.0, 5.01]).tolist() == [0, 1, 1, 2, 2, 3]
    # A small residual is complete where it is within the noise floor.
    assert classify(30.0, [0.05, 0.5], noise_floor_ml=0.1).tolist() == [0, 1]


def test_classes_by_extent_too() -> None:
    # 0.8 ml of 10 left is 92 %: not near-total by extent.
    assert classify([10.0, 30.0], [0.8, 0.8], KARSCHNIA_2021).tolist() == [2, 1]
    # Without tumour before, no limit on the extent holds.
    assert classify(0.0, 0.5, KARSCHNIA_2021) == 3
    assert classify(0.0, 0.0, KARSCHNIA_2021) == 0


def test_class_probabilities_sum_to_one() -> None:
    shares = class_probabilities([30.0] * 4, [0.0, 0.0, 0.4, 7.0])
    assert shares == {
        "2A complete": 0.5,
        "2B near-total": 0.25,
        "3A subtotal": 0,
        "3B partial": 0.25,
    }
    with pytest.raises(ValueError, match="end with one that has no limits"):
        classify(1.0, 1.0, [ResectionClass("a", 1.0), ResectionClass("b", 2.0)])
    with pytest.raises(ValueError, match="at least two"):
        classify(1.0, 1.0, [ResectionClass("a")])
    with pytest.raises(ValueError, match="at least one pair"):
        class_probabilities([], [])


def test_crps_by_all_pairs() -> None:
    generator = np.random.default_rng(4)
    x = generator.normal(size=37)
    pairs = np.abs(x[:, np.newaxis] - x).mean()
    assert crps(x, 0.3) == pytest.approx(np.abs(x - 0.3).mean() - pairs / 2)
    assert crps([2.0], 5.0) == 3.0


def test_crps_prefers_the_true_law() -> None:
    generator = np.random.default_rng(5)
    truths = generator.normal(size=300)
    scores = {
        scale: np.mean([crps(scale * generator.normal(size=200), y) for y in truths])
        for scale in (0.1, 1.0, 4.0)
    }
    assert scores[1.0] < scores[0.1]
    assert scores[1.0] < scores[4.0]


def test_coverage_by_hand() -> None:
    assert coverage([0, 1, 2], [1, 2, 3], [0.5, 2.0, 5.0]) == pytest.approx(2 / 3)
    with pytest.raises(ValueError, match="same length"):
        coverage([0], [1, 2], [1, 2])


def test_conformal_rank_by_hand() -> None:
    truth = np.exp(np.arange(1.0, 20.0)) - 0.1  # intervals of no width at log volume 0
    point = np.full(19, 0.9)
    learnt = conformal_widening(point, point, truth, confidence=0.95)
    assert learnt.amount == pytest.approx(19)  # ⌈20 · 0.95⌉ = 19: the largest score
    assert conformal_widening(point, point, truth, confidence=0.5).amount == pytest.approx(10)
    few = conformal_widening(point[:18], point[:18], truth[:18], confidence=0.95)
    assert few.amount == math.inf


def test_conformal_intervals_cover_as_promised() -> None:
    generator = np.random.default_rng(6)
    hits = []
    for _ in range(200):
        centre = generator.uniform(5, 50, size=40)
        truth = centre * np.exp(0.4 * generator.normal(size=40))
        lower, upper = 0.98 * centre, 1.02 * centre  # far too narrow
        learnt = conformal_widening(lower[:39], upper[:39], truth[:39], confidence=0.9)
        low, high = learnt.widen(lower[39:], upper[39:])
        hits.append(coverage(low, high, truth[39:]))
    assert 0.85 <= np.mean(hits) <= 0.96


def test_conformal_intervals_can_shrink_and_stay_volumes() -> None:
    wide = conformal_widening([1.0] * 30, [100.0] * 30, [10.0] * 30, confidence=0.9)
    assert wide.amount < 0
    low, _ = conformal_widening([5.0] * 30, [6.0] * 30, [0.0] * 30, confidence=0.9).widen(
        [1.0], [2]
    )
    assert low[0] == 0
    with pytest.raises(ValueError, match="same length"):
        conformal_widening([1.0], [1.0, 2.0], [1.0])
    with pytest.raises(ValueError, match="truth_ml must be a list of volumes"):
        conformal_widening([1.0], [2.0], [-1.0])
