from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from helpers.bad import Bad
from perturb_mpm.model.grid import Grid
from perturb_mpm.noise.gumbel import gumbel
from perturb_mpm.noise.perturbation import WHITE, Lengths, Perturbation, correlated_gumbel

MASK = np.random.default_rng(0).random((6, 5, 4)) < 0.7
GRID = Grid(MASK.shape, spacing=(1.0, 1.0, 3.0), mask=MASK)
BASE = np.random.default_rng(1).normal(size=(4, GRID.voxels)).astype(np.float32)
LENGTHS = ((math.inf, 0.25), (4.0, 0.75))


def distance(labels: np.ndarray, expected: np.ndarray) -> float:
    """Return the total variation between the labels' shares and the expected ones."""
    shares = np.bincount(labels.ravel(), minlength=expected.size) / labels.size
    return float(np.abs(shares - expected).sum() / 2)


def test_energies_are_unaries_less_noise() -> None:
    perturbation = Perturbation(seed=5, scale=0.7)
    samples = [3, 8]
    energies = perturbation.energies(BASE, GRID, samples)
    assert energies.shape == (2, *BASE.shape)
    assert energies.dtype == np.float32
    expected = BASE - 0.7 * gumbel(5, samples, GRID.index, 4)
    np.testing.assert_allclose(energies, expected, rtol=0, atol=1e-5)
    together = Perturbation(seed=5, scale=0.7, lengths=LENGTHS).energies(BASE, GRID, samples)
    noise = np.stack(list(correlated_gumbel(LENGTHS, 5, samples, GRID, 4)))
    np.testing.assert_allclose(together, BASE - 0.7 * noise, rtol=0, atol=1e-5)


def test_no_noise_leaves_the_unaries_as_they_are() -> None:
    for lengths in [WHITE, LENGTHS]:
        energies = Perturbation(scale=0, lengths=lengths).energies(BASE, GRID, range(3))
        np.testing.assert_array_equal(energies, np.broadcast_to(BASE, energies.shape))


@pytest.mark.parametrize("n_labels", [3, 4, 5])
def test_the_lowest_energy_has_the_law_of_softmax_and_the_printed_sign_has_not(
    n_labels: int,
) -> None:
    unary = np.linspace(0.0, 2.5, n_labels)
    grid = Grid((40_000,))
    base = np.repeat(unary[:, np.newaxis], grid.voxels, axis=1)
    softmax = np.exp(-unary) / np.exp(-unary).sum()
    noise = base - Perturbation(seed=n_labels).energies(base, grid, [0])
    assert distance((base - noise).argmin(axis=1), softmax) < 0.008
    assert distance((base + noise).argmin(axis=1), softmax) > 0.03


@pytest.mark.parametrize("lengths", [WHITE, LENGTHS], ids=["white", "together"])
def test_antithetic_samples_are_opposites(lengths: Lengths) -> None:
    perturbation = Perturbation(seed=3, antithetic=True, lengths=lengths)
    noisy = perturbation.energies(np.zeros_like(BASE), GRID, [6, 7])
    u = np.exp(-np.exp(noisy.astype(np.float64)))
    np.testing.assert_allclose(u.sum(axis=0), 1, rtol=0, atol=1e-6)


def test_a_description_is_plain_and_whole() -> None:
    perturbation = Perturbation(seed=2**64 - 1, scale=0.5, antithetic=True, lengths=LENGTHS)
    description = perturbation.describe()
    assert json.loads(json.dumps(description, allow_nan=False)) == description
    assert description == {
        "seed": 2**64 - 1,
        "scale": 0.5,
        "antithetic": True,
        "lengths_mm": [["inf", 0.25], [4.0, 0.75]],
    }


def perturbation(**values: Any) -> Perturbation:
    return Perturbation(**values)


BAD = [
    Bad("seed", ValueError, r"seed must be at most", lambda: perturbation(seed=2**64)),
    Bad(
        "scale_negative",
        ValueError,
        r"scale of Perturbation must be at least 0, got -0.5",
        lambda: perturbation(scale=-0.5),
    ),
    Bad(
        "scale_nan",
        ValueError,
        r"scale of Perturbation must be finite and at least 0, got nan",
        lambda: perturbation(scale=math.nan),
    ),
    Bad(
        "antithetic",
        TypeError,
        r"antithetic must be True or False, got int 1",
        lambda: perturbation(antithetic=1),
    ),
]


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.name)
def test_it_is_refused_in_words(bad: Bad) -> None:
    with pytest.raises(bad.error, match=bad.message):
        bad.call()
