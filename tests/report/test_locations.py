"""Uncertain locations of maps made by hand."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.ndimage import binary_dilation, distance_transform_edt, generate_binary_structure

from helpers.report_cases import entropy_bits, report_case, turned
from perturb_mpm.report import locations
from perturb_mpm.report.data import ReportData
from perturb_mpm.report.locations import (
    GAP_MM,
    UncertainLocation,
    uncertain_locations,
    uncertain_voxels,
)

SHAPE = (20, 24, 16)
Cube = tuple[slice, slice, slice]
Shares = tuple[float, ...]

LARGE: Cube = (slice(2, 5), slice(3, 6), slice(4, 7))  # 27 voxels around (3, 4, 5)
SMALL: Cube = (slice(14, 15), slice(20, 21), slice(10, 13))  # 3 voxels around (14, 20, 11)
LEAST: Cube = (slice(14, 17), slice(3, 4), slice(3, 4))  # 3 voxels
SHARES = {"large": (0.45, 0.0, 0.35, 0.2), "small": (0.0, 0.25, 0.0, 0.75)}


def case(*cubes: tuple[Cube, Shares], uncertain: int = 2, **changes: object) -> ReportData:
    marginals = np.zeros((4, *SHAPE), dtype=np.float32)
    marginals[0] = 1.0
    classes = np.zeros(SHAPE, dtype=np.uint8)
    for cube, shares in cubes:
        marginals[:, *cube] = np.reshape(shares, (4, 1, 1, 1))
        classes[cube] = uncertain
    values = {
        "marginals": marginals,
        "labels": marginals.argmax(axis=0).astype(np.uint8),
        "uncertainty": classes,
        "entropy": entropy_bits(marginals),
    }
    return report_case(SHAPE, changes.pop("affine", None), **(values | changes))


def two_locations(**changes: object) -> list[UncertainLocation]:
    return uncertain_locations(case((SMALL, SHARES["small"]), (LARGE, SHARES["large"]), **changes))


def test_volumes_entropy_and_labels_by_hand() -> None:
    large, small = two_locations(affine=np.diag([2.0, 2.0, 3.0, 1.0]))
    assert [large.rank, small.rank] == [1, 2]
    assert [large.voxels, small.voxels] == [27, 3]
    assert large.volume_ml == pytest.approx(27 * 12 / 1000)
    assert small.volume_ml == pytest.approx(3 * 12 / 1000)
    assert large.wrong_ml == pytest.approx(0.55 * 27 * 12 / 1000)
    assert small.wrong_ml == pytest.approx(0.25 * 3 * 12 / 1000)
    assert small.mean_entropy_bits == pytest.approx(0.811278, abs=1e-5)  # h(1/4)
    assert large.mean_entropy_bits == pytest.approx(1.512888, abs=1e-5)
    assert large.labels == ("healthy", "oedema")
    assert large.shares == pytest.approx((0.45, 0.35))
    assert small.labels == ("enhancing", "necrosis")
    assert small.shares == pytest.approx((0.75, 0.25))


def test_centres_in_mm_of_an_oblique_scan() -> None:
    large, small = two_locations(affine=turned(30.0))
    assert large.centre_voxel == (3, 4, 5)
    assert small.centre_voxel == (14, 20, 11)
    c, s = math.sqrt(3.0) / 2.0, 0.5
    assert large.centre_mm == pytest.approx((5 + 6 * c - 8 * s, -7 + 6 * s + 8 * c, 11 + 15))
    assert small.centre_mm == pytest.approx((5 + 28 * c - 40 * s, -7 + 28 * s + 40 * c, 11 + 33))
    assert large.volume_ml == pytest.approx(27 * 12 / 1000)


def test_pieces_near_each_other_are_one_location_and_far_ones_are_not() -> None:
    def parts(gap_voxels: int) -> list[int]:
        first: Cube = (slice(2, 4), slice(4, 6), slice(4, 6))
        start = 4 + gap_voxels
        second: Cube = (slice(start, start + 2), slice(4, 6), slice(4, 6))
        data = case((first, SHARES["small"]), (second, SHARES["small"]), affine=np.eye(4))
        return [location.voxels for location in uncertain_locations(data)]

    assert parts(0) == [16]
    assert parts(round(GAP_MM) - 1) == [16]
    assert parts(round(GAP_MM) + 2) == [8, 8]


def test_a_rim_in_pieces_is_one_location_but_each_pair_of_labels_has_its_own() -> None:
    """Around a box of oedema: uncertain on all sides, in stripes; its middle competes with core."""
    labels = np.zeros(SHAPE, dtype=np.uint8)
    labels[5:15, 6:18, 4:12] = 2
    marginals = np.zeros((4, *SHAPE), dtype=np.float32)
    np.put_along_axis(marginals, labels[None].astype(int), 1.0, axis=0)
    rim = labels == 2
    rim[6:14, 7:17, 5:11] = False
    rim[:, ::3] = False  # stripes
    middle = np.zeros(SHAPE, dtype=bool)
    middle[9:11, 11:13, 7:9] = True
    marginals[:, rim] = np.reshape([0.4, 0, 0.6, 0], (4, 1))
    marginals[:, middle] = np.reshape([0, 0.3, 0.7, 0], (4, 1))
    data = report_case(
        SHAPE,
        marginals=marginals,
        labels=labels,
        entropy=entropy_bits(marginals),
        uncertainty=np.where(rim | middle, 2, 0).astype(np.uint8),
    )
    locations = uncertain_locations(data)
    assert [(location.labels, location.voxels) for location in locations] == [
        (("oedema", "necrosis"), 8),
        (("oedema", "healthy"), int(rim.sum())),  # holds most of the error, as borders do
    ]
    assert [(location.kind, location.where) for location in locations] == [
        ("apart", "inside oedema"),
        ("border", "border of oedema, all around"),
    ]


OFFSET = np.stack(np.meshgrid(*(np.arange(48) - 23.5,) * 3, indexing="ij"))  # (3, X, Y, Z)
RADIUS = np.linalg.norm(OFFSET, axis=0)
RIND = np.abs(RADIUS - 12) < 2  # the border of a ball of oedema, 2 mm to each side


def oedema_with_doubt(doubt: NDArray[np.bool_]) -> ReportData:
    """A ball of oedema that competes with healthy where there is doubt."""
    labels = np.where(RADIUS < 12, 2, 0).astype(np.uint8)
    marginals = np.zeros((4, *labels.shape), dtype=np.float32)
    np.put_along_axis(marginals, labels[None].astype(int), 1.0, axis=0)
    marginals[:, doubt & (labels == 2)] = np.reshape([0.3, 0, 0.7, 0], (4, 1))
    marginals[:, doubt & (labels == 0)] = np.reshape([0.7, 0, 0.3, 0], (4, 1))
    return report_case(
        labels.shape,
        np.eye(4),
        marginals=marginals,
        labels=labels,
        entropy=entropy_bits(marginals),
        uncertainty=np.where(doubt, 2, 0).astype(np.uint8),
    )


def test_a_bulge_of_doubt_is_told_from_the_plain_border() -> None:
    """A ball with a border of 2 mm to each side, and a cone of doubt 10 mm beyond its front."""
    bulge = (RADIUS >= 12) & (RADIUS < 22) & (np.hypot(OFFSET[0], OFFSET[2]) < 4) & (OFFSET[1] > 0)
    doubt = RIND | bulge
    data = oedema_with_doubt(doubt)
    place, border = uncertain_locations(data)
    assert [place.kind, border.kind] == ["thick", "border"]
    assert place.wrong_ml < border.wrong_ml
    assert re.fullmatch(r"front border of oedema, up to (9|10) mm beyond it", place.where)
    assert place.voxels + border.voxels == np.count_nonzero(doubt)
    beyond = bulge & (12 + border.reach_mm + 1.5 < RADIUS)
    assert np.count_nonzero(beyond) <= place.voxels <= np.count_nonzero(bulge)
    assert place.changed == "oedema"
    assert place.change_ml == pytest.approx(place.volume_ml)
    assert place.change_share == pytest.approx(place.voxels / np.count_nonzero(data.labels))
    # Without the cone nothing is beyond the border.
    data.uncertainty[bulge & (RADIUS >= 14)] = 0
    (only,) = uncertain_locations(data)
    assert only.kind == "border"


def test_doubt_across_a_border_is_one_place_where_it_is_thick() -> None:
    """The border of a ball, and a smaller ball of doubt half inside and half outside of it."""
    across = np.linalg.norm(OFFSET - np.reshape([0, 12, 0], (3, 1, 1, 1)), axis=0) < 6
    place, border = uncertain_locations(oedema_with_doubt(RIND | across))
    assert [place.kind, border.kind] == ["thick", "border"]
    assert place.where.startswith("front border of oedema")
    assert place.voxels == pytest.approx(np.count_nonzero(across), rel=0.15)
    assert place.voxels + border.voxels == np.count_nonzero(RIND | across)


def test_the_jump_goes_where_exactly_these_labels_compete() -> None:
    rng = np.random.default_rng(8)
    for _ in range(5):
        shares = rng.dirichlet([0.5] * 4, SHAPE)
        marginals = np.moveaxis(shares, -1, 0).astype(np.float32)
        data = case(
            marginals=marginals,
            entropy=entropy_bits(marginals),
            labels=marginals.argmax(axis=0).astype(np.uint8),
            uncertainty=np.where(marginals.max(axis=0) < 0.95, 2, 0).astype(np.uint8),
        )
        for location in uncertain_locations(data):
            here = marginals[:, *location.centre_voxel]
            leading = {data.label_names[label] for label in np.argsort(-here)[:2]}
            assert leading == set(location.labels)
            assert data.uncertainty[location.centre_voxel] == 2


def test_a_small_location_with_more_errors_leads() -> None:
    even = (0.25, 0.25, 0.25, 0.25)
    locations = uncertain_locations(case((LEAST, even), (LARGE, (0.98, 0.02, 0.0, 0.0))))
    assert [location.voxels for location in locations] == [3, 27]
    assert [location.wrong_ml for location in locations] == pytest.approx(
        [0.75 * 0.036, 0.02 * 0.324]
    )


def test_a_noteworthy_place_comes_before_a_border_with_more_error_and_specks_come_last() -> None:
    """By hand: w / W + min(1, w / (V + 0.5 ml)) is 0.05 or more, in voxels of 12 mm³."""
    box: Cube = (slice(2, 12), slice(2, 22), slice(1, 7))  # 1200 voxels of oedema
    rim: Cube = (slice(2, 3), slice(2, 22), slice(1, 7))  # 120 voxels of its border
    apart: Cube = (slice(16, 18), slice(10, 20), slice(10, 12))  # 40 voxels away from it
    oedema = (box, (0.0, 0.0, 1.0, 0.0))
    border = (rim, (0.3, 0.0, 0.7, 0.0))  # w = 36
    speck = 500 / 12  # voxels

    def ranked(*shares: float) -> list[str]:
        data = case(oedema, border, (apart, shares))
        data.uncertainty[box] = 0
        data.uncertainty[rim] = 2
        return [location.kind for location in uncertain_locations(data)]

    # More oedema in 40 voxels: w = 20. In 40 voxels of 3 %: w = 1.2.
    assert 1.2 / 37.2 + 1.2 / (1200 + speck) < 0.05 < 20 / 56 + 20 / (1200 + speck)
    assert ranked(0.5, 0.0, 0.5, 0.0) == ["apart", "border"]
    assert ranked(0.97, 0.0, 0.03, 0.0) == ["border", "apart"]
    # New necrosis is noteworthy at 3 %, but a few doubtful voxels are not.
    assert 0.8 / 36.8 + 0.8 / speck < 0.05 < 1.2 / 37.2 + 1.2 / speck
    assert ranked(0.97, 0.03, 0.0, 0.0) == ["apart", "border"]
    assert ranked(0.98, 0.02, 0.0, 0.0) == ["border", "apart"]


def test_a_hollow_location_has_its_centre_in_itself() -> None:
    ring = np.zeros(SHAPE, dtype=bool)
    ring[4:9, 4:9, 5] = True
    ring[5:8, 5:8, 5] = False
    data = case((LARGE, SHARES["large"]))
    marginals = np.where(ring, np.reshape([0.5, 0.5, 0, 0], (4, 1, 1, 1)), data.marginals)
    only = report_case(
        SHAPE,
        marginals=marginals.astype(np.float32),
        entropy=np.where(ring, 1.0, 0.0).astype(np.float32),
        uncertainty=(2 * ring).astype(np.uint8),
    )
    (location,) = uncertain_locations(only)
    assert location.voxels == 16
    assert ring[location.centre_voxel]


def test_the_limit_keeps_the_first() -> None:
    rng = np.random.default_rng(2)
    shares = np.moveaxis(rng.dirichlet([0.3] * 4, SHAPE), -1, 0).astype(np.float32)
    classes = np.where(rng.random(SHAPE) < 0.02, 2, 0).astype(np.uint8)
    data = case(marginals=shares, entropy=entropy_bits(shares), uncertainty=classes)
    every = uncertain_locations(data, limit=10_000)
    assert len(every) > 20
    assert sum(location.voxels for location in every) == np.count_nonzero(classes)
    for limit in (1, 3, 10):
        assert uncertain_locations(data, limit=limit) == every[:limit]


def test_without_uncertain_voxels_undecided_ones_count() -> None:
    undecided = case((SMALL, SHARES["small"]), uncertain=1)
    assert [location.voxels for location in uncertain_locations(undecided)] == [3]
    assert uncertain_voxels(undecided)[1].startswith("undecided")
    # An undecided voxel without any dissent is no location to look at.
    agreed = case((SMALL, (1.0, 0.0, 0.0, 0.0)), uncertain=1)
    assert uncertain_locations(agreed) == []
    assert uncertain_locations(case((SMALL, SHARES["small"]), uncertain=0)) == []


SIDES = {  # towards more of each scanner axis, and less
    "right": (0, 1),
    "left": (0, -1),
    "front": (1, 1),
    "back": (1, -1),
    "upper": (2, 1),
    "lower": (2, -1),
}


def ball_with_doubt(side: str, affine: np.ndarray, **changes: object) -> ReportData:
    """A ball of oedema on a grid of 40 × 40 × 40 mm, uncertain on one side of its border."""
    shape = (40, 40, 40)
    steps = np.stack(np.meshgrid(*(np.arange(40) - 19.5,) * 3, indexing="ij"), axis=-1)
    mm = steps @ affine[:3, :3].T  # (40, 40, 40, 3)
    radius = np.linalg.norm(mm, axis=-1)
    labels = np.where(radius < 12, 2, 0).astype(np.uint8)
    world, sign = SIDES[side]
    rim = (np.abs(radius - 12) < 1.5) & (sign * mm[..., world] > 9)
    marginals = np.zeros((4, *shape), dtype=np.float32)
    np.put_along_axis(marginals, labels[None].astype(int), 1.0, axis=0)
    marginals[:, rim] = np.reshape([0.45, 0, 0.55, 0], (4, 1))
    return report_case(
        shape,
        affine,
        marginals=marginals,
        labels=labels,
        entropy=entropy_bits(marginals),
        uncertainty=np.where(rim, 2, 0).astype(np.uint8),
        **changes,
    )


AFFINES = {
    "RAS": np.diag([1.0, 1.0, 1.0, 1.0]),
    "LPS": np.diag([-1.0, -1.0, 1.0, 1.0]),
    "axes swapped": np.array([[0, 0, -1.0, 0], [1, 0, 0, 0], [0, -1, 0, 0], [0, 0, 0, 1]]),
}


@pytest.mark.parametrize("affine", AFFINES)
@pytest.mark.parametrize("side", SIDES)
def test_sides_are_the_patients_whatever_the_order_of_voxels(side: str, affine: str) -> None:
    (location,) = uncertain_locations(ball_with_doubt(side, AFFINES[affine]))
    assert location.where == f"{side} border of oedema"


def test_without_an_orientation_no_side_is_said() -> None:
    (location,) = uncertain_locations(ball_with_doubt("front", AFFINES["RAS"], oriented=False))
    assert location.where == "border of oedema near voxel " + ", ".join(
        map(str, location.centre_voxel)
    )


def test_doubt_away_from_its_label_and_where_no_label_is() -> None:
    box: Cube = (slice(12, 18), slice(14, 20), slice(4, 10))
    left: Cube = (slice(1, 4), slice(14, 18), slice(4, 8))
    oedema = (box, (0.0, 0.0, 1.0, 0.0))
    data = case(oedema, (left, (0.7, 0.0, 0.3, 0.0)))
    data.uncertainty[box] = 0
    (location,) = uncertain_locations(data)
    assert location.where == "apart from oedema, on its left side"
    # Enhancing tumour competes but has no voxel of its own.
    vanished = case(oedema, (left, (0.7, 0.0, 0.0, 0.3)))
    vanished.uncertainty[box] = 0
    (location,) = uncertain_locations(vanished)
    assert location.labels == ("healthy", "enhancing")
    assert location.where == "left part of the image"


@pytest.mark.parametrize("spacing", [(1.0, 1.0, 1.0), (0.7, 1.3, 2.5), (4.0, 1.0, 9.0)])
def test_distances_and_what_is_near_are_those_of_a_distance_transform(
    spacing: tuple[float, float, float],
) -> None:
    rng = np.random.default_rng(5)
    where = rng.random((9, 12, 11)) < 0.02
    away = distance_transform_edt(~where, sampling=spacing)
    voxels = np.argwhere(np.ones_like(where))
    found = locations._distances(voxels, np.argwhere(where), spacing)
    np.testing.assert_array_equal(found, away.ravel())
    near = locations._distances(voxels, np.argwhere(where), spacing, 4.0)
    np.testing.assert_array_equal(np.isfinite(near), away.ravel() <= 4.0)
    for radius in (0.0, 1.0, GAP_MM / 2, 4.0, 20.0):
        np.testing.assert_array_equal(locations._grow(where, radius, spacing), away <= radius)


@pytest.mark.parametrize("shape", [(9, 12, 11), (9, 12, 1), (1, 1, 1)])
def test_neighbours_are_those_of_a_dilation(shape: tuple[int, ...]) -> None:
    where = np.random.default_rng(5).random(shape) < 0.1
    faces, corners = generate_binary_structure(3, 1), generate_binary_structure(3, 3)
    beside, around = (
        locations._add_neighbours(where),
        locations._add_neighbours(where, corners=True),
    )
    np.testing.assert_array_equal(beside, binary_dilation(where, faces))
    np.testing.assert_array_equal(around, binary_dilation(where, corners))
