"""Correlated Gumbel noise: its law at every voxel, its correlations, and what it depends on."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from perturb_mpm.model import Grid
from perturb_mpm.noise import Perturbation
from perturb_mpm.noise.gumbel import gumbel
from perturb_mpm.noise.perturbation import (
    WHITE,
    checked_lengths,
    correlated_gumbel,
    gumbel_from_normal,
)

GRID = Grid((9, 7, 5), (1.0, 2.0, 3.0))
SAMPLES = 4000
LENGTHS: dict[str, Any] = {
    "short": 1.2,
    "medium": 6.0,
    "long": 40.0,
    "infinite": math.inf,
    "mixture": ((30.0, 0.5), (4.0, 0.3), (0.0, 0.2)),
}


def drawn(length: Any, samples: int = SAMPLES, grid: Grid = GRID, labels: int = 3) -> Any:
    lengths = checked_lengths(length)
    return np.stack(list(correlated_gumbel(lengths, 3, np.arange(samples), grid, labels)))


@pytest.fixture(scope="module", params=LENGTHS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def noise(name: str) -> NDArray[np.float64]:
    """(S, L, N) of one law."""
    drawn_noise: NDArray[np.float64] = drawn(LENGTHS[name])
    drawn_noise.flags.writeable = False
    return drawn_noise


@pytest.fixture(scope="module")
def normals(noise: NDArray[np.float64]) -> NDArray[np.float64]:
    """The normals behind the noise of the first label, (S, *GRID.shape)."""
    g = np.asarray(stats.norm.ppf(np.exp(-np.exp(-noise[:, 0])))).reshape(-1, *GRID.shape)
    g.flags.writeable = False
    return g


def worst_pvalue(noise: NDArray[np.float64]) -> float:
    """The smallest p-value of Gumbel's law at twelve voxels of every label, times their number."""
    voxels = np.linspace(0, noise.shape[2] - 1, 12).astype(int)
    tested = [noise[:, l, v] for l in range(noise.shape[1]) for v in voxels]
    return min(stats.kstest(each, "gumbel_r").pvalue for each in tested) * len(tested)


def test_every_voxel_keeps_gumbels_law(noise: NDArray[np.float64]) -> None:
    assert worst_pvalue(noise) > 0.01


def test_a_variance_five_percent_off_fails_the_same_test() -> None:
    normals = np.random.default_rng(0).normal(0, math.sqrt(1.05), size=(20 * SAMPLES, 1, 12))
    assert worst_pvalue(gumbel_from_normal(normals)) < 0.01


def test_labels_are_independent_at_a_voxel(noise: NDArray[np.float64]) -> None:
    for one, other in ((0, 1), (0, 2), (1, 2)):
        r = stats.pearsonr(noise[:, one, 100], noise[:, other, 100]).statistic
        assert abs(r) < 4.5 / math.sqrt(SAMPLES)


def correlation(normal: NDArray[np.float64], offset: tuple[int, int, int]) -> float:
    """The correlation of normals over all pairs at an offset."""
    one = normal[:, : 9 - offset[0], : 7 - offset[1], : 5 - offset[2]]
    other = normal[:, offset[0] :, offset[1] :, offset[2] :]
    return float((one * other).mean() / normal.var())


@pytest.mark.parametrize("offset", [(1, 0, 0), (4, 0, 0), (0, 1, 0), (0, 0, 2), (2, 1, 1)], ids=str)
def test_the_correlation_falls_with_the_distance_in_mm(
    name: str, normals: NDArray[np.float64], offset: tuple[int, int, int]
) -> None:
    squared = sum((o * s) ** 2 for o, s in zip(offset, GRID.spacing))  # mm²
    parts = [(length, weight) for length, weight in checked_lengths(LENGTHS[name]) if length > 0]
    expected = sum(weight * math.exp(-squared / (2 * length**2)) for length, weight in parts)
    assert correlation(normals, offset) == pytest.approx(expected, abs=0.03)


def test_an_infinite_length_is_one_draw_for_the_whole_image() -> None:
    noise = drawn(math.inf, 5)
    assert np.ptp(noise, axis=2).max() < 1e-9


@pytest.fixture(scope="module")
def base() -> NDArray[np.float64]:
    return np.random.default_rng(1).normal(size=(3, GRID.voxels))  # (L, N)


def test_energies_are_unaries_without_the_noise(
    name: str, noise: NDArray[np.float64], base: NDArray[np.float64]
) -> None:
    perturbation = Perturbation(seed=3, lengths=checked_lengths(LENGTHS[name]))
    energies = perturbation.energies(base, GRID, [0, 7, SAMPLES - 1])
    np.testing.assert_allclose(energies, base - noise[[0, 7, SAMPLES - 1]], rtol=0, atol=1e-5)


def test_votes_without_coupling_follow_the_softmax(
    noise: NDArray[np.float64], base: NDArray[np.float64]
) -> None:
    best = (base - noise).argmin(axis=1)
    votes = (best[:, np.newaxis] == np.arange(3)[:, np.newaxis]).mean(axis=0)
    expected = np.exp(-base) / np.exp(-base).sum(axis=0)
    error = np.abs(votes - expected) / np.sqrt(expected * (1 - expected) / SAMPLES)
    assert error.max() < 5.5  # of 945 numbers


def test_it_depends_on_place_and_sample_alone() -> None:
    lengths = checked_lengths(LENGTHS["mixture"])
    whole = drawn(lengths, 6)
    mask = np.random.default_rng(2).random(GRID.shape) < 0.4
    masked = Grid(GRID.shape, GRID.spacing, mask)
    some = np.stack(list(correlated_gumbel(lengths, 3, [4, 1], masked, 3)))
    np.testing.assert_allclose(some, whole[[4, 1]][:, :, mask.ravel()], atol=1e-12)


def test_opposites_are_opposite() -> None:
    lengths = checked_lengths(LENGTHS["mixture"])
    even, odd = correlated_gumbel(lengths, 3, [2, 3], GRID, 3, antithetic=True)
    np.testing.assert_allclose(np.exp(-np.exp(-even)) + np.exp(-np.exp(-odd)), 1, atol=1e-9)


def test_white_noise_is_the_papers_to_the_bit() -> None:
    base = np.zeros((3, GRID.voxels))
    paper = base - gumbel(4, [0, 1], GRID.index, 3).astype(np.float64)
    for lengths in (0, 0.0, ((0.0, 2.0),)):
        energies = Perturbation(seed=4, lengths=checked_lengths(lengths)).energies(
            base, GRID, [0, 1]
        )
        np.testing.assert_array_equal(energies, paper.astype(np.float32))


def test_parts_are_sorted_and_weights_sum_to_one() -> None:
    assert checked_lengths(0) == WHITE
    assert checked_lengths([(0, 1), (40, 2), (0, 1)]) == ((40.0, 0.5), (0.0, 0.5))
    assert checked_lengths("40:0.7, inf:0.3") == ((math.inf, 0.3), (40.0, 0.7))
    assert checked_lengths("6") == ((6.0, 1.0),)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (-1.0, "noise_length must be at least 0, got -1.0"),
        (math.nan, "noise_length must be finite"),
        ("long", "noise_length must be a length in mm such as 40 or inf"),
        ("40:x", "noise_length must be a length in mm such as 40 or inf"),
        (None, "noise_length must be a number, got NoneType None"),
        ([], "1 to 8 pairs"),
        ([40.0], r"pairs \(length, weight\)"),
        ([(40.0, 0.0)], "weight of noise_length must be positive, got 0"),
        ([(40.0, 1.0, 2.0)], r"pairs \(length, weight\)"),
    ],
)
def test_bad_lengths_are_refused_by_name(value: object, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        checked_lengths(value)
