"""Nested regions of any shape: their exclusive labels, by hand and by drawing segmentations."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perturb_mpm.files.nnunet import NestedRegions, Region


def region(name: str, labels: set[int], painted: int) -> Region:
    return Region(name, frozenset(labels), painted)


# A liver with vessels and two kinds of tumour, one of them with a core; and a spleen beside it.
ORGANS = NestedRegions(
    [
        region("liver", {1, 2, 3, 4}, 1),
        region("spleen", {7}, 7),
        region("vessel", {2}, 2),
        region("tumour", {3, 4}, 3),
        region("core", {4}, 4),
    ]
)


def test_the_labels_are_what_is_painted() -> None:
    scheme = ORGANS.scheme()
    assert scheme.values == (0, 1, 2, 3, 4, 7)
    assert scheme.names == (
        "background",
        "liver (rest)",
        "vessel",
        "tumour (rest)",
        "core",
        "spleen",
    )


def test_one_voxel_by_hand() -> None:
    #                 liver spleen vessel tumour core
    maps = np.array([0.7, 0.2, 0.1, 0.5, 0.3], np.float32).reshape(5, 1, 1, 1)
    found = ORGANS.exclusive(maps).ravel()
    # background 1 − .7 − .2, liver .7 − .1 − .5, vessel, tumour .5 − .3, core, spleen
    np.testing.assert_allclose(found, [0.1, 0.1, 0.1, 0.2, 0.3, 0.2], atol=1e-6)


def test_contradictions_are_shared_out() -> None:
    maps = np.array([0.2, 0.9, 0.0, 0.6, 0.0], np.float32).reshape(5, 1, 1, 1)
    found = ORGANS.exclusive(maps).ravel()
    # background 1 − 1.1 < 0, liver .2 − .6 < 0, tumour .6, spleen .9, divided by 1.5
    np.testing.assert_allclose(found, [0, 0, 0, 0.4, 0, 0.6], atol=1e-6)


@given(st.integers(0, 10_000))
def test_regions_of_a_distribution_give_it_back(seed: int) -> None:
    labels = np.random.default_rng(seed).dirichlet(np.full(6, 0.4), size=(2, 3, 2))
    labels = np.moveaxis(labels, -1, 0)  # (L, X, Y, Z)
    values = ORGANS.scheme().values
    maps = np.stack(
        [sum(labels[values.index(l)] for l in each.labels) for each in ORGANS.regions]
    ).astype(np.float32)
    np.testing.assert_allclose(ORGANS.exclusive(maps), labels, atol=2e-6)


@given(st.integers(0, 10_000))
def test_any_maps_give_a_distribution(seed: int) -> None:
    maps = np.random.default_rng(seed).beta(0.3, 0.3, (5, 2, 2, 2)).astype(np.float32)
    found = ORGANS.exclusive(maps)
    assert found.min() >= 0
    np.testing.assert_allclose(found.sum(axis=0), 1, atol=5e-7)


def test_certain_maps_give_what_nnunet_paints() -> None:
    corners = np.array(list(itertools.product([0, 1], repeat=5)), np.float32)  # (32, 5)
    nested = [c for c in corners if c[0] >= max(c[2], c[3]) and c[3] >= c[4]]
    apart = [c for c in nested if c[2] * c[3] == 0 and c[0] * c[1] == 0]
    assert len(apart) == 6
    for corner in apart:
        painted = 0
        for each, inside in zip(ORGANS.regions, corner):
            painted = each.painted if inside > 0.5 else painted
        found = ORGANS.exclusive(corner.reshape(5, 1, 1, 1)).ravel()
        assert ORGANS.scheme().values[found.argmax()] == painted
        assert found.max() == 1


def test_a_region_that_its_parts_fill_up_goes_to_the_label_it_is_painted_with() -> None:
    regions = NestedRegions([region("both", {1, 2}, 2), region("a", {1}, 1), region("b", {2}, 2)])
    maps = np.array([0.9, 0.3, 0.4], np.float32).reshape(3, 1, 1, 1)
    np.testing.assert_allclose(regions.exclusive(maps).ravel(), [0.1, 0.3, 0.6], atol=1e-6)
    assert regions.scheme().names == ("background", "a", "b")


@given(st.permutations(range(5)))
def test_the_maps_may_come_in_any_order(order: list[int]) -> None:
    maps = np.random.default_rng(1).beta(0.3, 0.3, (5, 2, 2, 2)).astype(np.float32)
    other = NestedRegions([ORGANS.regions[i] for i in order])
    assert other.scheme() == ORGANS.scheme()
    np.testing.assert_allclose(other.exclusive(maps[order]), ORGANS.exclusive(maps), atol=1e-6)


def test_labels_are_painted_in_the_order_of_the_maps() -> None:
    core_first = NestedRegions([region("core", {2}, 2), region("whole", {1, 2}, 1)])
    maps = np.array([[0.9, 0.2, 0.6], [0.8, 0.7, 0.5]], np.float32).reshape(2, 3, 1, 1)
    # The whole hides the core wherever both are found, as in nnU-Net's own label map.
    assert core_first.paint(maps).ravel().tolist() == [1, 1, 2]
    # The distribution knows better.
    assert core_first.exclusive(maps).argmax(axis=0).ravel().tolist() == [2, 1, 2]


def test_swapped_maps_contradict_each_other() -> None:
    nested = NestedRegions([region("core", {2}, 2), region("whole", {1, 2}, 1)])
    whole = np.zeros((10, 10, 10), np.float32)
    whole[2:8, 2:8, 2:8] = 0.9
    core = np.zeros_like(whole)
    core[3:7, 3:7, 3:7] = 0.8
    assert nested.contradiction(np.stack([core, whole])) is None
    swapped = nested.contradiction(np.stack([whole, core]))
    assert swapped is not None
    assert "'core' (map 0) must lie inside 'whole' (map 1), got 152 of its 216" in swapped
    # A speck of one region outside the other is what networks do.
    core[0, 0, :9] = 0.9
    assert nested.contradiction(np.stack([core, whole])) is None


@pytest.mark.parametrize(
    ("regions", "message"),
    [
        ([region("a", {1, 2}, 1), region("b", {2, 3}, 3)], "must be nested or apart, but 'a'"),
        ([region("a", {1}, 1), region("b", {1}, 1)], "'a' and 'b' have the same labels"),
        ([region("a", {0, 1}, 1)], r"'a' must not contain background \(0\)"),
        ([region("a", {1, 2}, 3)], r"'a' must be painted with a label of its own \(1, 2\), got 3"),
        (
            [region("a", {1, 2, 3}, 3), region("b", {2, 3}, 2)],
            r"'a' must be painted with a label of its own \(1\), got 3",
        ),
    ],
)
def test_regions_that_cannot_be_told_apart(regions: list[Region], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NestedRegions(regions)
