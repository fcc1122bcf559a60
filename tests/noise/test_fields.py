from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from helpers.bad import Bad
from perturb_mpm.model.grid import Grid
from perturb_mpm.noise.fields import Field, NodeLattice, axis_of, node_lattices, sample_fields


def drawn(fields: list[Field], grid: Grid, samples: int = 1, n_labels: int = 3) -> np.ndarray:
    return np.stack(list(sample_fields(fields, 11, range(samples), grid, n_labels)))  # (B, L, N)


def many(length_mm: float, grid: Grid, samples: int = 12, n_labels: int = 250) -> np.ndarray:
    """Return 3000 independent unit fields, (3000, *shape)."""
    return drawn([Field(length_mm, 1.0)], grid, samples, n_labels).reshape(-1, *grid.shape)


def weights(length: float, voxels: int) -> np.ndarray:
    """Return each voxel's weights of the cells along an axis, (n, cells), length in voxels."""
    axis = axis_of(length, 1.0, 0, voxels - 1)
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
    axis = axis_of(length, spacing, 3, 12)
    assert axis.nodes <= 12
    assert axis.first.min() == 0
    assert axis.first.max() + 3 == axis.nodes
    for row in axis.weights:
        assert np.sum(np.convolve(row, axis.taps) ** 2) == pytest.approx(1)


def test_sampled_fields_are_standard_normal_at_every_voxel() -> None:
    fields = many(6.0, Grid((7, 5), spacing=(2.0, 3.5)))
    n = len(fields)
    assert np.abs(fields.mean(axis=0)).max() < 4 / np.sqrt(n)
    assert np.abs(fields.var(axis=0) - 1).max() < 4 * np.sqrt(2 / n)
    assert stats.kstest(fields[:, 3, 2], "norm").pvalue > 0.01
    assert stats.kstest(1.2 * fields[:, 3, 2], "norm").pvalue < 0.01


def test_sampled_correlation_is_that_of_millimetres_on_every_axis() -> None:
    length, spacing = 6.0, np.array([1.0, 2.5, 4.0])
    fields = many(length, Grid((13, 6, 4), spacing=tuple(spacing)))
    origin = fields[:, 0, 0, 0]
    for place in [(3, 0, 0), (6, 0, 0), (12, 0, 0), (0, 2, 0), (0, 0, 3), (2, 2, 1), (4, 1, 2)]:
        measured = np.mean(origin * fields[(slice(None), *place)])
        squared = np.sum((np.array(place) * spacing) ** 2)
        assert measured == pytest.approx(np.exp(-squared / (2 * length**2)), abs=0.09)
    # The same places measured in voxels would be far off.
    assert abs(np.mean(origin * fields[:, 0, 0, 3]) - np.exp(-(3**2) / (2 * length**2))) > 0.5


def test_fields_are_independent_across_samples_labels_fields_and_seeds() -> None:
    grid = Grid((400,))
    one, two = Field(0.01, 1.0), Field(0.02, 1.0)
    first = drawn([one], grid, samples=4)  # (4, 3, 400)
    second = drawn([Field(1.0, 0.0), two], grid, samples=4)
    (other,) = sample_fields([one], 12, [0], grid, 3)
    rows = np.concatenate([first.reshape(-1, 400), second.reshape(-1, 400), other])
    correlation = np.corrcoef(rows) - np.eye(len(rows))
    assert np.abs(correlation).max() * np.sqrt(400) < 4.5
    shared = rows + 0.5 * rows[:1]
    assert np.abs(np.corrcoef(shared) - np.eye(len(rows))).max() * np.sqrt(400) > 4.5


def test_a_field_of_almost_no_length_is_white_noise() -> None:
    values = drawn([Field(1e-3, 1.0)], Grid((50, 40)), n_labels=2)[0, 0].reshape(50, 40)
    assert stats.kstest(values.ravel(), "norm").pvalue > 0.01
    for one, other in [(values[1:], values[:-1]), (values[:, 1:], values[:, :-1])]:
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) * np.sqrt(one.size) < 4


def test_an_infinite_length_is_one_number_for_the_whole_image() -> None:
    grid = Grid((4, 5, 3), spacing=(1.0, 2.0, 30.0))
    each = drawn([Field(math.inf, 2.0)], grid, samples=3)  # (3, 3, N)
    assert np.ptp(each, axis=2).max() == 0
    assert np.unique(each[:, :, 0]).size == 9
    many_offsets = many(math.inf, Grid((1,)))
    assert many_offsets.var() == pytest.approx(1, abs=0.1)


def test_a_group_of_labels_shares_one_field_and_the_others_have_none() -> None:
    grid = Grid((30, 20))
    total = drawn([Field(5.0, 1.5, labels=[3, 1])], grid, n_labels=5)[0]
    np.testing.assert_array_equal(total[1], total[3])
    assert not total[[0, 2, 4]].any()
    assert total[1].any()
    own = drawn([Field(5.0, 1.5)], grid, n_labels=5)[0]
    assert len(np.unique(own[:, 0])) == 5


def test_scales_multiply_and_fields_add_up() -> None:
    grid = Grid((12, 9), spacing=1.5)
    fields = [Field(4.0, 0.5, labels=[1, 2]), Field(9.0, 2.0), Field(4.0, 1.0)]
    together = drawn(fields, grid)
    apart = []
    for k in range(3):
        scales = [f.scale if j == k else 0.0 for j, f in enumerate(fields)]
        only = [Field(f.length_mm, scale, f.labels) for f, scale in zip(fields, scales)]
        apart.append(drawn(only, grid))
    np.testing.assert_allclose(together, sum(apart), rtol=0, atol=1e-5)
    twice = drawn([Field(4.0, 1.0, labels=[1, 2])], grid)
    np.testing.assert_allclose(twice, 2 * apart[0], rtol=1e-6)


def test_scale_zero_is_nothing_at_all() -> None:
    grid = Grid((4, 4))
    assert node_lattices([Field(3.0, 0.0)], grid, 2) == []
    assert not drawn([Field(3.0, 0.0), Field(math.inf, 0.0, labels=[1])], grid).any()
    alone, beside = drawn([Field(3.0, 1.0)], grid), drawn([Field(3.0, 1.0), Field(2.0, 0)], grid)
    np.testing.assert_array_equal(alone, beside)


@pytest.mark.parametrize("length", [0.7, 2.0, 9.0, math.inf])
def test_values_depend_neither_on_mask_nor_crop_nor_batch(length: float) -> None:
    rng = np.random.default_rng(1)
    spacing, fields = (1.0, 1.7, 2.9), [Field(length, 1.0), Field(3.0, 0.5, labels=[2])]
    grid = Grid((14, 11, 8), spacing)
    whole = drawn(fields, grid, samples=4).reshape(4, 3, *grid.shape)
    mask = np.zeros(grid.shape, dtype=bool)
    mask[4:9, 2:10, 3:7] = rng.random((5, 8, 4)) < 0.5
    masked = drawn(fields, Grid(grid.shape, spacing, mask), samples=4)
    np.testing.assert_array_equal(masked, whole[:, :, mask])
    crop = drawn(fields, Grid((9, 11, 5), spacing), samples=4)
    np.testing.assert_array_equal(crop.reshape(4, 3, 9, 11, 5), whole[:, :, :9, :, :5])
    for sample, values in zip([3, 1], sample_fields(fields, 11, [3, 1], grid, 3)):
        np.testing.assert_array_equal(values.reshape(3, *grid.shape), whole[sample])
    fewer = drawn([fields[0]], grid, samples=1, n_labels=2)
    alone = drawn([fields[0]], grid, samples=1)
    np.testing.assert_array_equal(fewer, alone[:, :2])


@pytest.mark.parametrize("shape", [(9,), (5, 4), (5, 4, 3), (4, 3, 2, 5)])
def test_images_of_one_to_four_axes(shape: tuple[int, ...]) -> None:
    fields = many(2.5, Grid(shape), samples=4)
    assert fields.var() == pytest.approx(1, abs=0.1)
    lag = fields[:, 1].ravel() * fields[:, 0].ravel()
    assert lag.mean() == pytest.approx(np.exp(-1 / (2 * 2.5**2)), abs=0.1)


def test_an_antithetic_pair_is_a_field_and_its_opposite() -> None:
    fields = [Field(4.0, 1.0), Field(math.inf, 0.5, labels=[0])]
    values = list(sample_fields(fields, 3, range(4), Grid((8, 8)), 3, antithetic=True))
    np.testing.assert_array_equal(values[0], -values[1])
    np.testing.assert_array_equal(values[2], -values[3])
    (plain,) = sample_fields(fields, 3, [2], Grid((8, 8)), 3)
    np.testing.assert_array_equal(values[2], plain)


def test_only_cells_near_the_mask_are_drawn() -> None:
    mask = np.zeros((200, 200, 200), dtype=bool)
    mask[150:160, 20:30, 100:110] = True
    assert NodeLattice(6.0, Grid(mask.shape, mask=mask), 2).shape == (5, 5, 5)


def test_a_description_is_plain() -> None:
    assert Field(3, 1, labels=np.array([2, 1, 2])).describe() == {
        "length_mm": 3.0,
        "scale": 1.0,
        "labels": [1, 2],
    }
    endless = Field(math.inf, 0.5).describe()
    assert json.loads(json.dumps(endless, allow_nan=False)) == endless
    assert math.isinf(float(str(endless["length_mm"])))


def test_equal_fields_are_equal() -> None:
    assert Field(3.0, 1.0, labels=range(1, 3)) == Field(3, 1, labels=(2, 1))
    assert len({Field(3.0, 1.0), Field(3.0, 1.0), Field(3.0, 2.0)}) == 2


def field(length_mm: Any = 3.0, scale: Any = 1.0, labels: Any = None) -> Field:
    return Field(length_mm, scale, labels)


def on_image(*fields: Field, shape: tuple[int, ...] = (3, 3), n_labels: int = 3) -> object:
    return sample_fields(fields, 0, [0], Grid(shape, mask=None), n_labels)


BAD = [
    Bad(
        "length_zero",
        ValueError,
        r"length_mm of Field must be positive, got 0.0",
        lambda: field(length_mm=0),
    ),
    Bad(
        "length_negative",
        ValueError,
        r"length_mm of Field must be positive, got -2.0",
        lambda: field(length_mm=-2),
    ),
    Bad(
        "length_nan",
        ValueError,
        r"length_mm of Field must be .*, got nan",
        lambda: field(length_mm=math.nan),
    ),
    Bad(
        "length_text",
        TypeError,
        r"length_mm of Field must be a number, got str 'inf'",
        lambda: field(length_mm="inf"),
    ),
    Bad(
        "scale_negative",
        ValueError,
        r"scale of Field must be at least 0, got -1.0",
        lambda: field(scale=-1),
    ),
    Bad(
        "scale_infinite",
        ValueError,
        r"scale of Field must be finite and at least 0, got inf",
        lambda: field(scale=math.inf),
    ),
    Bad(
        "labels_number",
        TypeError,
        r"labels of Field must be None or a collection of labels, got 2: write labels=\[label\]",
        lambda: field(labels=2),
    ),
    Bad(
        "labels_text",
        TypeError,
        r"labels of Field must be None or a collection of labels, got 'all'",
        lambda: field(labels="all"),
    ),
    Bad(
        "labels_empty",
        ValueError,
        r"labels of Field must name at least one label, got none: labels=None gives",
        lambda: field(labels=[]),
    ),
    Bad(
        "labels_negative",
        ValueError,
        r"labels of Field must be at least 0, got -1",
        lambda: field(labels=[1, -1]),
    ),
    Bad(
        "labels_fraction",
        TypeError,
        r"labels of Field must be an integer, got float 1.5",
        lambda: field(labels=[1.5]),
    ),
    Bad(
        "labels_out_of_range",
        ValueError,
        r"labels of Field must lie between 0 and 2, got values from 1 to 3",
        lambda: on_image(field(labels=[1, 3])),
    ),
    Bad(
        "labels_out_of_range_scale_zero",
        ValueError,
        r"labels of Field must lie between 0 and 2, got values from 3 to 3",
        lambda: on_image(field(scale=0, labels=[3])),
    ),
    Bad(
        "image_too_long",
        ValueError,
        r"fields must be on images of at most 4084 voxels along each of 4 axes, got shape",
        lambda: on_image(field(), shape=(1, 1, 1, 4085)),
    ),
    Bad(
        "seed",
        ValueError,
        r"seed must be at (least|most)",
        lambda: sample_fields([], -1, [0], Grid((2,)), 2),
    ),
    Bad(
        "samples",
        ValueError,
        r"samples must lie between 0 and",
        lambda: sample_fields([], 0, [-1], Grid((2,)), 2),
    ),
]


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.name)
def test_it_is_refused_in_words(bad: Bad) -> None:
    with pytest.raises(bad.error, match=bad.message):
        bad.call()
