from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from helpers.agreement import disagreement
from lab.comparators import contours
from lab.comparators.contours import GaussianField, euclidean, geodesic
from lab.comparators.fast_marching import march
from perturb_mpm.model.grid import Grid


def disc(size: int = 41, radius: float = 12.0) -> np.ndarray:
    y, x = np.indices((size, size)) - size // 2
    return x**2 + y**2 <= radius**2


def boundary(labels: np.ndarray) -> int:
    """How many pairs of neighbours the contour separates."""
    return int(sum(np.abs(np.diff(labels.astype(int), axis=axis)).sum() for axis in (0, 1)))


def test_distances_to_a_plane_are_half_a_voxel_and_on() -> None:
    region = np.zeros((3, 6), dtype=bool)
    region[:, :4] = True
    grid = Grid((3, 6), spacing=(5.0, 2.0))
    expected = [7.0, 5.0, 3.0, 1.0, -1.0, -3.0]
    np.testing.assert_allclose(euclidean(region, grid), [expected] * 3)
    flat = np.zeros((3, 6))
    np.testing.assert_allclose(geodesic(region, grid, flat, 5.0), [expected] * 3)


def test_distances_to_a_disc() -> None:
    region = disc()
    y, x = np.indices(region.shape) - 20
    expected = 12.0 - np.hypot(x, y)
    grid = Grid(region.shape)
    assert np.abs(euclidean(region, grid) - expected).max() < 0.8
    inside = np.abs(expected) < 8
    found = geodesic(region, grid, np.zeros(region.shape), 0.0)
    assert np.abs(found - expected)[inside].max() < 1.2
    assert ((found > 0) == region).all()


def test_an_edge_makes_the_way_longer() -> None:
    region = np.zeros((1, 20), dtype=bool)
    region[:, :10] = True
    grid = Grid((1, 20))
    image = np.tile(np.where(np.arange(20) < 5, 0.0, 1.0), (1, 1))  # an edge between 4 and 5
    plain, bent = euclidean(region, grid)[0], geodesic(region, grid, image, 4.0)[0]
    np.testing.assert_allclose(bent[6:], plain[6:])
    # The gradient spreads the jump of 1 / 0.433 standard deviations over two voxels.
    step = np.sqrt(1 + (4.0 / np.std(image) / 2) ** 2)
    assert bent[4] - bent[6] == pytest.approx(2 * step)


def test_the_march_keeps_to_slowness_and_spacing() -> None:
    shape, spacing = (30, 20, 10), (1.0, 1.5, 2.0)
    times = np.full(shape, np.inf)
    times[0, 0, 0] = 0
    slowness = np.full(shape, 3.0)
    march(times.reshape(-1), slowness.reshape(-1), np.array(shape), np.array(spacing))
    away = np.sqrt(sum((np.indices(shape)[k] * spacing[k]) ** 2 for k in range(3)))
    far = away > 8
    ratio = times[far] / (3 * away[far])
    assert ratio.min() > 0.999
    assert ratio.max() < 1.17
    np.testing.assert_allclose(times[:, 0, 0], 3 * np.arange(30))
    np.testing.assert_allclose(times[0, 0], 6 * np.arange(10))


def test_the_march_goes_round_what_is_slow() -> None:
    shape = (21, 21)
    slowness = np.ones(shape)
    slowness[10, :18] = 1000.0
    times = np.full(shape, np.inf)
    times[0, 0] = 0
    march(times.reshape(-1), slowness.reshape(-1), np.array(shape), np.ones(2))
    assert np.hypot(10, 18) + 18 < times[20, 0] < 1.2 * (np.hypot(10, 18) + np.hypot(10, 18))


@pytest.mark.parametrize("spacing", [(1.0, 1.0), (0.5, 2.0)])
@pytest.mark.parametrize("length", [0.8, 4.0])
def test_the_field_has_unit_variance_and_the_stated_correlation(
    spacing: tuple[float, float], length: float
) -> None:
    grid = Grid((24, 20), spacing)
    field = GaussianField(grid, length)
    random = np.random.default_rng(3)
    draws = np.stack([field.draw(random) for _ in range(4000)])  # (4000, 24, 20)
    assert draws.var(axis=0) == pytest.approx(np.ones((24, 20)), abs=0.12)
    assert abs(draws.mean()) < 0.05
    for axis in (0, 1):
        for lag in (1, 2, 5, 12):
            here = draws[:, 0, 0]
            there = np.moveaxis(draws, axis + 1, 1)[:, lag, 0]
            expected = np.exp(-((lag * spacing[axis] / length) ** 2) / 2)
            assert np.mean(here * there) == pytest.approx(expected, abs=0.08)


def test_opposite_ends_of_the_image_are_independent() -> None:
    grid = Grid((16, 16))
    field = GaussianField(grid, 5.0)
    assert min(field.shape) >= 16 + 3 * np.sqrt(2) * 5
    random = np.random.default_rng(0)
    draws = np.stack([field.draw(random) for _ in range(4000)])
    assert abs(np.mean(draws[:, 0, 0] * draws[:, 15, 0]) - np.exp(-(15**2) / 50)) < 0.06
    assert abs(np.mean(draws[:, 0, 0] * draws[:, 15, 15])) < 0.06


@pytest.mark.parametrize("shape", [(30,), (20, 22), (9, 10, 11)])
def test_a_voxel_is_inside_with_the_stated_probability(shape: tuple[int, ...]) -> None:
    region = np.zeros(shape, dtype=bool)
    region[tuple(slice(size // 4, 3 * size // 4) for size in shape)] = True
    posterior = contours(region, 2000, 5, amplitude_mm=2.0, length_mm=3.0, spacing=1.5)
    expected = norm.cdf(euclidean(region, Grid(shape, 1.5)) / 2.0)
    assert disagreement(posterior.marginals[1], expected, 2000) < 4.5
    np.testing.assert_array_equal(posterior.labels == 1, region)


def test_a_longer_length_makes_smoother_contours_and_more_varied_volumes() -> None:
    region = disc()
    rough = contours(region, 300, 5, amplitude_mm=1.5, length_mm=1.0)
    smooth = contours(region, 300, 5, amplitude_mm=1.5, length_mm=12.0)
    one = [contours(region, range(t, t + 1), 5, amplitude_mm=1.5, length_mm=1.0) for t in range(9)]
    two = [contours(region, range(t, t + 1), 5, amplitude_mm=1.5, length_mm=12.0) for t in range(9)]
    assert np.mean([boundary(p.labels) for p in one]) > 1.5 * boundary(region)
    assert np.mean([boundary(p.labels) for p in two]) < 1.2 * boundary(region)
    assert smooth.volumes[:, 1].std() > 4 * rough.volumes[:, 1].std()


def test_the_contour_moves_less_where_it_lies_on_an_edge() -> None:
    region = np.zeros((30, 30), dtype=bool)
    region[:, :15] = True
    image = np.zeros((30, 30))
    image[:15, :15] = 1.0  # an edge along the upper half of the contour
    options = {"amplitude_mm": 2.0, "length_mm": 3.0}
    posterior = contours(region, 300, 1, image=image, edge_mm=6.0, **options)
    entropy = posterior.entropy.sum(axis=1)
    assert entropy[2:12].mean() < 0.5 * entropy[18:28].mean()
    np.testing.assert_allclose(
        contours(region, 50, 1, image=image, edge_mm=0.0, **options).volumes,
        contours(region, 50, 1, **options).volumes,
        rtol=0.02,
    )


def test_no_amplitude_is_the_region_itself() -> None:
    posterior = contours(disc(), 3, 0, amplitude_mm=0.0, length_mm=1.0)
    np.testing.assert_array_equal(posterior.counts[1], 3 * disc())
