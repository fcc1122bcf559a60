from __future__ import annotations

import numpy as np
import pytest

from helpers.bad import Bad
from lab.comparators import (
    hamming_loss,
    log_probability_error,
    smoothed_frequencies,
    total_variation,
    total_variation_map,
)

P = np.full((2, 3), 0.5)
MASK = np.array([[1, 1, 0], [0, 2, 0]])


def test_hamming_loss_by_hand() -> None:
    a = [[0, 1, 2], [0, 0, 0]]
    b = [[0, 2, 2], [1, 1, 0]]
    assert hamming_loss(a, b) == 0.5
    assert hamming_loss(a, b, MASK) == pytest.approx(2 / 3)
    assert hamming_loss(a, a) == 0.0
    assert hamming_loss(np.uint8([1]), np.float32([0])) == 1.0


def test_total_variation_by_hand() -> None:
    p = np.array([[1.0, 0.5, 0.2], [0.0, 0.5, 0.8]])
    q = np.array([[0.0, 0.5, 0.5], [1.0, 0.5, 0.5]])
    np.testing.assert_allclose(total_variation_map(p, q), [1.0, 0.0, 0.3])
    assert total_variation(p, q) == pytest.approx(1.3 / 3)
    assert total_variation(p, q, [0, 1, 1]) == pytest.approx(0.15)
    assert total_variation(p.astype(np.float32), q) == pytest.approx(1.3 / 3, abs=1e-7)


def test_total_variation_is_a_distance() -> None:
    p, q, r = np.random.default_rng(0).dirichlet(np.ones(4), size=(3, 200)).transpose(0, 2, 1)
    assert total_variation(p, q) == pytest.approx(total_variation(q, p))
    assert 0 < total_variation(p, q) <= 1
    between = total_variation_map(p, r) + total_variation_map(r, q)
    assert (total_variation_map(p, q) <= between + 1e-12).all()


def test_log_probability_error_by_hand() -> None:
    p = np.array([[0.5, 0.2], [0.5, 0.8]])
    q = np.array([[0.25, 0.2], [0.75, 0.8]])
    expected = (np.log(2) + np.log(1.5)) / 4
    assert log_probability_error(p, q) == pytest.approx(expected)
    assert log_probability_error(p, q, [True, False]) == pytest.approx(2 * expected)


def test_smoothed_frequencies_are_positive_and_sum_to_one() -> None:
    f = smoothed_frequencies([[0, 7], [10, 3]])
    np.testing.assert_allclose(f, np.array([[0.5, 7.5], [10.5, 3.5]]) / 11)
    f = smoothed_frequencies(np.uint16([[0], [65000], [500], [0]]))
    assert f.sum() == pytest.approx(1.0)
    assert f.min() > 0
    log_probability_error(f, np.full((4, 1), 0.25))


@pytest.mark.parametrize(
    "bad",
    [
        Bad(
            "hamming_shapes",
            ValueError,
            r"a and b must have the same shape and at least one voxel, got \(2,\) and \(3,\)",
            lambda: hamming_loss([1, 2], [1, 2, 3]),
        ),
        Bad(
            "hamming_mask",
            ValueError,
            r"mask must have the shape \(2,\), got \(3,\)",
            lambda: hamming_loss([1, 2], [1, 2], [1, 1, 1]),
        ),
        Bad(
            "variation_one_axis",
            ValueError,
            r"p and q must be \(labels, \*spatial\), got shape \(3,\)",
            lambda: total_variation(P[0], P[0]),
        ),
        Bad(
            "variation_nan",
            ValueError,
            r"q must be finite, got 6 NaN",
            lambda: total_variation(P, P * np.nan),
        ),
        Bad(
            "variation_mask_empty",
            ValueError,
            r"mask must contain at least one voxel",
            lambda: total_variation(P, P, np.zeros(3)),
        ),
        Bad(
            "log_of_zero",
            ValueError,
            r"q must be positive, got 0.0: smoothed_frequencies",
            lambda: log_probability_error(P, P * [0, 1, 1]),
        ),
        Bad(
            "smoothed_negative",
            ValueError,
            r"counts must be \(labels, \*spatial\) and at least 0",
            lambda: smoothed_frequencies([[-3, -1], [-1, -3]]),
        ),
    ],
    ids=lambda bad: bad.name,
)
def test_it_is_refused_in_words(bad: Bad) -> None:
    with pytest.raises(bad.error, match=bad.message):
        bad.call()
