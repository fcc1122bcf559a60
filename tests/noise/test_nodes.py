from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from perturb_mpm.model.grid import Grid
from perturb_mpm.noise.nodes import NodeLattice, make_axis

SEED = 11


def lattice(length_mm: float, grid: Grid, n_labels: int = 3, stream: int = 1) -> NodeLattice:
    return NodeLattice(length_mm, grid, n_labels, scale=1.0, stream=stream)


def drawn(
    length_mm: float,
    grid: Grid,
    samples: int = 1,
    n_labels: int = 3,
    *,
    seed: int = SEED,
    stream: int = 1,
    antithetic: bool = False,
) -> np.ndarray:
    """Return the smooth noise at the voxels inside the mask, (B, L, N)."""
    nodes = lattice(length_mm, grid, n_labels, stream)
    return np.array(
        [
            [nodes.at_voxels(label) for label in nodes.draw(seed, sample, antithetic=antithetic)]
            for sample in range(samples)
        ]
    )


def many(length_mm: float, grid: Grid, samples: int = 12, n_labels: int = 250) -> np.ndarray:
    """Return 3000 independent draws, (3000, *shape)."""
    return drawn(length_mm, grid, samples, n_labels).reshape(-1, *grid.shape)


def weights(length: float, voxels: int) -> np.ndarray:
    """Return each voxel's weights of the cells along an axis, (n, cells), length in voxels."""
    axis = make_axis(length, 1.0, 0, voxels - 1)
    dense = np.zeros((voxels, axis.nodes + axis.taps.size - 1))
    for i in range(voxels):
        seen = np.convolve(axis.weights[i], axis.taps)
        dense[i, axis.first[i] : axis.first[i] + seen.size] = seen
    return dense


@pytest.mark.parametrize(
    "length", [1e-300, 0.05, 0.5, 0.8, 1.0, 1.49, 1.5, 1.6, 2.0, 4.37, 10.0, 33.3, 200.0, 1e9]
)
def test_variance_is_one_and_the_correlation_is_the_stated_one(length: float) -> None:
    x = np.arange(120.0)
    dense = weights(length, x.size)
    correlation = dense @ dense.T
    with np.errstate(over="ignore"):
        stated = np.exp(-(((x[:, np.newaxis] - x) / length) ** 2) / 2)
    np.testing.assert_allclose(np.diag(correlation), 1, rtol=0, atol=1e-12)
    np.testing.assert_allclose(correlation, stated, rtol=0, atol=0.01)
    diagonal = correlation**3  # of a cube's diagonal
    np.testing.assert_allclose(diagonal, stated**3, rtol=0, atol=0.02)


@given(length=st.floats(0, math.inf, exclude_min=True), spacing=st.floats(1e-3, 1e3))
def test_any_length_gives_unit_variance_and_no_more_cells_than_voxels(
    length: float, spacing: float
) -> None:
    axis = make_axis(length, spacing, 3, 12)
    assert axis.nodes <= 12
    assert axis.first.min() == 0
    assert axis.first.max() + 3 == axis.nodes
    for row in axis.weights:
        assert np.sum(np.convolve(row, axis.taps) ** 2) == pytest.approx(1)


def test_draws_are_standard_normal_at_every_voxel() -> None:
    values = many(6.0, Grid((7, 5), spacing=(2.0, 3.5)))
    n = len(values)
    assert np.abs(values.mean(axis=0)).max() < 4 / np.sqrt(n)
    assert np.abs(values.var(axis=0) - 1).max() < 4 * np.sqrt(2 / n)
    assert stats.kstest(values[:, 3, 2], "norm").pvalue > 0.01
    assert stats.kstest(1.2 * values[:, 3, 2], "norm").pvalue < 0.01


def test_the_correlation_of_draws_is_that_of_millimetres_on_every_axis() -> None:
    length, spacing = 6.0, np.array([1.0, 2.5, 4.0])
    values = many(length, Grid((13, 6, 4), spacing=tuple(spacing)))
    origin = values[:, 0, 0, 0]
    for place in [(3, 0, 0), (6, 0, 0), (12, 0, 0), (0, 2, 0), (0, 0, 3), (2, 2, 1), (4, 1, 2)]:
        measured = np.mean(origin * values[(slice(None), *place)])
        squared = np.sum((np.array(place) * spacing) ** 2)
        assert measured == pytest.approx(np.exp(-squared / (2 * length**2)), abs=0.09)
    # The same places measured in voxels would be far off.
    assert abs(np.mean(origin * values[:, 0, 0, 3]) - np.exp(-(3**2) / (2 * length**2))) > 0.5


def test_draws_are_independent_across_samples_labels_streams_and_seeds() -> None:
    grid = Grid((400,))
    parts = [
        drawn(0.01, grid, samples=4),
        drawn(0.01, grid, samples=4, stream=2),
        drawn(0.01, grid, seed=12),
    ]
    rows = np.concatenate([part.reshape(-1, 400) for part in parts])
    correlation = np.corrcoef(rows) - np.eye(len(rows))
    assert np.abs(correlation).max() * np.sqrt(400) < 4.5
    shared = rows + 0.5 * rows[:1]
    assert np.abs(np.corrcoef(shared) - np.eye(len(rows))).max() * np.sqrt(400) > 4.5


def test_almost_no_length_is_white_noise() -> None:
    values = drawn(1e-3, Grid((50, 40)), n_labels=2)[0, 0].reshape(50, 40)
    assert stats.kstest(values.ravel(), "norm").pvalue > 0.01
    for one, other in [(values[1:], values[:-1]), (values[:, 1:], values[:, :-1])]:
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) * np.sqrt(one.size) < 4


def test_an_infinite_length_is_one_number_for_the_whole_image() -> None:
    grid = Grid((4, 5, 3), spacing=(1.0, 2.0, 30.0))
    each = drawn(math.inf, grid, samples=3)  # (3, 3, N)
    assert np.ptp(each, axis=2).max() == 0
    assert np.unique(each[:, :, 0]).size == 9
    assert many(math.inf, Grid((1,))).var() == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("length", [0.7, 2.0, 9.0, math.inf])
def test_values_depend_neither_on_mask_nor_crop_nor_labels(length: float) -> None:
    rng = np.random.default_rng(1)
    spacing = (1.0, 1.7, 2.9)
    grid = Grid((14, 11, 8), spacing)
    whole = drawn(length, grid, samples=4).reshape(4, 3, *grid.shape)
    mask = np.zeros(grid.shape, dtype=bool)
    mask[4:9, 2:10, 3:7] = rng.random((5, 8, 4)) < 0.5
    masked = drawn(length, Grid(grid.shape, spacing, mask), samples=4)
    np.testing.assert_array_equal(masked, whole[:, :, mask])
    crop = drawn(length, Grid((9, 11, 5), spacing), samples=4)
    np.testing.assert_array_equal(crop.reshape(4, 3, 9, 11, 5), whole[:, :, :9, :, :5])
    fewer = drawn(length, grid, n_labels=2)
    np.testing.assert_array_equal(fewer.reshape(1, 2, *grid.shape), whole[:1, :2])


@pytest.mark.parametrize("shape", [(9,), (5, 4), (5, 4, 3), (4, 3, 2, 5)])
def test_images_of_one_to_four_axes(shape: tuple[int, ...]) -> None:
    values = many(2.5, Grid(shape), samples=4)
    assert values.var() == pytest.approx(1, abs=0.1)
    lag = values[:, 1].ravel() * values[:, 0].ravel()
    assert lag.mean() == pytest.approx(np.exp(-1 / (2 * 2.5**2)), abs=0.1)


def test_an_antithetic_pair_is_a_draw_and_its_opposite() -> None:
    values = drawn(4.0, Grid((8, 8)), samples=4, antithetic=True)
    np.testing.assert_array_equal(values[0], -values[1])
    np.testing.assert_array_equal(values[2], -values[3])
    np.testing.assert_array_equal(values[2], drawn(4.0, Grid((8, 8)), samples=3)[2])


def test_only_cells_near_the_mask_are_drawn() -> None:
    mask = np.zeros((200, 200, 200), dtype=bool)
    mask[150:160, 20:30, 100:110] = True
    assert lattice(6.0, Grid(mask.shape, mask=mask)).shape == (5, 5, 5)
