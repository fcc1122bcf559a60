"""The comparators agree with each other, and with the truth, where theory says they must."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import chisquare

import perturb_mpm as pm
from helpers.agreement import disagreement, size_distribution
from helpers.oracle import softmax
from helpers.problems import random_problem
from lab.comparators import (
    Enumeration,
    contours,
    exact,
    full_perturbation,
    gibbs,
    independent,
    perturb_and_map,
    unary_only,
)
from lab.comparators.distances import total_variation
from perturb_mpm.noise.gumbel import gumbel
from perturb_mpm.posterior.posterior import Posterior
from perturb_mpm.sampling import sample

SAMPLES = 20_000
Comparator = Callable[[pm.DenseCRF, int | range, int], Posterior]


def from_mean_field(crf: pm.DenseCRF, samples: int | range, seed: int) -> Posterior:
    return independent(crf, samples, seed, engine="reference")


def around_the_modes_contour(crf: pm.DenseCRF, samples: int | range, seed: int) -> Posterior:
    region = np.zeros(crf.shape)
    region[:, 0] = 1
    return contours(region, samples, seed, amplitude_mm=1.0, length_mm=2.0)


EXACT = [exact, full_perturbation, gibbs]
OF_A_CRF = [*EXACT, perturb_and_map, from_mean_field, unary_only]
ALL = [*OF_A_CRF, around_the_modes_contour]


def uncoupled(n_labels: int) -> pm.DenseCRF:
    rng = np.random.default_rng(n_labels)
    return pm.DenseCRF(unary=1.5 * rng.normal(size=(n_labels, 2, 2)))


@pytest.mark.parametrize("comparator", OF_A_CRF)
@pytest.mark.parametrize("n_labels", [2, 3, 5])
def test_without_coupling_all_follow_the_unaries(comparator: Comparator, n_labels: int) -> None:
    crf = uncoupled(n_labels)
    truth = softmax(-crf.energies).reshape(n_labels, 2, 2)
    assert disagreement(comparator(crf, SAMPLES, 11).marginals, truth, SAMPLES) < 4


@pytest.mark.parametrize("n_labels", [3, 5])
@pytest.mark.parametrize(
    ("module", "comparator"), [("enumeration", perturb_and_map), ("common", unary_only)]
)
def test_noise_of_the_wrong_sign_fails_the_same_test(
    module: str, comparator: Comparator, n_labels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = importlib.import_module(f"lab.comparators.{module}")
    monkeypatch.setattr(where, "gumbel", lambda *arguments: -gumbel(*arguments))
    crf = uncoupled(n_labels)
    truth = softmax(-crf.energies).reshape(n_labels, 2, 2)
    assert disagreement(comparator(crf, SAMPLES, 11).marginals, truth, SAMPLES) > 8


@pytest.mark.parametrize("comparator", EXACT)
@pytest.mark.parametrize(("n_labels", "weight"), [(2, 3.0), (3, 1.0), (4, 2.0)])
def test_exact_samplers_have_the_marginals_of_enumeration(
    comparator: Comparator, n_labels: int, weight: float
) -> None:
    crf, oracle = random_problem(n_labels, (2, 3), n_labels, weight=weight, matrix=False)
    truth = oracle.exact_marginals().reshape(n_labels, 2, 3)
    # Neighbouring sweeps of a Gibbs chain are dependent: count them for less.
    worth = SAMPLES / 4 if comparator is gibbs else SAMPLES
    assert disagreement(comparator(crf, SAMPLES, 3).marginals, truth, worth) < 4


@pytest.mark.parametrize("comparator", [exact, full_perturbation])
def test_exact_samplers_have_the_joint_distribution(comparator: Comparator) -> None:
    crf, oracle = random_problem(2, (2, 3), 3, weight=2.0)
    volumes = comparator(crf, SAMPLES, 5).volumes
    sizes = np.rint(6 * volumes[:, 1] / volumes[0].sum()).astype(int)
    expected = SAMPLES * size_distribution(oracle.all_energies(), label=1)
    assert chisquare(np.bincount(sizes, minlength=7), expected).pvalue > 0.01


def test_order_one_is_not_exact_under_coupling() -> None:
    crf, oracle = random_problem(2, (2, 3), 2, weight=3.0)
    truth = oracle.exact_marginals().reshape(2, 2, 3)
    assert disagreement(perturb_and_map(crf, SAMPLES, 3).marginals, truth, SAMPLES) > 8
    # It is nearer to the truth than what takes no notice of the coupling.
    near = total_variation(perturb_and_map(crf, SAMPLES, 3).marginals, truth)
    assert near < total_variation(unary_only(crf, SAMPLES, 3).marginals, truth) / 2


def test_order_one_is_the_least_perturbed_energy() -> None:
    crf, _ = random_problem(4, (2, 3), 3)
    table = Enumeration(crf)._table
    states = table.labels(np.arange(table.states))  # (L^N, N)
    energies = np.array([crf.energy(state.reshape(2, 3)) for state in states])
    noise = gumbel(8, range(20), crf.grid.index, 3)
    expected = [states[(energies - g[states, np.arange(6)].sum(axis=1)).argmin()] for g in noise]
    volumes = perturb_and_map(crf, 20, 8).volumes
    sizes = (np.array(expected)[:, :, np.newaxis] == np.arange(3)).sum(axis=1)
    np.testing.assert_allclose(6 * volumes / volumes[0].sum(), sizes)


def test_without_coupling_order_one_and_the_unaries_are_one_under_common_noise() -> None:
    crf = uncoupled(4)
    one, other = perturb_and_map(crf, 500, 2), unary_only(crf, 500, 2)
    np.testing.assert_array_equal(one.counts, other.counts)
    np.testing.assert_array_equal(one.volumes, other.volumes)


def test_it_is_the_noise_of_perturb_and_mpm() -> None:
    crf = uncoupled(4)
    ours, theirs = sample(crf, 500, 2, engine="reference"), perturb_and_map(crf, 500, 2)
    np.testing.assert_array_equal(ours.counts, theirs.counts)
    np.testing.assert_array_equal(ours.volumes, theirs.volumes)
    assert ours.problem == theirs.problem


def test_perturb_and_mpm_goes_with_order_one_under_common_noise() -> None:
    crf, _ = random_problem(2, (2, 3), 3)
    ours, theirs = sample(crf, 2000, 2, engine="reference"), perturb_and_map(crf, 2000, 2)
    stranger = perturb_and_map(crf, 2000, 3)
    same, by_chance = (
        (ours.volumes == other.volumes).all(axis=1).mean() for other in (theirs, stranger)
    )
    assert same > 3 * by_chance


def test_samples_from_mean_field_have_its_marginals() -> None:
    crf, _ = random_problem(5, (3, 4), 3, weight=2.0)
    q = pm.mean_field(crf, engine="reference").marginals
    assert disagreement(from_mean_field(crf, SAMPLES, 1).marginals, q, SAMPLES) < 4


def test_certain_mean_field_does_not_break() -> None:
    unary = np.zeros((3, 2))
    unary[0] = -5000.0
    assert (from_mean_field(pm.DenseCRF(unary=unary), 50, 0).counts[0] == 50).all()


@pytest.mark.parametrize("comparator", ALL)
def test_ranges_add_up_to_what_one_run_gives(comparator: Comparator) -> None:
    crf, _ = random_problem(6, (2, 3), 3, weight=0.5)
    parts = [comparator(crf, part, 4) for part in (range(7), range(7, 60), range(60, 101))]
    merged = parts[1].merge(parts[0], parts[2])
    assert merged == comparator(crf, 101, 4)
    assert merged != comparator(crf, 101, 5)


@pytest.mark.parametrize("comparator", OF_A_CRF)
def test_samples_of_another_problem_or_method_do_not_merge(comparator: Comparator) -> None:
    crf, _ = random_problem(6, (2, 3), 3)
    other, _ = random_problem(6, (2, 3), 3, weight=1.1)
    mine = comparator(crf, range(5), 4)
    with pytest.raises(ValueError, match="problem"):
        mine.merge(comparator(other, range(5, 9), 4))
    elsewhere = unary_only if comparator is exact else exact
    with pytest.raises(ValueError, match="method"):
        mine.merge(elsewhere(crf, range(5, 9), 4))


def test_streams_of_random_numbers_are_all_different() -> None:
    from lab.comparators.common import generator

    names = [
        (method, seed, number)
        for method in ("exact", "full_perturbation", "contours", "gibbs")
        for seed in (0, 1, 5, 2**32, 2**32 + 1, 2**64 - 1)
        for number in (0, 1, 2)
    ]
    assert len({generator(*name).random() for name in names}) == len(names)


def test_batches_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    crf, _ = random_problem(6, (2, 3), 3)
    comparators = [perturb_and_map, full_perturbation, unary_only]
    whole = [comparator(crf, 40, 4) for comparator in comparators]
    monkeypatch.setattr("lab.comparators.common._NOISE_AT_ONCE", 50)
    monkeypatch.setattr("lab.comparators.enumeration._ENERGIES_AT_ONCE", 50)
    assert [comparator(crf, 40, 4) for comparator in comparators] == whole
