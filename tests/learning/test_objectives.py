"""What learning maximises, against sums made by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from perturb_mpm.learning.objectives import (
    Both,
    Hamming,
    IntersectionOverUnion,
    LogLikelihood,
    MeanIntersectionOverUnion,
    find_objective,
)

Q = np.array([[0.7, 0.2, 0.1], [0.4, 0.5, 0.1], [0.1, 0.8, 0.1], [0.6, 0.1, 0.3]])  # (N, L)
TRUTH = np.array([0, 0, 1, 1])


def test_iou_by_hand_skips_the_label_that_is_absent() -> None:
    iou = IntersectionOverUnion()
    sums = iou.sums(Q, TRUTH)
    first = (0.7 + 0.4) / (2 + 0.1 + 0.6)
    second = (0.8 + 0.1) / (2 + 0.2 + 0.5)
    np.testing.assert_allclose(iou.by_label(sums), [first, second, math.nan])
    assert iou.value(sums) == pytest.approx((first + second) / 2)


def test_iou_pools_volumes_before_it_divides() -> None:
    iou = IntersectionOverUnion()
    parts = iou.sums(Q[:1], TRUTH[:1]) + iou.sums(Q[1:], TRUTH[1:])
    np.testing.assert_allclose(parts, iou.sums(Q, TRUTH))
    apart = (iou.value(iou.sums(Q[:1], TRUTH[:1])) + iou.value(iou.sums(Q[1:], TRUTH[1:]))) / 2
    assert iou.value(parts) != pytest.approx(apart, rel=0.01)


def test_in_the_mean_iou_volumes_count_alike_whatever_their_size() -> None:
    mean, iou = MeanIntersectionOverUnion(), IntersectionOverUnion()
    parts = mean.sums(Q[:1], TRUTH[:1]) + mean.sums(Q[1:], TRUTH[1:])
    apart = [iou.value(iou.sums(Q[:1], TRUTH[:1])), iou.value(iou.sums(Q[1:], TRUTH[1:]))]
    assert apart[0] == pytest.approx(0.7)
    assert mean.value(parts) == pytest.approx(sum(apart) / 2)
    both = [mean.gradient(Q[:1], TRUTH[:1], parts), mean.gradient(Q[1:], TRUTH[1:], parts)]
    step = 1e-6
    for row, column in np.ndindex(Q.shape):
        moved = Q.copy()
        moved[row, column] += step
        after = mean.sums(moved[:1], TRUTH[:1]) + mean.sums(moved[1:], TRUTH[1:])
        slope = (mean.value(after) - mean.value(parts)) / step
        assert np.concatenate(both)[row, column] == pytest.approx(slope, abs=1e-5)


def test_log_likelihood_and_hamming_by_hand() -> None:
    likelihood, hamming = LogLikelihood(), Hamming()
    own = [0.7, 0.4, 0.8, 0.1]
    assert likelihood.value(likelihood.sums(Q, TRUTH)) == pytest.approx(np.mean(np.log(own)))
    assert hamming.value(hamming.sums(Q, TRUTH)) == pytest.approx(np.mean(own))


def test_both_is_the_sum_of_overlap_and_likelihood() -> None:
    both = Both()
    parts = [MeanIntersectionOverUnion(), LogLikelihood()]
    sums = both.sums(Q, TRUTH)
    assert both.value(sums) == pytest.approx(sum(p.value(p.sums(Q, TRUTH)) for p in parts))
    gradients = [p.gradient(Q, TRUTH, p.sums(Q, TRUTH)) for p in parts]
    np.testing.assert_allclose(both.gradient(Q, TRUTH, sums), gradients[0] + gradients[1])


def test_a_marginal_of_zero_has_a_finite_likelihood() -> None:
    likelihood = LogLikelihood()
    sums = likelihood.sums(np.array([[0.0, 1.0]]), np.array([0]))
    assert likelihood.value(sums) == pytest.approx(math.log(1e-12))


def test_an_unknown_objective_is_refused() -> None:
    with pytest.raises(ValueError, match="objective must be one of iou, mean_iou, log_lik"):
        find_objective("dice")
