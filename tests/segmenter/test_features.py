"""Every family of features against values computed by hand or by a slower way."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lab.features_page import features_page
from perturb_mpm.segmenter.features import (
    FAMILIES,
    family_names,
    feature_names,
    feature_table,
    features_in_slabs,
    gradient_magnitude,
)
from perturb_mpm.segmenter.scene import SagittalPlane, Scene, Slab, midsagittal_plane

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("t1", "t1c")
MIDDLE = SagittalPlane((1.0, 0.0, 0.0), 9.0)


def make_scene(shape: tuple[int, int, int] = (10, 9, 8), seed: int = 0) -> Scene:
    """Noise in an ellipsoid on a grid of 2 × 2 × 2.5 mm."""
    rng = np.random.default_rng(seed)
    axes = np.indices(shape) - (np.array(shape) - 1).reshape(3, 1, 1, 1) / 2
    mask = ((axes / np.array(shape).reshape(3, 1, 1, 1)) ** 2).sum(axis=0) < 0.25
    images = np.where(mask, rng.normal(size=(2, *shape)), 0).astype(np.float32)
    return Scene(NAMES, images, mask, (2.0, 2.0, 2.5), MIDDLE)


def columns(scene: Scene, family: str) -> dict[str, np.ndarray]:
    """Return a family's columns by name, each (N,)."""
    return dict(FAMILIES[family](Slab(scene, 0, scene.shape[0])))


def row_of(scene: Scene, voxel: tuple[int, int, int]) -> int:
    return int(np.flatnonzero((np.argwhere(scene.mask) == voxel).all(axis=1))[0])


def box_values(
    image: np.ndarray, scene: Scene, voxel: tuple[int, int, int], radius: tuple[int, int, int]
) -> np.ndarray:
    """Return the values inside the mask in a box around a voxel."""
    box = tuple(slice(max(0, v - r), v + r + 1) for v, r in zip(voxel, radius))
    return image[box][scene.mask[box]].astype(np.float64)


VOXELS = [(5, 4, 4), (2, 3, 3), (1, 4, 3)]  # in the middle, off it, at the surface


def test_intensities_and_differences() -> None:
    scene = make_scene()
    inside = scene.images[:, scene.mask]
    assert np.array_equal(columns(scene, "intensities")["t1c"], inside[1])
    found = columns(scene, "differences")
    assert list(found) == [
        "t1c_minus_t1",
        "t1c_minus_t1_smooth_2mm",
        "t1c_minus_t1_smooth_4mm",
    ]
    assert np.array_equal(found["t1c_minus_t1"], inside[1] - inside[0])


@pytest.mark.parametrize("voxel", VOXELS)
def test_smoothing_is_a_gaussian_mean_inside_the_brain(voxel: tuple[int, int, int]) -> None:
    scene = make_scene()
    found = columns(scene, "smoothed")["t1_smooth_2mm"][row_of(scene, voxel)]
    # Cut at three sigmas, that is three voxels in plane and two across.
    apart = np.argwhere(scene.mask) - voxel
    near = (np.abs(apart) <= (3, 3, 2)).all(axis=1)
    weight = np.exp(-0.5 * ((apart * scene.spacing) ** 2).sum(axis=1) / 2.0**2) * near
    assert found == pytest.approx(weight @ scene.images[0][scene.mask] / weight.sum(), abs=1e-5)


@pytest.mark.parametrize("voxel", VOXELS)
@pytest.mark.parametrize(("reach", "radius"), [("2mm", (1, 1, 1)), ("4mm", (2, 2, 2))])
def test_statistics_are_those_of_the_box(
    voxel: tuple[int, int, int], reach: str, radius: tuple[int, int, int]
) -> None:
    scene = make_scene()
    row = row_of(scene, voxel)
    found = columns(scene, "statistics")
    values = box_values(scene.images[1], scene, voxel, radius)
    central = values - values.mean()
    wanted = {
        "mean": values.mean(),
        "sd": values.std(),
        "skewness": (central**3).mean() / values.std() ** 3,
        "min": values.min(),
        "max": values.max(),
    }
    for what, value in wanted.items():
        assert found[f"t1c_{what}_{reach}"][row] == pytest.approx(value, abs=2e-4)


@pytest.mark.parametrize("voxel", VOXELS)
def test_entropy_is_that_of_the_histogram(voxel: tuple[int, int, int]) -> None:
    scene = make_scene()
    values = box_values(scene.images[0], scene, voxel, (2, 2, 2))
    counts, _ = np.histogram(values, bins=16, range=(-4, 4))
    shares = counts[counts > 0] / counts.sum()
    found = columns(scene, "entropies")["t1_entropy_4mm"][row_of(scene, voxel)]
    assert found == pytest.approx(-(shares * np.log2(shares)).sum(), abs=1e-4)


def test_gradient_of_a_ramp_is_its_slope_per_mm() -> None:
    x, y, z = np.indices((8, 7, 6), dtype=np.float32) * np.array([2, 2, 2.5]).reshape(3, 1, 1, 1)
    ramp = (0.3 * x + 0.4 * y).astype(np.float32) + 0 * z.astype(np.float32)
    assert np.allclose(gradient_magnitude(ramp, (2.0, 2.0, 2.5)), 0.5, atol=1e-5)


def test_gradient_statistics_are_those_of_the_box() -> None:
    scene = make_scene()
    found = columns(scene, "gradients")
    steep = gradient_magnitude(scene.smooth(2.0)[0], scene.spacing)
    voxel = (5, 4, 4)
    values = box_values(steep, scene, voxel, (2, 2, 2))
    row = row_of(scene, voxel)
    assert found["t1_gradient"][row] == pytest.approx(steep[voxel], abs=1e-6)
    assert found["t1_gradient_mean_4mm"][row] == pytest.approx(values.mean(), abs=1e-5)
    assert found["t1_gradient_sd_4mm"][row] == pytest.approx(values.std(), abs=1e-4)


def test_symmetry_compares_with_the_mirror_image() -> None:
    scene = make_scene()
    found = columns(scene, "symmetry")["t1c_asymmetry_4mm"]
    volume = scene.smooth(4.0)[1]
    # The plane lies between the voxels 4 and 5.
    assert found[row_of(scene, (2, 3, 3))] == volume[2, 3, 3] - volume[7, 3, 3]


def test_a_symmetric_brain_has_no_asymmetry() -> None:
    scene = make_scene()
    even = ((scene.images + scene.images[:, ::-1]) / 2).astype(np.float32)
    mirrored = Scene(NAMES, even, scene.mask, scene.spacing, MIDDLE)
    for values in columns(mirrored, "symmetry").values():
        assert np.abs(values).max() < 1e-5


def test_location_by_hand() -> None:
    mask = np.zeros((11, 13, 9), dtype=bool)
    mask[1:10, 1:12, 1:8] = True
    scene = Scene(NAMES, np.zeros((2, *mask.shape), np.float32), mask, (1.0, 1.0, 2.0))
    flat = Scene(NAMES, scene.images, mask, scene.spacing, SagittalPlane((1.0, 0.0, 0.0), 5.0))
    found = columns(flat, "location")
    left, right, middle = (row_of(flat, voxel) for voxel in [(2, 6, 4), (8, 6, 4), (5, 6, 4)])
    assert found["lateral_share"][left] == found["lateral_share"][right] == pytest.approx(3 / 4)
    assert found["lateral_share"][middle] == 0
    assert found["front_share"][middle] == pytest.approx(0.5)
    assert found["top_share"][middle] == pytest.approx(0.5)
    assert found["depth_mm"][middle] == 5.0  # the nearest voxel outside lies along the first axis
    assert found["depth_mm"][row_of(flat, (5, 6, 1))] == 2.0


def test_depth_is_not_stopped_by_holes() -> None:
    mask = np.ones((9, 9, 9), dtype=bool)
    mask[4, 4, 3] = False
    scene = Scene(("t1",), np.zeros((1, 9, 9, 9), np.float32), mask, (1.0, 1.0, 1.0), MIDDLE)
    assert columns(scene, "location")["depth_mm"][row_of(scene, (4, 4, 4))] == 5.0


def test_boxes_are_means_at_a_distance_and_left_mirrors_right() -> None:
    shape = (31, 15, 15)
    rng = np.random.default_rng(1)
    half = rng.normal(size=(1, 15, 15, 15)).astype(np.float32)
    images = np.concatenate([half, rng.normal(size=(1, 1, 15, 15)), half[:, ::-1]], axis=1)
    mask = np.ones(shape, dtype=bool)
    plane = SagittalPlane((1.0, 0.0, 0.0), 30.0)
    scene = Scene(("t1",), images.astype(np.float32), mask, (2.0, 2.0, 2.0), plane)
    found = columns(scene, "boxes")
    left, right = row_of(scene, (13, 7, 7)), row_of(scene, (17, 7, 7))
    outwards = images[0, 5:10, 5:10, 5:10].mean()  # 12 mm are six voxels, the faces 4 mm off
    assert found["t1_box_outwards_12mm"][left] == pytest.approx(outwards, abs=1e-5)
    for values in found.values():
        assert values[left] == pytest.approx(values[right], abs=1e-5)


def test_surroundings_are_extremes_of_the_smoothed_image() -> None:
    scene = make_scene()
    found = columns(scene, "surroundings")
    values = box_values(scene.smooth(2.0)[0], scene, (5, 4, 4), (4, 4, 3))
    row = row_of(scene, (5, 4, 4))
    assert found["t1_around_min_8mm"][row] == np.float32(values.min())
    assert found["t1_around_max_8mm"][row] == np.float32(values.max())


def test_names_are_unique_and_belong_to_the_columns() -> None:
    names = feature_names(("t1", "t1c", "t2", "flair"))
    assert len(set(names)) == len(names)
    assert "t1c_minus_t1" in names
    scene = make_scene()
    for family, listed in family_names(NAMES).items():
        assert tuple(columns(scene, family)) == listed


def test_slabs_of_any_thickness_give_the_same_bits() -> None:
    scene = make_scene((17, 12, 10))
    whole = np.concatenate([table for _, table in features_in_slabs(scene, 17)])
    assert whole.shape == (scene.mask.sum(), len(feature_names(NAMES)))
    assert np.isfinite(whole).all()
    for thickness in (1, 3, 8):
        again = make_scene((17, 12, 10))
        parts = np.concatenate([table for _, table in features_in_slabs(again, thickness)])
        assert np.array_equal(parts, whole)


def test_the_table_holds_all_voxels_in_the_order_of_the_mask() -> None:
    scene = make_scene()
    table = feature_table(scene)
    assert np.array_equal(table[:, 0], scene.images[0][scene.mask].astype(np.float16))


def test_the_plane_of_a_turned_brain_is_found() -> None:
    from scipy.ndimage import gaussian_filter

    shape = (40, 44, 30)
    truth = SagittalPlane((np.cos(0.12), np.sin(0.12), 0.0), 40.0)
    position = np.argwhere(np.ones(shape)) * 2.0
    across = truth.distance(position)
    ahead = position @ np.array([-np.sin(0.12), np.cos(0.12), 0.0]) - 40.0
    up = position[:, 2] - 30.0
    inside = (across / 30) ** 2 + (ahead / 38) ** 2 + (up / 26) ** 2 < 1
    # The same on both sides but for a lump on one, as a tumour is.
    bright = np.cos(across / 6) + np.sin(ahead / 9) + np.cos(up / 8)
    lump = ((across - 15) ** 2 + ahead**2 + up**2 < 10**2) * 5.0
    image = np.where(inside, bright + lump, 0).reshape(shape)
    mask = inside.reshape(shape)
    smooth = gaussian_filter(image, 2).astype(np.float32)
    found = midsagittal_plane([smooth, mask.astype(np.float32)], mask, (2.0, 2.0, 2.0))
    turned = np.degrees(np.arccos(np.dot(found.normal, truth.normal)))
    assert turned < 1.5
    assert np.abs(found.distance(np.array([[40.0, 40.0, 30.0]]))[0]) < 2.0 + abs(
        truth.distance(np.array([[40.0, 40.0, 30.0]]))[0]
    )


def test_mirroring_twice_is_nothing() -> None:
    plane = SagittalPlane((0.6, 0.8, 0.0), 3.0)
    points = np.random.default_rng(0).normal(size=(5, 3))
    assert np.allclose(plane.mirror(plane.mirror(points)), points)
    assert np.allclose(plane.distance(plane.mirror(points)), -plane.distance(points))


def test_the_page_of_features_is_current() -> None:
    assert (ROOT / "docs" / "features.md").read_text() == features_page()
