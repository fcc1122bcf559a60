from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import betaln, xlog1py, xlogy

from perturb_mpm.posterior import (
    Precision,
    anytime_halfwidth,
    anytime_interval,
    clopper_pearson,
    hoeffding,
    samples_needed,
)

LONGEST = 2000
DELTA = 0.05


def log_ratio(q: float, k: int, n: int) -> float:
    """Return the log of the mixture over the likelihood: q is in the set where below log 1/δ."""
    mixture = betaln(k + 0.5, n - k + 0.5) - betaln(0.5, 0.5)
    return float(mixture - xlogy(k, q) - xlog1py(n - k, -q))


@given(n=st.integers(1, 5000), data=st.data(), delta=st.floats(1e-9, 0.5))
def test_the_ends_solve_their_equation(n: int, data: st.DataObject, delta: float) -> None:
    k = data.draw(st.integers(0, n))
    lower, upper = (float(end) for end in anytime_interval(k, n, delta))
    assert 0 <= lower <= k / n <= upper <= 1
    for end, inwards in ((lower, 1e-10), (upper, -1e-10)):
        if end in (0.0, 1.0) and end == k / n:
            continue
        assert log_ratio(end, k, n) >= math.log(1 / delta) - 1e-9
        assert log_ratio(end + inwards, k, n) < math.log(1 / delta)


def test_unanimous_votes_have_a_closed_form() -> None:
    for n in (1, 10, 500):
        mixture = math.exp(betaln(0.5, n + 0.5) - betaln(0.5, 0.5))
        lower, upper = anytime_interval([0, n], n, DELTA)
        closed = 1 - (mixture * DELTA) ** (1 / n)
        np.testing.assert_allclose(upper, [closed, 1.0], atol=1e-12)
        np.testing.assert_allclose(lower, [0.0, 1 - closed], atol=1e-12)


def test_arrays_of_any_shape() -> None:
    lower, upper = anytime_interval(np.array([[0], [3]]), [4, 8, 20], DELTA)
    assert lower.shape == upper.shape == (2, 3)
    assert upper[1, 2] == anytime_interval(np.uint16(3), 20, DELTA)[1]


def peeked(share: float, paths: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return all (k, n) that some paths of votes pass through, and which path passes which."""
    rng = np.random.default_rng(seed)
    votes = rng.random((paths, LONGEST)) < share
    k = np.cumsum(votes, axis=1)  # (paths, n)
    code = k * (LONGEST + 1) + np.arange(1, LONGEST + 1)
    distinct, inverse = np.unique(code, return_inverse=True)
    return np.stack(np.divmod(distinct, LONGEST + 1)), inverse.reshape(k.shape)


@pytest.mark.parametrize("share", [0.02, 0.3, 0.5])
def test_it_covers_at_every_number_of_samples_at_once(share: float) -> None:
    (k, n), visited = peeked(share, 1000, seed=1)
    lower, upper = anytime_interval(k, n, DELTA)
    missed = ((share < lower) | (share > upper))[visited]  # (paths, n)
    assert missed.any(axis=1).mean() <= DELTA
    assert missed.mean(axis=0).max() <= DELTA


@pytest.mark.parametrize("share", [0.3, 0.5])
def test_a_fixed_interval_fails_under_peeking(share: float) -> None:
    (k, n), visited = peeked(share, 150, seed=2)
    lower, upper = clopper_pearson(k, n, 1 - DELTA)
    missed = ((share < lower) | (share > upper))[visited]
    assert missed.any(axis=1).mean() > 3 * DELTA
    assert missed[:, -1].mean() <= 2 * DELTA


def test_it_costs_less_than_twice_the_width_of_a_fixed_interval() -> None:
    k = np.arange(0, 201)
    anytime = np.diff(anytime_interval(k, 200, DELTA), axis=0)
    fixed = np.diff(clopper_pearson(k, 200, 1 - DELTA), axis=0)
    assert (anytime > fixed).all()
    assert (anytime < 2.2 * fixed).all()


def test_the_halfwidth_of_a_map_is_that_of_its_widest_count() -> None:
    rng = np.random.default_rng(0)
    counts = rng.multinomial(50, [0.7, 0.2, 0.1], size=(6, 7)).transpose(2, 0, 1)
    lower, upper = anytime_interval(counts, 50, DELTA)
    widest = np.maximum(counts / 50 - lower, upper - counts / 50).max()
    for kind in (np.uint16, np.int64):
        assert anytime_halfwidth(counts.astype(kind), 50, DELTA) == pytest.approx(widest)


@pytest.mark.parametrize("scope", ["voxel", "map"])
def test_precision_is_reached_where_the_halfwidth_says_so(scope: str) -> None:
    rng = np.random.default_rng(1)
    mask = rng.random((8, 9)) < 0.5
    for samples in (100, 400, 1500, 4000):
        counts = rng.multinomial(samples, [0.6, 0.3, 0.1], size=(8, 9)).transpose(2, 0, 1)
        for inside in (None, mask):
            chosen = counts.reshape(3, -1) if inside is None else counts[:, inside]
            level = DELTA / 3 / (chosen.shape[1] if scope == "map" else 1)
            width = anytime_halfwidth(chosen, samples, level)
            assert Precision(width * 1.0001, DELTA, scope).is_reached(counts, samples, inside)
            assert not Precision(width * 0.9999, DELTA, scope).is_reached(counts, samples, inside)


def test_only_the_mask_counts() -> None:
    counts = np.array([[500, 250], [0, 250]], dtype=np.uint16)
    precision = Precision(0.02, 0.05)
    assert precision.is_reached(counts, 500, mask=[1, 0])
    assert not precision.is_reached(counts, 500)


@pytest.mark.parametrize(
    ("precision", "labels", "voxels"),
    [
        (Precision(0.1, 0.05), 2, 1),
        (Precision(0.05, 0.05), 4, 1),
        (Precision(0.05, 0.05, "map"), 4, 10**6),
        (Precision(0.03, 0.2), 5, 1),
        (Precision(0.3, 0.01), 3, 1),
    ],
)
def test_samples_to_reach_is_enough_for_every_split_and_no_more(
    precision: Precision, labels: int, voxels: int
) -> None:
    worst = precision.samples_to_reach(labels, voxels)
    level = precision.level(labels, voxels)

    def widest(n: int) -> float:
        return anytime_halfwidth(np.arange(n + 1)[np.newaxis], n, level)

    assert widest(worst) <= precision.epsilon * (1 + 1e-6)
    assert widest(int(worst * 0.98) - 1) > precision.epsilon
    half = precision.samples_to_reach(labels, voxels, share=0.5)
    none = precision.samples_to_reach(labels, voxels, share=0.0)
    assert none < half <= worst
    assert half >= 0.8 * worst
    together = voxels if precision.scope == "map" else 1
    assert worst > samples_needed(precision.epsilon, precision.delta, labels, together)


def test_samples_to_reach_for_unanimous_votes_is_exact() -> None:
    precision = Precision(0.04, 0.1)
    n = precision.samples_to_reach(3, share=0.0)
    for samples, enough in ((n, True), (n - 1, False)):
        unanimous = np.array([[samples], [0], [0]])
        assert precision.is_reached(unanimous, samples) is enough


def test_stopping_when_it_is_reached_keeps_the_promise() -> None:
    f = np.array([0.55, 0.3, 0.15])
    precision = Precision(0.08, 0.1)
    worst = precision.samples_to_reach(labels=3)
    rng = np.random.default_rng(4)
    stops, missed = [], 0
    for _ in range(150):
        counts = np.zeros((3, 1), dtype=np.int64)
        samples = 0
        while samples == 0 or not precision.is_reached(counts, samples):
            counts[:, 0] += rng.multinomial(5, f)
            samples += 5
        stops.append(samples)
        missed += bool((np.abs(counts[:, 0] / samples - f) > precision.epsilon).any())
    assert missed / 150 <= precision.delta
    assert max(stops) <= worst + 5


def test_a_precision_out_of_reach_says_how_many_samples_it_takes() -> None:
    precision = Precision(0.05, 0.05)
    worst = precision.samples_to_reach(labels=4)
    with pytest.raises(ValueError, match=rf"within 500 samples, got one that takes up to {worst} "):
        precision.check_reachable(500, labels=4)
    with pytest.raises(ValueError, match=f"allow {worst} samples or widen epsilon"):
        precision.check_reachable(worst - 1, labels=4)
    precision.check_reachable(worst, labels=4)


def test_stopping_early_costs_more_than_a_fixed_number() -> None:
    n = Precision(0.05, 0.05).samples_to_reach(labels=4)
    assert hoeffding(n, 0.05, labels=4) < 0.05
    assert 1.4 < n / samples_needed(0.05, 0.05, labels=4) < 1.8
