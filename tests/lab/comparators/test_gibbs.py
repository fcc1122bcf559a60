from __future__ import annotations

import warnings

import numpy as np
import pytest

import perturb_mpm as pm
from helpers.agreement import disagreement
from helpers.problems import NORMALIZATIONS, random_problem
from lab.comparators import Enumeration, GridCRF, gibbs, run_chains
from lab.comparators.gibbs import effective_samples, split_r_hat


def bimodal(weight: float) -> pm.DenseCRF:
    """Sixteen voxels without a preference: all of one label, or all of the other."""
    kernel = pm.SpatialKernel(sigma=2.0, weight=weight)
    return pm.DenseCRF(unary=np.zeros((2, 4, 4)), kernels=[kernel])


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@pytest.mark.parametrize("matrix", [False, True])
def test_marginals_are_those_of_enumeration(normalization: str, matrix: bool) -> None:
    crf, oracle = random_problem(6, (2, 3), 3, normalization=normalization, matrix=matrix)
    chains = run_chains(crf, 5000, 1)
    worth = min(chains.effective_samples.values())
    assert 2000 < worth < 25_000
    for l in range(3):
        frequencies = (chains.labels == l).mean(axis=(0, 1))
        assert disagreement(frequencies, oracle.exact_marginals()[l], worth) < 4
    assert max(chains.r_hat.values()) < 1.01


def test_samples_without_coupling_are_those_of_the_unaries() -> None:
    unary = np.random.default_rng(3).normal(size=(4, 3, 3))
    crf = pm.DenseCRF(unary=unary)
    frequencies = gibbs(crf, 8000, 2).marginals
    assert disagreement(frequencies, Enumeration(crf).marginals, 8000) < 4


def test_energies_are_tracked_exactly_over_many_sweeps() -> None:
    crf, _ = random_problem(7, (3, 4), 3, weight=3.0)
    chains = run_chains(crf, 700, 4, chains=5, burn_in=3)
    assert chains.labels.shape == (5, 700, 12)
    for chain in range(5):
        for n in (0, 300, 699):
            labels = chains.labels[chain, n].reshape(3, 4)
            assert chains.energies[chain, n] == pytest.approx(crf.energy(labels), abs=6e-7)


def test_chains_start_far_apart() -> None:
    chains = run_chains(bimodal(100.0), 1, 0, chains=2, burn_in=0)
    assert [set(labels.ravel()) for labels in chains.labels] == [{0}, {1}]


def test_burn_in_and_thinning_only_choose_sweeps() -> None:
    crf, _ = random_problem(8, (2, 3), 2)
    every = run_chains(crf, 600, 9, burn_in=0, chains=3)
    later = run_chains(crf, 300, 9, burn_in=300, chains=3)
    thinned = run_chains(crf, 100, 9, burn_in=300, thin=3, chains=3)
    np.testing.assert_array_equal(later.labels, every.labels[:, 300:])
    np.testing.assert_array_equal(thinned.labels, every.labels[:, 302::3])
    np.testing.assert_array_equal(thinned.energies, every.energies[:, 302::3])


def test_samples_are_taken_from_the_chains_in_turn() -> None:
    crf, _ = random_problem(8, (2, 3), 2)
    chains = run_chains(crf, 4, 9, chains=3)
    expected = chains.labels[:, :3].swapaxes(0, 1).reshape(9, 6)[:8]
    volumes = gibbs(crf, 8, 9, chains=3).volumes
    np.testing.assert_allclose(volumes[:, 1] / volumes[0].sum(), (expected == 1).mean(axis=1))


def test_r_hat_is_near_one_where_chains_mix_and_large_where_they_are_stuck() -> None:
    mixing = run_chains(bimodal(0.3), 2000, 0)
    assert max(mixing.r_hat.values()) < 1.02
    stuck = run_chains(bimodal(100.0), 2000, 0)
    assert stuck.r_hat["the share of label 1"] > 5


def test_standing_still_at_one_energy_is_no_disagreement() -> None:
    stuck = run_chains(bimodal(100.0), 200, 0)
    assert np.ptp(stuck.energies) == 0
    assert stuck.r_hat["the energy"] == 1


def test_a_stuck_run_is_reported() -> None:
    for samples in (200, 2000):
        with pytest.warns(
            pm.ConvergenceWarning, match=r"not mixed: R-hat of the share of label \d"
        ):
            gibbs(bimodal(100.0), samples, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gibbs(bimodal(0.3), 2000, 0)
        gibbs(bimodal(100.0), 196, 0)  # 49 sweeps a chain: too few to tell


def test_a_grid_crf_and_a_mask() -> None:
    rng = np.random.default_rng(5)
    mask = np.array([[1, 1, 0], [1, 1, 1]])
    crf = GridCRF(rng.normal(size=(2, 2, 3)), weight=1.0, mask=mask)
    frequencies = gibbs(crf, 8000, 2).marginals
    assert disagreement(frequencies, Enumeration(crf).marginals, 3000) < 4


def test_r_hat_of_known_draws() -> None:
    rng = np.random.default_rng(0)
    draws = rng.normal(size=(4, 2000))
    assert split_r_hat(draws) == pytest.approx(1.0, abs=0.01)
    shifted = draws + np.array([[0.0], [0.0], [3.0], [3.0]])
    # Eight halves, four at 0 and four at 3: variance 18/7 between, 1 within.
    assert split_r_hat(shifted) == pytest.approx(np.sqrt(1 + 18 / 7), rel=0.03)
    drift = draws + np.linspace(0, 4, 2000)
    assert split_r_hat(drift) > 1.3
    still = np.zeros((2, 10))
    assert split_r_hat(still) == 1
    assert split_r_hat(still + np.array([[0.0], [1.0]])) == np.inf
    assert np.isnan(split_r_hat(draws[:, :3]))


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9, -0.4])
def test_effective_samples_of_an_autoregression(correlation: float) -> None:
    rng = np.random.default_rng(1)
    draws = np.empty((4, 20_000))
    draws[:, 0] = rng.normal(size=4)
    noise = rng.normal(size=draws.shape) * np.sqrt(1 - correlation**2)
    for t in range(1, draws.shape[1]):
        draws[:, t] = correlation * draws[:, t - 1] + noise[:, t]
    expected = draws.size * (1 - correlation) / (1 + correlation)
    assert effective_samples(draws) == pytest.approx(expected, rel=0.1)


def test_effective_samples_where_there_is_nothing_to_measure() -> None:
    assert np.isnan(effective_samples(np.zeros((2, 10))))
    assert np.isnan(effective_samples(np.ones((2, 3))))
