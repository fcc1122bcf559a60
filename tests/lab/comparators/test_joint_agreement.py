"""Whole labellings, partition functions and cold limits: where the samplers must agree jointly."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import chisquare

import perturb_mpm as pm
from helpers.label_maps import comparator_maps
from helpers.problems import random_problem
from lab.comparators import (
    Enumeration,
    GridCRF,
    exact,
    full_perturbation,
    gibbs,
    independent,
    perturb_and_map,
)
from perturb_mpm.noise.gumbel import gumbel
from perturb_mpm.posterior.posterior import Posterior

SAMPLES = 8000
Model = pm.DenseCRF | GridCRF
Comparator = Callable[[Model, int, int], Posterior]


def thinned_gibbs(crf: Model, samples: int, seed: int) -> Posterior:
    """Every tenth sweep: on a handful of voxels as good as independent."""
    return gibbs(crf, samples, seed, thin=10)


def from_mean_field(crf: Model, samples: int, seed: int) -> Posterior:
    return independent(crf, samples, seed, engine="reference")


def joint_p_value(crf: Model, comparator: Comparator, seed: int = 5) -> float:
    """Pearson's test of the frequencies of all L^N labellings against enumeration."""
    maps = comparator_maps(comparator, crf, SAMPLES, seed).astype(np.int64)  # (S, N)
    n_labels, voxels = crf.energies.shape
    powers = n_labels ** np.arange(voxels - 1, -1, -1)
    seen = np.bincount(maps @ powers, minlength=n_labels**voxels)
    states = np.arange(n_labels**voxels)[:, np.newaxis] // powers % n_labels
    expected = SAMPLES * Enumeration(crf).probability(states)
    # Labellings too rare for the test's approximation count as one.
    rare = expected < 5
    pooled = [np.append(a[~rare], a[rare].sum()) for a in (seen, expected)]
    return float(chisquare(*pooled).pvalue)


PROBLEMS: dict[str, Callable[[], Model]] = {
    "potts": lambda: random_problem(3, (2, 3), 2, weight=2.0, matrix=False)[0],
    "matrix": lambda: random_problem(4, (2, 2), 3, weight=1.5)[0],
    "grid": lambda: GridCRF(np.random.default_rng(6).normal(size=(3, 2, 2)), weight=1.0),
}


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("comparator", [exact, full_perturbation, thinned_gibbs])
def test_whole_labellings_have_the_probability_of_enumeration(
    comparator: Comparator, problem: str
) -> None:
    assert joint_p_value(PROBLEMS[problem](), comparator) > 0.005


@pytest.mark.parametrize("comparator", [perturb_and_map, from_mean_field])
def test_samplers_that_are_not_exact_fail_the_same_test(comparator: Comparator) -> None:
    assert joint_p_value(PROBLEMS["potts"](), comparator) < 1e-6


@pytest.mark.parametrize("comparator", [exact, full_perturbation, thinned_gibbs, perturb_and_map])
def test_without_coupling_all_are_exact_jointly(comparator: Comparator) -> None:
    crf = pm.DenseCRF(unary=np.random.default_rng(2).normal(size=(3, 4)))
    assert joint_p_value(crf, comparator) > 0.005


@pytest.mark.parametrize("comparator", [exact, full_perturbation, perturb_and_map, thinned_gibbs])
def test_at_temperature_zero_all_give_the_most_probable_labelling(comparator: Comparator) -> None:
    rng = np.random.default_rng(0)
    kernel = pm.SpatialKernel(sigma=1.5, weight=900.0)
    crf = pm.DenseCRF(unary=500 * rng.normal(size=(3, 2, 3)), kernels=[kernel])
    truth = Enumeration(crf)
    assert (truth.labels != crf.energies.argmin(axis=0).reshape(2, 3)).any()  # coupling matters
    np.testing.assert_array_equal(comparator(crf, 50, 1).labels, truth.labels)
    assert (comparator(crf, 50, 1).counts.max(axis=0) == 50).all()


@pytest.mark.parametrize("weight", [0.0, 3.0, 6.0])
def test_the_perturbed_maximum_bounds_the_partition_function(weight: float) -> None:
    """E max_x {Σ_i γ_i(x_i) − E(x)} ≥ log Z with noise of mean 0 (Hazan & Jaakkola, ICML 2012).

    Without coupling it is equal.
    """
    crf, _ = random_problem(7, (2, 3), 3, weight=weight, matrix=False)
    maps = comparator_maps(perturb_and_map, crf, SAMPLES, 2)  # (S, N)
    noise = gumbel(2, range(SAMPLES), crf.grid.index, 3).astype(np.float64)  # (S, L, N)
    gained = np.take_along_axis(noise, maps[:, np.newaxis].astype(np.int64), axis=1)[:, 0]
    states, number = np.unique(maps, axis=0, return_inverse=True)
    energies = np.array([crf.energy(state.reshape(2, 3)) for state in states])[number]
    maxima = gained.sum(axis=1) - energies - 6 * np.euler_gamma  # (S,)
    error = maxima.std() / np.sqrt(SAMPLES)
    above = (maxima.mean() - Enumeration(crf).log_z) / error
    if weight == 0:
        assert abs(above) < 4
    else:
        assert above > 4
