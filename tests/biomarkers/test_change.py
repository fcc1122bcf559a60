"""Changes between two scans: hand-computed, and phantoms that grew or did not."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

import perturb_mpm as pm
from perturb_mpm.biomarkers import (
    RANO_VOLUME,
    LearnedLaw,
    ResponseLimits,
    fit_correlation,
    sampled_change,
)
from perturb_mpm.noise import Perturbation
from perturb_mpm.sampling import share_noise

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


def test_moved_samples_have_the_law_and_keep_their_order() -> None:
    samples = np.exp(3 + 0.2 * np.random.default_rng(0).normal(size=400))
    law = LearnedLaw("volume", shift=0.2, floor=0.5, trust=1.0, cases=20)
    moved = law.move(samples)
    assert (np.diff(moved[np.argsort(samples)]) > 0).all()
    np.testing.assert_allclose(np.quantile(moved, [0.025, 0.975]), law.widen(samples), rtol=0.1)
    undefined = law.move([1.0, math.nan, 2.0])
    assert np.isnan(undefined).tolist() == [False, True, False]


def test_equal_samples_get_the_floor_and_no_shared_order() -> None:
    law = LearnedLaw("size", shift=0.0, floor=0.3, trust=1.0, cases=20)
    one, other = (law.move([20.0] * 200, seed) for seed in (0, 1))
    assert np.log1p(one).std() > 0.2
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.2


def simulated_pairs(correlation: float, count: int, seed: int) -> tuple[list, list]:
    """Samples of both scans of unchanged patients whose log errors have sd 0.2."""
    rng = np.random.default_rng(seed)
    covariance = 0.04 * np.array([[1, correlation], [correlation, 1]])
    errors = rng.multivariate_normal([0, 0], covariance, size=count)
    spread = 0.2 * rng.normal(size=200)
    before, after = (
        [np.exp(3 + error + spread - np.median(spread)) for error in errors[:, k]] for k in (0, 1)
    )
    return before, after


def test_the_correlation_of_errors_is_found_and_its_limit_is_kept() -> None:
    found = fit_correlation(*simulated_pairs(0.7, 2000, seed=1))
    assert found is not None
    assert found.estimate == pytest.approx(0.7, abs=0.05)
    limits = []
    for seed in range(200):
        each = fit_correlation(*simulated_pairs(0.5, 12, seed))
        assert each is not None
        limits.append(each.lower)
    above = np.mean(np.array(limits) > 0.5)
    assert above <= 0.09  # 5 %, and three standard errors of 200 trials


def test_errors_that_samples_do_not_see_teach_no_correlation() -> None:
    before, after = simulated_pairs(0.0, 30, seed=3)
    narrow = [np.median(each) + (each - np.median(each)) / 5 for each in before]
    found = fit_correlation(narrow, after)
    assert found is not None
    assert found.lower == 0
    assert fit_correlation([[1.0, 1.0]], [[2.0, 2.0]]) is None


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


def test_shared_noise_is_too_sure_where_errors_are_independent() -> None:
    """The control of a correlation: errors that are not shared must not be said to cancel."""
    verdicts = []
    for patient in range(PATIENTS // 2):
        volumes = []
        for number in (1, 2):
            p = 1 / (1 + np.exp(-scan(RADIUS_MM, 1000 + 2 * patient + number - 1)))
            crf = pm.DenseCRF(pm.unary_from_probabilities(np.stack([1 - p, p])))
            sampler = pm.Sampler(crf, pm.Sampling(samples=40, noise_length=LENGTH_MM, iterations=1))
            shared = share_noise(Perturbation(7, lengths=((LENGTH_MM, 1.0),)), number, 7, 0.99)
            volumes.append(sampler.with_perturbation(shared).draw().volumes[:, 1])
        verdicts.append(sampled_change(*volumes, paired=True).verdict)
    assert verdicts.count("grew") > 0.2 * PATIENTS // 2


def test_growth_that_is_large_enough_is_seen() -> None:
    counts = [count_grown(growth, LENGTH_MM, PATIENTS // 4) for growth in (0.2, 4.0)]
    assert counts[0] < counts[1]
    assert counts[1] >= 0.8 * PATIENTS // 4
