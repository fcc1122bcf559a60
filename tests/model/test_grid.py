from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perturb_mpm.model.grid import Grid, bounding_box


@given(shape=st.lists(st.integers(1, 4), min_size=1, max_size=4), seed=st.integers(0, 100))
def test_scatter_undoes_gather(shape: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    mask = rng.random(shape) < 0.5
    mask.flat[0] = True
    array = rng.normal(size=(2, *shape))
    grid = Grid(shape, mask=mask)
    values = grid.gather(array)
    assert values.shape == (2, mask.sum()) == (2, grid.voxels)
    np.testing.assert_array_equal(values, array[:, mask])
    np.testing.assert_array_equal(grid.scatter(values, 7.0), np.where(mask, array, 7.0))


def test_outside_may_differ_for_each_leading_index() -> None:
    grid = Grid((3,), mask=[0, 1, 0])
    full = grid.scatter(np.array([[5.0], [6.0]]), [1.0, 0.0])
    np.testing.assert_array_equal(full, [[1, 5, 1], [0, 6, 0]])


def test_without_a_mask_every_voxel_is_in_play() -> None:
    grid = Grid((2, 3))
    assert grid.voxels == 6
    assert grid.mask is None
    np.testing.assert_array_equal(grid.index, np.arange(6))


def test_positions_are_indices_times_spacing() -> None:
    grid = Grid((2, 3), spacing=(1.5, 4.0), mask=[[0, 1, 0], [0, 0, 1]])
    np.testing.assert_array_equal(grid.index, [1, 5])
    np.testing.assert_array_equal(grid.positions(), [[0.0, 4.0], [1.5, 8.0]])


def test_one_spacing_serves_every_axis() -> None:
    assert Grid((2, 2, 2), spacing=3).spacing == (3.0, 3.0, 3.0)
    assert Grid((2, 2)).spacing == (1.0, 1.0)


def test_gather_is_a_copy_even_without_a_mask() -> None:
    array = np.zeros((2, 3))
    Grid((3,)).gather(array)[...] = 1
    assert not array.any()


def test_gather_of_another_shape_says_so() -> None:
    with pytest.raises(ValueError, match=r"must end in the shape \(2, 3\), got \(3, 2\)"):
        Grid((2, 3)).gather(np.zeros((3, 2)))


def test_the_bounding_box_is_tight() -> None:
    mask = np.zeros((5, 5, 5), dtype=bool)
    mask[1, 2, 3] = mask[3, 2, 4] = True
    assert bounding_box(mask) == (slice(1, 4), slice(2, 3), slice(3, 5))
