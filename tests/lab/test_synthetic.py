from __future__ import annotations

import warnings

import numpy as np
import pytest

import perturb_mpm as pm
from helpers.oracle import softmax
from lab.comparators import Enumeration
from lab.synthetic import measuring as synthetic
from lab.synthetic.measuring import KernelSetting, errors, problem
from perturb_mpm.engines import prepare
from perturb_mpm.engines.reference import kernel_matrix
from perturb_mpm.noise.gumbel import gumbel

SETTINGS = [
    KernelSetting(1.0, 1.0, False),
    KernelSetting(1.0, 0.7, True),
    KernelSetting(3.0, 0.5, False),
]
DRAWS = range(20)


def exact(crf: pm.DenseCRF) -> np.ndarray:
    return Enumeration(crf).marginals[1].ravel()


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("voxels", [6, 9, 12])
def test_mean_field_is_that_of_the_package(voxels: int, setting: KernelSetting) -> None:
    crf = problem(voxels, 3, setting)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pm.ConvergenceWarning)
        expected = pm.mean_field(crf, 10, engine="reference").marginals[1].ravel()
    np.testing.assert_allclose(synthetic.mean_field_marginals(crf), expected, atol=1e-12)


@pytest.mark.parametrize("setting", SETTINGS)
def test_votes_are_those_of_perturbed_mean_field(setting: KernelSetting) -> None:
    crf = problem(9, 1, setting)
    solver = prepare(crf, "reference", batch=200)
    solver.load(crf.energies - gumbel(5, range(200), crf.grid.index, 2))
    for _ in range(synthetic.ITERATIONS):
        solver.step()
    expected = solver.labels()  # (200, N)
    counts = synthetic.votes(crf, [3, 50, 200], 5)
    for size, found in zip((3, 50, 200), counts):
        np.testing.assert_array_equal(found, expected[:size].sum(axis=0))


def test_conditional_marginals_follow_their_definition() -> None:
    crf = problem(6, 2, SETTINGS[0])
    kernel = crf.terms[0].compatibility[0, 1] * kernel_matrix(crf.terms[0])
    np.fill_diagonal(kernel, 0.0)
    tau, beta = 0.5, 1 / np.sqrt(0.75)
    estimates = []
    for noise in tau * gumbel(5, range(40), crf.grid.index, 2).astype(float):  # (2, N)
        logits = -crf.energies + noise
        for _ in range(10):
            q = softmax(beta * logits)
            messages = -(1 - np.eye(2)) @ q @ kernel
            logits = -crf.energies + noise + messages
        estimates.append(softmax(logits - noise)[1])
    found = synthetic.conditional_marginals(crf, [7, 40], 5)
    np.testing.assert_allclose(found[0], np.mean(estimates[:7], axis=0), rtol=1e-10)
    np.testing.assert_allclose(found[1], np.mean(estimates, axis=0), rtol=1e-10)


def test_batches_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    crf = problem(6, 0, SETTINGS[0])
    whole = synthetic.votes(crf, [10, 100], 1)
    estimate = synthetic.conditional_marginals(crf, [10, 100], 1)
    monkeypatch.setattr(synthetic, "_BATCH", 7)
    np.testing.assert_array_equal(synthetic.votes(crf, [10, 100], 1), whole)
    np.testing.assert_allclose(synthetic.conditional_marginals(crf, [10, 100], 1), estimate)


def test_without_coupling_votes_follow_the_unaries_and_conditional_is_exact() -> None:
    crf = problem(12, 4, KernelSetting(0.0, 1.0, False))
    truth = exact(crf)
    np.testing.assert_allclose(synthetic.conditional_marginals(crf, [1], 0)[0], truth, rtol=1e-12)
    frequencies = synthetic.votes(crf, [100_000], 0)[0] / 100_000
    assert np.abs(frequencies - truth).max() < 4 * np.sqrt(0.25 / 100_000)


def test_errors_by_hand() -> None:
    variation, logs = errors(np.array([0.5, 0.2]), np.array([0.25, 0.2]))
    assert variation == pytest.approx(0.125)
    assert logs == pytest.approx((np.log(2) + np.log(1.5)) / 4)
    np.testing.assert_allclose(synthetic.smooth(np.array([0, 10]), 10), [0.5 / 11, 10.5 / 11])


@pytest.mark.parametrize(
    ("setting", "metric", "tolerance", "mean_field", "votes"),
    [
        (
            KernelSetting(1.0, 1.0, False),
            1,
            9e-3,
            (0.1863, 0.3045, 0.3408),
            (0.1350, 0.2177, 0.2933),
        ),
        (
            KernelSetting(1.0, 0.7, True),
            0,
            2e-3,
            (0.0878, 0.0887, 0.0922),
            (0.0087, 0.0105, 0.0128),
        ),
        (
            KernelSetting(1.0, 0.7, False),
            0,
            2e-3,
            (0.0082, 0.0097, 0.0112),
            (0.0122, 0.0143, 0.0173),
        ),
    ],
)
def test_the_known_table(
    setting: KernelSetting,
    metric: int,
    tolerance: float,
    mean_field: tuple[float, ...],
    votes: tuple[float, ...],
) -> None:
    samples = 10_000
    for voxels, of_mean_field, of_votes in zip((6, 9, 12), mean_field, votes):
        found = []
        for draw in DRAWS:
            crf = problem(voxels, draw, setting)
            truth = exact(crf)
            counts = synthetic.votes(crf, [samples], draw)[0]
            estimates = (synthetic.mean_field_marginals(crf), synthetic.smooth(counts, samples))
            found.append([errors(estimate, truth)[metric] for estimate in estimates])
        first, second = np.mean(found, axis=0)
        assert first == pytest.approx(of_mean_field, abs=2e-4)
        assert second == pytest.approx(of_votes, abs=tolerance)


@pytest.mark.parametrize("voxels", [9, 12])
def test_the_conditional_estimator_halves_mean_fields_error(voxels: int) -> None:
    found = []
    for draw in DRAWS:
        crf = problem(voxels, draw, KernelSetting(1.0, 1.0, False))
        estimates = (
            synthetic.mean_field_marginals(crf),
            synthetic.conditional_marginals(crf, [50], draw)[0],
        )
        found.append([errors(estimate, exact(crf))[0] for estimate in estimates])
    of_mean_field, of_conditional = np.mean(found, axis=0)
    assert of_conditional < of_mean_field / 2
