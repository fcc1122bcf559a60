"""Surface distances: by hand, and as MONAI has them where it is installed."""

from __future__ import annotations

import math

import numpy as np
import pytest

from perturb_mpm.evaluation import (
    area_surface_dice,
    confusion,
    dice,
    surface_distances,
)
from perturb_mpm.evaluation.masks import element_areas

SPACING = (1.0, 2.0, 3.0)


def line(*indices: int) -> np.ndarray:
    mask = np.zeros((30, 3, 3), bool)
    mask[list(indices), 1, 1] = True
    return mask


def blobs(seed: int) -> tuple[np.ndarray, np.ndarray]:
    from scipy.ndimage import gaussian_filter

    rng = np.random.default_rng(seed)
    both = gaussian_filter(rng.normal(size=(2, 14, 12, 10)), (0, 1.5, 1.5, 1.5))
    return both[0] > 0.05, both[1] + 0.5 * both[0] > 0.05


def test_distances_of_points_by_hand() -> None:
    one, other = line(0, 10), line(0, 14)
    # 0 is in both; 10 is 4 from 14, 14 is 4 from 10.
    found = surface_distances(one, other, 1.0)
    assert found.hausdorff == 4
    assert found.hausdorff95 == pytest.approx(3.8)  # of 0 and 4, in both directions
    assert found.hausdorff95_pooled == 4  # of 0, 0, 4, 4
    assert found.average == 2
    assert found.dice(3.9) == 0.5
    # To the other: 0, 0. From it: 0, 0, 1, 19.
    found = surface_distances(one, line(0, 10, 11, 29), 1.0)
    assert found.average == pytest.approx(20 / 6)
    assert found.hausdorff == 19
    assert found.hausdorff95_pooled == pytest.approx(np.percentile([0, 0, 0, 0, 1, 19], 95))
    assert found.hausdorff95 == pytest.approx(np.percentile([0, 0, 1, 19], 95))


@pytest.mark.parametrize("size", [1.0, 2.5])
def test_empty_masks_have_one_rule(size: float) -> None:
    empty, full = np.zeros((4, 4, 4), bool), np.zeros((4, 4, 4), bool)
    full[1:3, 1:3, 1:3] = True
    for first, second in ((empty, empty), (empty, full), (full, empty)):
        far, overlap = (0, 1) if first is second else (math.inf, 0)
        found = surface_distances(first, second, size)
        distances = (found.hausdorff, found.hausdorff95, found.hausdorff95_pooled, found.average)
        assert distances == (far,) * 4
        assert found.dice(1.0) == area_surface_dice(first, second, size) == overlap


def test_areas_of_surface_elements_by_hand() -> None:
    areas = element_areas((1.0, 2.0, 3.0))
    corner = np.array([[0.5, 0, 0], [0, 1.0, 0], [0, 0, 1.5]])  # midpoints of the edges of a corner
    triangle = np.linalg.norm(np.cross(corner[1] - corner[0], corner[2] - corner[0])) / 2
    assert areas[0b10000000] == pytest.approx(triangle)
    assert areas[0b01111111] == pytest.approx(triangle)  # the same surface from the other side
    assert areas[0b11110000] == pytest.approx(2 * 3)  # a face across the first axis
    assert areas[0b10000001] == pytest.approx(2 * triangle)  # two corners apart
    assert areas[0] == areas[255] == 0
    assert areas[0b11000000] == pytest.approx(3 * np.hypot(0.5, 1.0))  # a slope along the last axis


def test_a_plane_counts_by_its_area() -> None:
    """A slab of 4 mm, 40 × 40, against one of 6: their top faces are 2 mm apart."""
    one, other = np.zeros((2, 12, 40, 40), bool)
    one[2:6] = True
    other[2:8] = True
    found = area_surface_dice(one, other, 1.0, 1.0)
    by_voxels = surface_distances(one, other, 1.0).dice(1.0)
    # Bottoms 2 · 1600, sides 4 · 40 · 4, and of 4 · 40 · 6 all but about 1 mm; of 7800 in all.
    assert found == pytest.approx((3200 + 640 + 800) / 7800, abs=0.03)
    assert found != by_voxels
    assert area_surface_dice(one, other, 1.0, 2.0) == 1
    with pytest.raises(ValueError, match="three axes"):
        area_surface_dice(one[0], other[0], 1.0)


@pytest.mark.filterwarnings("ignore")  # what its own dependencies have to say
@pytest.mark.parametrize("seed", range(4))
def test_monai_measures_the_same(seed: int) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    pytest.importorskip("monai", reason="MONAI is not installed")
    from monai.metrics import (
        compute_average_surface_distance,
        compute_hausdorff_distance,
        compute_surface_dice,
    )

    one, other = blobs(seed)
    pair = [torch.from_numpy(each[np.newaxis, np.newaxis]) for each in (one, other)]
    options = {"include_background": True, "spacing": list(SPACING)}
    found = surface_distances(one, other, SPACING)
    theirs = float(compute_hausdorff_distance(*pair, **options))  # in float32
    assert found.hausdorff == pytest.approx(theirs, rel=1e-5)
    theirs = float(compute_hausdorff_distance(*pair, **options, percentile=95))
    assert found.hausdorff95 == pytest.approx(theirs, rel=1e-5)
    theirs = float(compute_average_surface_distance(*pair, **options, symmetric=True))
    assert found.average == pytest.approx(theirs, rel=1e-5)
    theirs = float(compute_surface_dice(*pair, [1.5], **options))
    assert found.dice(1.5) == pytest.approx(theirs, rel=1e-5)
    theirs = float(compute_surface_dice(*pair, [1.5], **options, use_subvoxels=True))
    assert area_surface_dice(one, other, SPACING, 1.5) == pytest.approx(theirs, rel=1e-5)


@pytest.mark.parametrize("seed", range(4))
def test_medpy_measures_the_same(seed: int) -> None:
    binary = pytest.importorskip("medpy.metric.binary", reason="medpy is not installed")
    one, other = blobs(seed)
    found = surface_distances(one, other, SPACING)
    assert found.hausdorff == pytest.approx(binary.hd(one, other, SPACING))
    assert found.hausdorff95_pooled == pytest.approx(binary.hd95(one, other, SPACING))
    assert found.average == pytest.approx(binary.assd(one, other, SPACING))


A = np.array([True, True, True, False, False, False])
B = np.array([True, False, False, True, False, False])


def test_overlap_by_hand() -> None:
    counts = confusion(A, B)
    assert (counts.both, counts.first_only, counts.second_only, counts.neither) == (1, 2, 1, 2)
    assert dice(A, B) == 2 / 5
    assert counts.iou == 1 / 4
    assert (counts.sensitivity, counts.specificity, counts.precision) == (1 / 2, 1 / 2, 1 / 3)


def test_overlap_of_empty_masks() -> None:
    nothing = np.zeros(3, dtype=bool)
    assert dice(nothing, nothing) == confusion(nothing, nothing).iou == 1
    assert dice(nothing, ~nothing) == 0
    assert math.isnan(confusion(nothing, nothing).sensitivity)
    assert math.isnan(confusion(nothing, ~nothing).specificity)


def test_masks_must_be_booleans_of_one_shape() -> None:
    with pytest.raises(TypeError, match="first must be an array of booleans, got dtype int64"):
        dice(np.array([0, 1]), np.array([True, False]))
    with pytest.raises(ValueError, match=r"same shape, got \(2,\) and \(3,\)"):
        dice(np.array([True, False]), np.array([True, False, True]))


def test_surface_distances_of_shifted_boxes() -> None:
    first = np.zeros((20, 12, 12), dtype=bool)
    second = np.zeros_like(first)
    first[4:8, 4:8, 4:8] = True
    second[7:11, 4:8, 4:8] = True  # shifted by 3 voxels of 2 mm
    apart = surface_distances(first, second, (2.0, 1.0, 1.0))
    assert apart.hausdorff95 == pytest.approx(6.0)
    assert apart.dice(6.0) == 1
    assert apart.dice(1.0) < 0.5
    assert surface_distances(first, first, 1.0).hausdorff95 == 0
    nothing = np.zeros_like(first)
    lone, none = (surface_distances(each, nothing, 1.0) for each in (first, nothing))
    assert (lone.hausdorff95, lone.dice(1.0)) == (math.inf, 0)
    assert (none.hausdorff95, none.dice(1.0)) == (0, 1)


def test_dice_as_torchmetrics() -> None:
    torch = pytest.importorskip("torch")
    segmentation = pytest.importorskip("torchmetrics.functional.segmentation")
    generator = np.random.default_rng(4)
    first, second = generator.random((2, 8, 8, 8)) < 0.3
    theirs = segmentation.dice_score(
        torch.tensor(first[np.newaxis, np.newaxis]),
        torch.tensor(second[np.newaxis, np.newaxis]),
        num_classes=1,
        input_format="one-hot",
    )
    assert dice(first, second) == pytest.approx(float(theirs), abs=1e-6)
