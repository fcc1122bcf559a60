"""Changes between two scans: hand-computed, and phantoms that grew or did not."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

import perturb_mpm as pm
from perturb_mpm.biomarkers import (
    RANO_VOLUME,
    ResponseLimits,
    sampled_change,
    stretch_samples,
)
from perturb_mpm.noise import Perturbation

SHAPE, LENGTH_MM, RADIUS_MM = (14, 14, 14), 6.0, 4.0
PATIENTS = 40


def test_every_pair_counts_where_errors_are_independent() -> None:
    found = sampled_change([10.0, 12.0], [11.0, 12.0, 20.0])
    differences = sorted(b - a for a in (10, 12) for b in (11, 12, 20))
    assert sorted(found.difference.values) == differences
    assert found.grew == 4 / 6  # +1, +2, +10, +8; 0 and −1 are no growth
    assert found.classes is None


def test_paired_samples_are_compared_with_their_partner() -> None:
    found = sampled_change([10.0, 20.0, 30.0], [11.0, 21.0, 31.0], paired=True)
    assert found.difference.lower == found.difference.upper == found.difference.median == 1
    assert found.verdict == "grew"
    assert sampled_change([10.0, 20.0, 30.0], [11.0, 21.0, 31.0]).verdict == "unclear"
    with pytest.raises(ValueError, match="as many"):
        sampled_change([1.0], [1.0, 2.0], paired=True)


def test_classes_by_hand() -> None:
    before = [10.0] * 4 + [0.0, 0.0]
    after = [14.0, 13.9, 3.5, 3.6, 1.0, 0.0]
    found = sampled_change(before, after, paired=True, limits=RANO_VOLUME)
    assert found.classes == pytest.approx(
        {"progression": 2 / 6, "stable": 3 / 6, "response": 1 / 6}
    )
    assert found.relative.undefined == 2


def test_the_smallest_change_is_half_the_interval() -> None:
    found = sampled_change(np.linspace(-1, 1, 101) + 10, [10.0])
    assert found.smallest == pytest.approx(0.95)


@pytest.mark.parametrize(("progression", "response"), [(0.0, -0.5), (0.4, 0.1), (0.4, -1.5)])
def test_limits_that_are_none_are_refused(progression: float, response: float) -> None:
    with pytest.raises(ValueError, match=r"progression|response"):
        ResponseLimits("own", progression, response)


def test_stretching_moves_the_ends_and_keeps_the_median() -> None:
    samples = np.exp(np.random.default_rng(0).normal(size=2001))
    wide = stretch_samples(samples, samples, (0.01, 50.0), 0.1)
    low, middle, high = np.quantile(wide, [0.025, 0.5, 0.975])
    assert (low, high) == pytest.approx((0.01, 50.0), rel=0.05)
    assert middle == pytest.approx(np.median(samples))
    assert (np.diff(wide[np.argsort(samples)]) >= 0).all()
    own = np.quantile(samples, [0.025, 0.975])
    same = stretch_samples(samples, samples, (own[0], own[1]), 0.1)
    np.testing.assert_allclose(same, samples, rtol=2e-3)
    assert (stretch_samples([1.0, 1.0], [1.0, 1.0], (0.5, 2.0), 0.1) == 1).all()


def scan(radius_mm: float, seed: int) -> NDArray[np.float64]:
    """Log-odds (X, Y, Z) of a ball whose errors are as correlated in space as the noise."""
    axes = np.meshgrid(*(np.arange(n) - (n - 1) / 2 for n in SHAPE), indexing="ij")
    outside = np.sqrt(sum(axis**2 for axis in axes)) - radius_mm
    noise = Perturbation(seed, lengths=((LENGTH_MM, 1.0),))
    background, ball = -noise.energies(np.zeros((2, outside.size)), pm.Grid(SHAPE), [0])[0]
    return -2.0 * outside + (ball - background).reshape(SHAPE)


def sampled_ml(
    log_odds: NDArray[np.float64], noise_length: float, seed: int
) -> NDArray[np.float64]:
    p = 1 / (1 + np.exp(-log_odds))
    crf = pm.DenseCRF(pm.unary_from_probabilities(np.stack([1 - p, p])))
    found = pm.sample(crf, samples=40, seed=seed, noise_length=noise_length, iterations=1)
    return found.volumes[:, 1] / 1000


def count_grown(growth: float, noise_length: float, patients: int) -> int:
    """How many of some patients are said to have grown, by the 95 % interval."""
    later = RADIUS_MM * math.cbrt(1 + growth)
    verdicts = []
    for patient in range(patients):
        scans = scan(RADIUS_MM, 1000 + 2 * patient), scan(later, 1001 + 2 * patient)
        before, after = (sampled_ml(each, noise_length, 7) for each in scans)
        verdicts.append(sampled_change(before, after).verdict)
    return verdicts.count("grew")


def test_patients_who_did_not_grow_are_not_said_to_have_grown() -> None:
    assert count_grown(0.0, LENGTH_MM, PATIENTS) <= 0.05 * PATIENTS


def test_white_noise_calls_errors_growth() -> None:
    """The control: independent noise makes volumes far too certain."""
    assert count_grown(0.0, 0.0, PATIENTS // 2) > 0.2 * PATIENTS // 2


def test_growth_that_is_large_enough_is_seen() -> None:
    counts = [count_grown(growth, LENGTH_MM, PATIENTS // 4) for growth in (0.2, 4.0)]
    assert counts[0] < counts[1]
    assert counts[1] >= 0.8 * PATIENTS // 4
