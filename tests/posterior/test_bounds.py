from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import xlogy
from scipy.stats import binom

from helpers.bad import Bad
from lab.comparators import hamming_loss, total_variation, total_variation_map
from perturb_mpm.posterior import (
    Precision,
    anytime_halfwidth,
    anytime_interval,
    clopper_pearson,
    entropy_bound,
    hoeffding,
    plug_in_bias,
    samples_needed,
    total_variation_bound,
)

CONFIDENCE = 0.95


def entropy(p: np.ndarray) -> np.ndarray:
    return -xlogy(p, p).sum(axis=0) / math.log(2)


def test_hoeffding_by_hand() -> None:
    assert hoeffding(200, 0.05, labels=4) == pytest.approx(0.113, abs=5e-4)
    assert hoeffding(200, 0.05, labels=4, voxels=10**6) == pytest.approx(0.217, abs=5e-4)
    assert hoeffding(50, 0.1, labels=2) == pytest.approx(math.sqrt(math.log(40) / 100))


def test_samples_needed_by_hand() -> None:
    assert samples_needed(0.05, 0.05, labels=4) == math.ceil(math.log(160) / 0.005) == 1016
    assert samples_needed(0.05, 0.05, labels=4, voxels=10**6) == 3779


@given(
    epsilon=st.floats(1e-4, 0.9),
    delta=st.floats(1e-12, 0.9),
    labels=st.integers(2, 255),
    voxels=st.integers(1, 10**8),
)
def test_samples_needed_is_the_first_that_is_enough(
    epsilon: float, delta: float, labels: int, voxels: int
) -> None:
    samples = samples_needed(epsilon, delta, labels, voxels)
    assert hoeffding(samples, delta, labels, voxels) <= epsilon * (1 + 1e-12)
    if samples > 1:
        assert hoeffding(samples - 1, delta, labels, voxels) > epsilon * (1 - 1e-12)


@pytest.mark.parametrize("voxels", [1, 50])
def test_hoeffding_covers_all_labels_of_all_voxels_at_once(voxels: int) -> None:
    rng = np.random.default_rng(0)
    f = rng.dirichlet(np.ones(4), size=voxels)  # (V, L)
    samples, delta = 60, 0.2
    frequencies = rng.multinomial(samples, f, size=(4000, voxels)) / samples
    missed = (np.abs(frequencies - f) > hoeffding(samples, delta, 4, voxels)).any(axis=(1, 2))
    assert missed.mean() <= delta
    narrow = (np.abs(frequencies - f) > hoeffding(samples, delta, 4, voxels) / 3).any(axis=(1, 2))
    assert narrow.mean() > delta


def test_one_voxels_bound_does_not_hold_for_a_map() -> None:
    samples, delta, voxels = 100, 0.05, 20000
    share = np.random.default_rng(1).binomial(samples, 0.5, size=voxels) / samples
    error = np.abs(share - 0.5).max()
    assert hoeffding(samples, delta, 2) < error < hoeffding(samples, delta, 2, voxels)


def test_clopper_pearson_by_hand() -> None:
    lower, upper = clopper_pearson([0, 10, 5], 10)
    assert lower[0] == 0.0
    assert upper[0] == pytest.approx(1 - 0.025 ** (1 / 10))
    assert lower[1] == pytest.approx(0.025 ** (1 / 10))
    assert upper[1] == 1.0
    assert (lower[2], upper[2]) == pytest.approx((0.1870860, 0.8129140), abs=1e-7)


@given(n=st.integers(1, 3000), data=st.data(), confidence=st.floats(0.5, 0.9999))
def test_the_ends_of_clopper_pearson_solve_their_equations(
    n: int, data: st.DataObject, confidence: float
) -> None:
    k = data.draw(st.integers(0, n))
    lower, upper = (float(end) for end in clopper_pearson(k, n, confidence))
    tail = (1 - confidence) / 2
    if k > 0:
        assert binom.sf(k - 1, n, lower) == pytest.approx(tail, rel=1e-6)
    if k < n:
        assert binom.cdf(k, n, upper) == pytest.approx(tail, rel=1e-6)
    below, above = (float(end) for end in clopper_pearson(n - k, n, confidence))
    assert (1 - above, 1 - below) == pytest.approx((lower, upper), abs=1e-12)


@pytest.mark.parametrize("n", [5, 30, 200])
def test_clopper_pearson_covers_every_share(n: int) -> None:
    k = np.arange(n + 1)[:, np.newaxis]
    lower, upper = clopper_pearson(k, n, CONFIDENCE)
    q = np.linspace(0.0, 1.0, 501)
    coverage = (binom.pmf(k, n, q) * ((lower <= q) & (q <= upper))).sum(axis=0)
    assert coverage.min() >= CONFIDENCE - 1e-12
    narrower = np.abs(k / n - q) <= 0.6 * np.maximum(k / n - lower, upper - k / n)
    assert (binom.pmf(k, n, q) * narrower).sum(axis=0).min() < CONFIDENCE


@pytest.mark.parametrize("share", [0.01, 0.05, 0.3, 0.5])
def test_clopper_pearson_covers_in_simulation(share: float) -> None:
    k = np.random.default_rng(2).binomial(200, share, size=20000)
    lower, upper = clopper_pearson(k, 200, CONFIDENCE)
    assert ((lower <= share) & (share <= upper)).mean() >= CONFIDENCE


def test_clopper_pearson_is_narrower_than_hoeffding() -> None:
    one_label = math.sqrt(math.log(2 / 0.05) / 400)
    lower, upper = clopper_pearson(np.arange(201), 200, 0.95)
    gain = 1 - (upper - lower) / (2 * one_label)
    assert gain.min() == pytest.approx(0.26, abs=0.005)
    assert gain[2] == pytest.approx(0.82, abs=0.01)


def test_clopper_pearson_takes_arrays_of_any_shape() -> None:
    lower, upper = clopper_pearson(np.array([[0], [3]]), [4, 8, 20])
    assert lower.shape == upper.shape == (2, 3)
    assert (lower[0] == 0).all()
    assert lower[1, 1] == clopper_pearson(3, 8)[0]
    assert clopper_pearson(np.uint16(3), np.int8(8))[0] == lower[1, 1]


def random_pairs(labels: int, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw pairs (L, count) from flat to peaked, a third of them close to each other."""
    rng = np.random.default_rng(seed)
    gammas = rng.standard_gamma(10.0 ** rng.uniform(-2, 1, size=(2, 1, count)), (2, labels, count))
    p, q = (gammas + 1e-300) / (gammas + 1e-300).sum(axis=1, keepdims=True)
    near = rng.random(count) < 1 / 3
    mix = rng.random(count) * near
    return p, np.where(near, (1 - mix) * p + mix * q, q)


@pytest.mark.parametrize("labels", [2, 3, 4, 5, 10])
def test_the_entropy_bound_is_never_violated(labels: int) -> None:
    p, q = random_pairs(labels, 100_000, seed=labels)
    difference = np.abs(entropy(p) - entropy(q))
    bound = entropy_bound(np.minimum(total_variation_map(p, q), 1.0), labels)
    assert (difference <= bound + 1e-9).all()
    assert (difference > 0.9 * bound).any()


@pytest.mark.parametrize("labels", [2, 3, 4, 9])
def test_the_entropy_bound_is_attained(labels: int) -> None:
    certain = np.eye(labels)[0]
    for epsilon in np.linspace(0.0, 1.0 - 1.0 / labels, 7):
        spread = np.full(labels, epsilon / (labels - 1))
        spread[0] = 1.0 - epsilon
        assert entropy(spread) == pytest.approx(entropy_bound(epsilon, labels), abs=1e-12)
        assert total_variation_map(spread[:, np.newaxis], certain[:, np.newaxis]) == pytest.approx(
            epsilon
        )


def test_the_papers_worst_case_is_violated_and_ours_is_not() -> None:
    uniform, certain = np.full((4, 1), 0.25), np.eye(4)[:, :1]
    difference = (entropy(uniform) - entropy(certain))[0]
    assert difference == pytest.approx(2.0)
    assert difference > math.log2(4 - 1)
    assert difference <= entropy_bound(1.0, 4) == pytest.approx(2.0)
    assert difference <= entropy_bound(total_variation(uniform, certain), 4) + 1e-12


def test_the_entropy_bound_by_hand() -> None:
    assert entropy_bound(0.0, 4) == 0.0
    assert entropy_bound(0.5, 3) == pytest.approx(0.5 + 1.0)
    np.testing.assert_allclose(entropy_bound([0.5, 0.75, 0.8, 1.0], 2), 1.0)
    rising = entropy_bound(np.linspace(0, 1, 200), 5)
    assert (np.diff(rising) >= -1e-12).all()


def test_frequencies_off_by_e_are_half_of_l_times_e_apart() -> None:
    rng = np.random.default_rng(6)
    for labels in (2, 3, 4, 5):
        p, q = rng.dirichlet(np.ones(labels), size=(2, 20000)).transpose(0, 2, 1)
        e = np.abs(p - q).max(axis=0)
        assert (total_variation_map(p, q) <= labels // 2 * e + 1e-12).all()


def coupled(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw S pairs of labellings (S, N) that agree by chance and by a common source."""
    rng = np.random.default_rng(seed)
    samples, voxels, labels = rng.integers([1, 1, 2], [60, 12, 6])
    a = rng.integers(labels, size=(samples, voxels))
    other = rng.integers(labels, size=(samples, voxels)) * rng.integers(2, size=voxels)
    return a, np.where(rng.random((samples, voxels)) < rng.random(), other, a)


def frequencies(x: np.ndarray) -> np.ndarray:
    return np.stack([(x == label).mean(axis=0) for label in range(6)])  # (L, N)


def test_frequencies_are_no_further_apart_than_coupled_samples_differ() -> None:
    tight = 0
    for seed in range(500):
        a, b = coupled(seed)
        f, g = frequencies(a), frequencies(b)
        losses = [hamming_loss(x, y) for x, y in zip(a, b)]
        distance = total_variation(f, g)
        assert distance <= total_variation_bound(losses) + 1e-12
        assert (total_variation_map(f, g) <= total_variation_bound(a != b) + 1e-12).all()
        tight += distance > 0.9 * total_variation_bound(losses) > 0
    assert tight > 0


def test_samples_that_do_not_share_their_noise_say_too_much() -> None:
    rng = np.random.default_rng(3)
    a, b = rng.integers(2, size=(2, 20000, 3))
    assert total_variation(frequencies(a), frequencies(b)) < 0.02
    assert total_variation_bound(a != b).min() > 0.45


def test_a_distance_to_the_truth_is_added() -> None:
    rng = np.random.default_rng(9)
    for seed in range(200):
        a, b = coupled(seed)
        f, g = frequencies(a), frequencies(b)
        p = rng.dirichlet(np.ones(6), size=a.shape[1]).T
        bound = total_variation_bound((a != b).mean(axis=1), total_variation(p, f))
        assert total_variation(p, g) <= bound + 1e-12
    assert total_variation_bound([0.5, 0.7], 0.6) == 1.0


def test_the_plug_in_bias_is_that_of_simulated_means() -> None:
    rng = np.random.default_rng(5)
    for f in ([0.5, 0.5], [0.4, 0.3, 0.3], [0.25] * 4):
        votes = rng.multinomial(100, f, size=100_000).T / 100
        bias = entropy(np.array(f)) - entropy(votes).mean()
        assert bias == pytest.approx(float(plug_in_bias(len(f), 100)), rel=0.05)
    np.testing.assert_allclose(
        plug_in_bias([1, 2, 5], 50), [0, 1 / 69.3147, 4 / 69.3147], rtol=1e-5
    )


COUNTS = np.array([[3, 1], [1, 3]])

BAD = [
    Bad(
        "epsilon_zero",
        ValueError,
        r"epsilon must be positive and below 1, got 0.0",
        lambda: samples_needed(0, 0.05, 4),
    ),
    Bad(
        "epsilon_text",
        TypeError,
        r"epsilon must be a number, got str 'small'",
        lambda: samples_needed("small", 0.05, 4),
    ),
    Bad(
        "delta_one",
        ValueError,
        r"delta must be positive and below 1, got 1.0",
        lambda: samples_needed(0.05, 1, 4),
    ),
    Bad(
        "labels_one",
        ValueError,
        r"labels must be at least 2, got 1",
        lambda: hoeffding(200, 0.05, 1),
    ),
    Bad(
        "voxels_zero",
        ValueError,
        r"voxels must be at least 1, got 0",
        lambda: hoeffding(200, 0.05, 4, 0),
    ),
    Bad(
        "samples_zero",
        ValueError,
        r"samples must be at least 1, got 0",
        lambda: hoeffding(0, 0.05, 4),
    ),
    Bad(
        "more_than_all",
        ValueError,
        r"k must lie between 0 and n, got values from 2 to 9",
        lambda: clopper_pearson([2, 9], 8),
    ),
    Bad(
        "negative",
        ValueError,
        r"k must lie between 0 and n, got values from -1 to 2",
        lambda: anytime_interval([2, -1], 8, 0.05),
    ),
    Bad(
        "fractional",
        ValueError,
        r"k must be whole numbers, got 1.5",
        lambda: clopper_pearson(1.5, 8),
    ),
    Bad("n_zero", ValueError, r"n must be at least 1, got 0", lambda: clopper_pearson(0, [0, 3])),
    Bad(
        "shapes",
        ValueError,
        r"k and n must fit together, got \(3,\) and \(2,\)",
        lambda: clopper_pearson([1, 2, 3], [4, 5]),
    ),
    Bad(
        "confidence_percent",
        ValueError,
        r"confidence must be positive and below 1, got 95.0",
        lambda: clopper_pearson(3, 8, 95),
    ),
    Bad(
        "anytime_delta",
        ValueError,
        r"delta must be positive and below 1, got 0.0",
        lambda: anytime_interval(3, 8, 0.0),
    ),
    Bad(
        "halfwidth_frequencies",
        TypeError,
        r"counts must be integers, got dtype float64",
        lambda: anytime_halfwidth(COUNTS / 4, 4, 0.05),
    ),
    Bad(
        "halfwidth_too_many",
        ValueError,
        r"counts must lie between 0 and 2, got values from 1 to 3",
        lambda: anytime_halfwidth(COUNTS, 2, 0.05),
    ),
    Bad(
        "halfwidth_empty",
        ValueError,
        r"counts must have at least one voxel, got shape \(2, 0\)",
        lambda: anytime_halfwidth(COUNTS[:, :0], 4, 0.05),
    ),
    Bad(
        "precision_epsilon",
        ValueError,
        r"epsilon of Precision must be positive and below 1, got -0.1",
        lambda: Precision(-0.1, 0.05),
    ),
    Bad(
        "precision_delta",
        ValueError,
        r"delta of Precision must be positive and below 1, got 0.0",
        lambda: Precision(0.1, 0),
    ),
    Bad(
        "precision_scope",
        ValueError,
        r"scope of Precision must be one of voxel, map, got str 'image'",
        lambda: Precision(0.1, 0.05, "image"),
    ),
    Bad(
        "precision_counts",
        ValueError,
        r"counts must be \(labels, voxels…\), got shape \(2,\)",
        lambda: Precision(0.1).is_reached(COUNTS[0], 4),
    ),
    Bad(
        "precision_mask",
        ValueError,
        r"mask must have the shape \(2,\), got \(3,\)",
        lambda: Precision(0.1).is_reached(COUNTS, 4, mask=np.ones(3)),
    ),
    Bad(
        "precision_mask_empty",
        ValueError,
        r"mask must contain at least one voxel, got an empty mask",
        lambda: Precision(0.1).is_reached(COUNTS, 4, mask=np.zeros(2)),
    ),
    Bad(
        "precision_share",
        ValueError,
        r"share must be at most 1, got 1.5",
        lambda: Precision(0.1).samples_to_reach(3, share=1.5),
    ),
    Bad(
        "precision_maximum",
        ValueError,
        r"maximum must be at least 1, got 0",
        lambda: Precision(0.1).check_reachable(0, 3),
    ),
    Bad(
        "losses_empty",
        ValueError,
        r"losses must have at least one sample, got shape \(0,\)",
        lambda: total_variation_bound([]),
    ),
    Bad(
        "losses_range",
        ValueError,
        r"losses must lie between 0 and 1, got values from 0.0 to 3.0",
        lambda: total_variation_bound([0, 3]),
    ),
    Bad(
        "losses_nan",
        ValueError,
        r"losses must be finite, got 1 NaN",
        lambda: total_variation_bound([0, np.nan]),
    ),
    Bad(
        "distance_negative",
        ValueError,
        r"distance must be at least 0, got -1.0",
        lambda: total_variation_bound([0.1], -1),
    ),
    Bad(
        "entropy_epsilon",
        ValueError,
        r"epsilon must lie between 0 and 1, got values from 1.5 to 1.5",
        lambda: entropy_bound(1.5, 4),
    ),
    Bad(
        "support_zero",
        ValueError,
        r"support must be at least 1, got 0",
        lambda: plug_in_bias([0, 2], 10),
    ),
]


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.name)
def test_bad_input_is_refused_in_words(bad: Bad) -> None:
    with pytest.raises(bad.error, match=bad.message):
        bad.call()
