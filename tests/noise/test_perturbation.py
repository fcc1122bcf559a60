from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from helpers.bad import Bad
from perturb_mpm.model.grid import Grid
from perturb_mpm.noise.fields import Field, sample_fields
from perturb_mpm.noise.gumbel import gumbel
from perturb_mpm.noise.perturbation import Perturbation

MASK = np.random.default_rng(0).random((6, 5, 4)) < 0.7
GRID = Grid(MASK.shape, spacing=(1.0, 1.0, 3.0), mask=MASK)
BASE = np.random.default_rng(1).normal(size=(4, GRID.voxels)).astype(np.float32)
FIELDS = (Field(4.0, 1.5, labels=[1, 2]), Field(math.inf, 0.5))


def distance(labels: np.ndarray, expected: np.ndarray) -> float:
    """Return the total variation between the labels' shares and the expected ones."""
    shares = np.bincount(labels.ravel(), minlength=expected.size) / labels.size
    return float(np.abs(shares - expected).sum() / 2)


def test_energies_are_unaries_less_noise_less_fields() -> None:
    perturbation = Perturbation(seed=5, scale=0.7, fields=FIELDS)
    samples = [3, 8]
    energies = perturbation.energies(BASE, GRID, samples)
    assert energies.shape == (2, *BASE.shape)
    assert energies.dtype == np.float32
    fields = np.stack(list(sample_fields(FIELDS, 5, samples, GRID, 4)))
    expected = BASE - 0.7 * gumbel(5, samples, GRID.index, 4) - fields
    np.testing.assert_allclose(energies, expected, rtol=0, atol=1e-5)


def test_no_noise_and_no_fields_leave_the_unaries_as_they_are() -> None:
    for fields in [(), (Field(4.0, 0.0),)]:
        energies = Perturbation(scale=0, fields=fields).energies(BASE, GRID, range(3))
        np.testing.assert_array_equal(energies, np.broadcast_to(BASE, energies.shape))


def test_fields_of_scale_zero_leave_the_noise_bit_for_bit() -> None:
    plain = Perturbation(seed=2).energies(BASE, GRID, [1, 2])
    silent = Perturbation(seed=2, fields=[Field(4.0, 0.0), Field(math.inf, 0.0, labels=[1])])
    np.testing.assert_array_equal(silent.energies(BASE, GRID, [1, 2]), plain)


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


def test_fields_and_noise_together_have_the_law_of_a_mixture_of_softmaxes() -> None:
    grid, scale = Grid((40_000,)), 1.5
    unary = np.array([0.0, 0.8, 1.6])
    base = np.repeat(unary[:, np.newaxis], grid.voxels, axis=1)
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    logits = -unary[:, np.newaxis] + scale * np.array([[0.0], [1.0], [1.0]]) * nodes  # (3, 60)
    mixture = (np.exp(logits) / np.exp(logits).sum(axis=0)) @ weights / weights.sum()
    # Without length every voxel is a draw of its own.
    perturbation = Perturbation(seed=1, fields=[Field(1e-3, scale, labels=[1, 2])])
    labels = perturbation.energies(base, grid, [0]).argmin(axis=1)
    assert distance(labels, mixture) < 0.008
    assert distance(labels, np.exp(-unary) / np.exp(-unary).sum()) > 0.02


def test_antithetic_samples_are_opposites_in_noise_and_fields() -> None:
    perturbation = Perturbation(seed=3, scale=0, fields=FIELDS, antithetic=True)
    even, odd = perturbation.energies(BASE, GRID, [6, 7]).astype(np.float64)
    np.testing.assert_allclose(even + odd, 2 * BASE, rtol=0, atol=1e-5)
    noisy = Perturbation(seed=3, antithetic=True).energies(np.zeros_like(BASE), GRID, [6, 7])
    u = np.exp(-np.exp(noisy.astype(np.float64)))
    np.testing.assert_allclose(u.sum(axis=0), 1, rtol=0, atol=1e-6)


def test_a_description_is_plain_and_whole() -> None:
    description = Perturbation(seed=2**64 - 1, scale=0.5, fields=FIELDS, antithetic=True).describe()
    assert json.loads(json.dumps(description, allow_nan=False)) == description
    assert description == {
        "seed": 2**64 - 1,
        "scale": 0.5,
        "fields": [
            {"length_mm": 4.0, "scale": 1.5, "labels": [1, 2]},
            {"length_mm": "inf", "scale": 0.5, "labels": None},
        ],
        "antithetic": True,
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
        "one_field",
        TypeError,
        r"fields must be a sequence of Field, got Field: write fields=\[field\]",
        lambda: perturbation(fields=Field(1.0, 1.0)),
    ),
    Bad(
        "not_a_field",
        TypeError,
        r"fields must hold Field, got float",
        lambda: perturbation(fields=[1.0]),
    ),
    Bad(
        "too_many_fields",
        ValueError,
        r"fields must be fewer than 65536, got 65536",
        lambda: perturbation(fields=[Field(1.0, 1.0)] * 65536),
    ),
    Bad(
        "antithetic",
        TypeError,
        r"antithetic must be True or False, got int 1",
        lambda: perturbation(antithetic=1),
    ),
    Bad(
        "labels_out_of_range",
        ValueError,
        r"labels of Field must lie between 0 and 3, got values from 4 to 4",
        lambda: perturbation(fields=[Field(1.0, 1.0, labels=[4])]).check(GRID, 4),
    ),
]


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.name)
def test_it_is_refused_in_words(bad: Bad) -> None:
    with pytest.raises(bad.error, match=bad.message):
        bad.call()
