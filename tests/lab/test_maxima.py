"""Whether MAP and MPM coincide, expectations over runs, and the drawings of figures 1 and 2."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from lab.comparators import Enumeration, perturb_and_map
from lab.synthetic import illustrations, maxima
from lab.synthetic.measuring import (
    KernelSetting,
    curve,
    fixed_field_votes,
    mean_field_marginals,
    noise_seed,
    problem,
    sample_labels,
    votes,
    votes_of_runs,
)

WEAK = KernelSetting(0.0, 1.0, self_term=False)
STRONG = KernelSetting(1.0, 1.0, self_term=False)


def test_without_coupling_the_maxima_coincide_in_every_sample() -> None:
    found = maxima.compare_maxima(6, 0, WEAK, 200, 0)
    assert found.coinciding == 1.0
    assert found.hamming_loss == found.between == 0.0
    assert found.map_error == found.mpm_error


def test_the_audits_shares_are_found_again() -> None:
    rows = [maxima.compare_maxima(6, draw, STRONG, 1000, 0) for draw in range(20)]
    mean = maxima.mean_row(rows, 6)
    assert mean.coinciding == pytest.approx(0.76, abs=0.01)
    assert maxima.already_in_map(mean) == pytest.approx(0.88, abs=0.03)
    assert all(row.between <= row.hamming_loss for row in rows)
    assert mean.fixed_field < 0.015
    assert mean.algorithm > 0.05


def test_both_labellings_are_those_of_the_samplers() -> None:
    crf, noise = problem(6, 3, STRONG), noise_seed(0, 3)
    by_map = perturb_and_map(crf, 100, noise).counts[1].ravel() / 100
    by_mpm = votes(crf, [100], noise)[0] / 100
    exact = Enumeration(crf).marginals[1].ravel()
    found = maxima.compare_maxima(6, 3, STRONG, 100, 0)
    assert found.map_error == pytest.approx(np.abs(by_map - exact).mean())
    assert found.mpm_error == pytest.approx(np.abs(by_mpm - exact).mean())


def test_noise_on_the_fixed_field_gives_its_marginals_back() -> None:
    crf, samples = problem(9, 1, STRONG), 40_000
    q = mean_field_marginals(crf)
    wrong = sample_labels(crf, range(samples), 1).mean(axis=0)
    right = fixed_field_votes(crf, samples, 1) / samples
    bound = 4 * np.sqrt(0.25 / samples)
    assert np.abs(right - q).max() < bound
    assert np.abs(wrong - q).max() > 3 * bound  # Algorithm 1 is not of that law


def test_runs_are_parts_of_one_stream() -> None:
    crf = problem(6, 0, STRONG)
    tens, hundreds = votes_of_runs(crf, [10, 100], 3)
    assert tens.shape == (10, 6)
    np.testing.assert_array_equal(tens.sum(axis=0), hundreds[0])
    np.testing.assert_array_equal(hundreds[0], votes(crf, [100], 3)[0])


def test_the_expected_error_of_votes_is_that_of_the_binomial_law() -> None:
    rows = {r.samples: r for r in curve(6, 0, STRONG, (10, 20_000), 0) if r.estimator == "votes"}
    crf = problem(6, 0, STRONG)
    truth = Enumeration(crf).marginals[1].ravel()
    share = votes(crf, [20_000], noise_seed(0, 0))[0] / 20_000  # (N,)
    from scipy.stats import binom

    k = np.arange(11)[:, np.newaxis]
    expected = (binom.pmf(k, 10, share) * np.abs(k / 10 - truth)).sum(axis=0).mean()
    row = rows[10]
    assert row.runs == 400
    assert abs(row.total_variation - expected) < 4 * row.total_variation_run_error + 0.002


def test_the_overview_shows_samples_of_the_sampler() -> None:
    found = illustrations.compute_overview()
    counted = np.zeros_like(found.posterior.counts)
    assert len(found.fields) == illustrations.SHOWN
    first = illustrations.sample(
        found.crf, illustrations.SHOWN, 0, iterations=illustrations.ITERATIONS, engine="reference"
    )
    for field in found.fields:
        for label in range(found.crf.n_labels):
            counted[label] += field.argmax(axis=0) == label
    np.testing.assert_array_equal(counted, first.counts)
    points = illustrations.uncertain_voxels(found.posterior.entropy)
    apart = [max(abs(a - c), abs(b - d)) for (a, b), (c, d) in product(points, points)]
    assert sorted(apart)[3] > 5


def test_p_and_q_of_a_perturbed_problem_are_distributions() -> None:
    found = illustrations.perturbed_problem(0, 3, 0)
    assert found.p.sum() == pytest.approx(1)
    assert found.q.sum() == pytest.approx(1)
    assert not found.coincide
    assert illustrations.perturbed_problem(0, 0, 0).coincide
