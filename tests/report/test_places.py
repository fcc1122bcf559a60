"""Uncertain regions of maps made by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from helpers.report_cases import entropy_bits, report_case, turned
from perturb_mpm.report.data import ReportData
from perturb_mpm.report.places import UncertainRegion, uncertain_regions, uncertain_voxels

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
    return report_case(
        SHAPE,
        changes.pop("affine", None),
        marginals=marginals,
        uncertainty=classes,
        entropy=entropy_bits(marginals),
        **changes,
    )


def two_regions(**changes: object) -> list[UncertainRegion]:
    return uncertain_regions(case((SMALL, SHARES["small"]), (LARGE, SHARES["large"]), **changes))


def test_volumes_entropy_and_labels_by_hand() -> None:
    large, small = two_regions(affine=np.diag([2.0, 2.0, 3.0, 1.0]))
    assert [large.rank, small.rank] == [1, 2]
    assert [large.voxels, small.voxels] == [27, 3]
    assert large.volume_ml == pytest.approx(27 * 12 / 1000)
    assert small.volume_ml == pytest.approx(3 * 12 / 1000)
    assert small.mean_entropy_bits == pytest.approx(0.811278, abs=1e-5)  # h(1/4)
    assert large.mean_entropy_bits == pytest.approx(1.512888, abs=1e-5)
    assert [name for name, _ in large.labels] == ["healthy", "oedema"]
    assert [share for _, share in large.labels] == pytest.approx([0.45, 0.35])
    assert [name for name, _ in small.labels] == ["enhancing", "necrosis"]
    assert [share for _, share in small.labels] == pytest.approx([0.75, 0.25])


def test_centres_in_mm_of_an_oblique_scan() -> None:
    large, small = two_regions(affine=turned(30.0))
    assert large.centre_voxel == (3, 4, 5)
    assert small.centre_voxel == (14, 20, 11)
    c, s = math.sqrt(3.0) / 2.0, 0.5
    assert large.centre_mm == pytest.approx((5 + 6 * c - 8 * s, -7 + 6 * s + 8 * c, 11 + 15))
    assert small.centre_mm == pytest.approx((5 + 28 * c - 40 * s, -7 + 28 * s + 40 * c, 11 + 33))
    assert large.volume_ml == pytest.approx(27 * 12 / 1000)


def test_voxels_that_share_a_corner_are_one_region() -> None:
    first, second = (slice(4, 6),) * 3, (slice(6, 8),) * 3
    apart = (slice(7, 9),) * 3
    touching = case((first, SHARES["small"]), (second, SHARES["small"]))
    assert [region.voxels for region in uncertain_regions(touching)] == [16]
    separate = case((first, SHARES["small"]), (apart, SHARES["small"]))
    assert [region.voxels for region in uncertain_regions(separate)] == [8, 8]


def test_a_small_and_very_uncertain_region_can_lead() -> None:
    even = (0.25, 0.25, 0.25, 0.25)  # 2 bits
    regions = uncertain_regions(case((LEAST, even), (LARGE, (0.98, 0.02, 0.0, 0.0))))
    assert [region.mean_entropy_bits for region in regions] == pytest.approx(
        [2.0, 0.141441], abs=1e-5
    )


def test_a_hollow_region_has_its_centre_in_itself() -> None:
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
    (region,) = uncertain_regions(only)
    assert region.voxels == 16
    assert ring[region.centre_voxel]


def test_a_wide_region_is_divided_and_none_is_lost() -> None:
    bar: Cube = (slice(0, 20), slice(2, 5), slice(2, 5))  # 40 mm long
    data = case((bar, SHARES["large"]))
    parts = uncertain_regions(data)
    assert len(parts) > 1
    assert sum(part.voxels for part in parts) == 180
    centres = [part.centre_mm for part in parts]
    assert min(math.dist(a, b) for a in centres for b in centres if a != b) > 8.0
    (whole,) = uncertain_regions(data, widest_mm=math.inf)
    assert whole.voxels == 180


def test_the_limit_keeps_the_first() -> None:
    data = case((SMALL, SHARES["small"]), (LARGE, SHARES["large"]))
    assert uncertain_regions(data, limit=1) == uncertain_regions(data)[:1]


def test_without_uncertain_voxels_undecided_ones_count_then_any_dissent() -> None:
    undecided = case((SMALL, SHARES["small"]), uncertain=1)
    assert [region.voxels for region in uncertain_regions(undecided)] == [3]
    assert uncertain_voxels(undecided)[1].startswith("undecided")
    # An undecided voxel without any dissent is no place to look at.
    agreed = case((SMALL, (1.0, 0.0, 0.0, 0.0)), uncertain=1)
    assert uncertain_regions(agreed) == []
    dissent = case((SMALL, SHARES["small"]), uncertain=0)
    assert [region.voxels for region in uncertain_regions(dissent)] == [3]
    assert uncertain_voxels(dissent)[1].startswith("disagreed")
