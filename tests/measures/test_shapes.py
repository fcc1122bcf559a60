"""Shapes against SimpleITK, closed forms and comparing all pairs."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from numpy.typing import NDArray

from helpers.shapes import cut_out, ellipsoid, rotation
from perturb_mpm.measures import shapes

AXES_MM = (30.0, 18.0, 12.0)
SPACINGS = [(1.0, 1.0, 1.0), (1.0, 1.0, 3.0), (0.7, 1.2, 2.0)]


def blob(seed: int, shape: tuple[int, ...] = (7, 6, 5)) -> NDArray[np.bool_]:
    return np.random.default_rng(seed).random(shape) < 0.25


@pytest.mark.parametrize("spacing", SPACINGS)
@pytest.mark.parametrize("seed", range(3))
def test_the_diameter_is_that_of_all_pairs_and_of_simpleitk(
    seed: int, spacing: tuple[float, ...]
) -> None:
    mask = blob(seed)
    points = np.argwhere(mask) * spacing
    longest = max(float(np.linalg.norm(a - b)) for a, b in itertools.combinations(points, 2))
    assert shapes.diameter_mm(cut_out(mask, spacing)) == pytest.approx(longest)
    sitk = pytest.importorskip("SimpleITK")
    whole = ellipsoid(AXES_MM, rotation(seed), spacing)
    found = _simpleitk(sitk, whole, spacing)
    assert shapes.diameter_mm(cut_out(whole, spacing)) == pytest.approx(found.GetFeretDiameter(1))


@pytest.mark.parametrize("seed", range(3))
def test_the_area_on_cubic_voxels_is_simpleitks(seed: int) -> None:
    sitk = pytest.importorskip("SimpleITK")
    for mask in (blob(seed), ellipsoid(AXES_MM, rotation(seed), (1.0, 1.0, 1.0))):
        spacing = (2.0, 2.0, 2.0)
        found = _simpleitk(sitk, np.pad(mask, 1), spacing).GetPerimeter(1)
        assert shapes.surface_area_mm2(cut_out(mask, spacing)) == pytest.approx(found, rel=1e-6)


@pytest.mark.parametrize("spacing", SPACINGS)
@pytest.mark.parametrize("seed", range(4))
def test_the_area_of_an_ellipsoid_is_right_in_any_orientation(
    seed: int, spacing: tuple[float, ...]
) -> None:
    mask = ellipsoid(AXES_MM, rotation(seed), spacing)
    error = shapes.surface_area_mm2(cut_out(mask, spacing)) / ellipsoid_area(AXES_MM) - 1
    # Thirteen directions are few on voxels of 1 : 3, and one of them may lie along an axis.
    assert abs(error) < (0.01 if len(set(spacing)) == 1 else 0.07)


@pytest.mark.parametrize("spacing", SPACINGS)
@pytest.mark.parametrize("seed", range(6))
def test_perpendicular_diameters_of_an_ellipsoid_are_right_in_any_orientation(
    seed: int, spacing: tuple[float, ...]
) -> None:
    turned = rotation(seed)
    found = shapes.axial_diameters_mm(cut_out(ellipsoid(AXES_MM, turned, spacing), spacing))
    inverse = turned @ np.diag(1 / np.square(AXES_MM)) @ turned.T
    expected = 2 / np.sqrt(np.linalg.eigvalsh(inverse[:2, :2]))  # of the slice through the middle
    # Between centres of voxels a diameter is up to a voxel short.
    assert (np.array(found) < expected + 0.1).all()
    assert (np.array(found) > expected - 1.3 * max(spacing[:2])).all()


def test_a_diameter_along_the_wrong_axis_would_be_seen() -> None:
    """The control: slices across another axis give another product."""
    mask = ellipsoid(AXES_MM, np.eye(3), (1.0, 1.0, 1.0))
    axial, sagittal = (cut_out(mask, (1.0, 1.0, 1.0), across=across) for across in (2, 0))
    assert shapes.bidirectional_mm2(axial) == pytest.approx(60 * 36, rel=0.08)
    assert shapes.bidirectional_mm2(sagittal) == pytest.approx(36 * 24, rel=0.12)


def test_a_plus_has_hand_computed_diameters() -> None:
    mask = np.zeros((9, 9, 1), dtype=np.bool_)
    mask[4, :, 0] = True  # 8 steps of 2 mm
    mask[2:7, 4, 0] = True  # 4 steps of 1 mm
    structure = cut_out(mask, (1.0, 2.0, 5.0))
    assert shapes.axial_diameters_mm(structure) == (16.0, 4.0)
    assert shapes.bidirectional_mm2(structure) == 64.0
    assert shapes.diameter_mm(structure) == 16.0


def test_two_pieces_of_a_slice_are_not_measured_as_one() -> None:
    mask = np.zeros((20, 5, 1), dtype=np.bool_)
    mask[0:3, 0:3] = mask[17:20, 0:3] = True
    structure = cut_out(mask, (1.0, 1.0, 1.0))
    assert shapes.axial_diameter_mm(structure) == pytest.approx(math.hypot(2, 2))
    assert shapes.components(structure) == 2
    assert shapes.diameter_mm(structure) == pytest.approx(math.hypot(19, 2))


def test_an_empty_structure_and_one_voxel() -> None:
    empty = cut_out(np.zeros((3, 3, 3), dtype=np.bool_), (1.0, 1.0, 1.0))
    for function in (shapes.volume_ml, shapes.surface_area_mm2, shapes.diameter_mm):
        assert function(empty) == 0
    assert shapes.components(empty) == shapes.bidirectional_mm2(empty) == 0
    assert math.isnan(shapes.sphericity(empty))
    one = np.zeros((3, 3, 3), dtype=np.bool_)
    one[1, 1, 1] = True
    single = cut_out(one, (1.0, 2.0, 5.0))
    assert shapes.volume_ml(single) == 0.01
    assert shapes.diameter_mm(single) == 0
    assert shapes.axial_diameters_mm(single) == (0.0, 0.0)


def test_a_ball_is_round_and_a_rod_is_not() -> None:
    ball = cut_out(ellipsoid((12.0, 12.0, 12.0), np.eye(3), (1.0, 1.0, 1.0)), (1.0, 1.0, 1.0))
    assert shapes.sphericity(ball) == pytest.approx(1, abs=0.01)
    rod = np.zeros((40, 4, 4), dtype=np.bool_)
    rod[:] = True
    assert shapes.sphericity(cut_out(rod, (1.0, 1.0, 1.0))) < 0.75


def test_points_in_a_plane_and_on_a_line_have_a_farthest_pair() -> None:
    flat = np.zeros((60, 60, 1), dtype=np.bool_)
    flat[:] = np.hypot(*np.indices((60, 60)) - 30)[..., np.newaxis] < 25
    assert 48 <= shapes.diameter_mm(cut_out(flat, (1.0, 1.0, 1.0))) <= 50
    line = np.ones((500, 1, 1), dtype=np.bool_)
    assert shapes.diameter_mm(cut_out(line, (0.5, 1.0, 1.0))) == pytest.approx(249.5)


def ellipsoid_area(axes: tuple[float, ...]) -> float:
    """Integrate the area of an ellipsoid numerically over its parameters."""
    a, b, c = axes
    u = (np.arange(400) + 0.5) * math.pi / 400
    v = (np.arange(800) + 0.5) * 2 * math.pi / 800
    su, cu, sv, cv = np.sin(u)[:, None], np.cos(u)[:, None], np.sin(v), np.cos(v)
    normal = su * np.sqrt((b * c * su * cv) ** 2 + (a * c * su * sv) ** 2 + (a * b * cu) ** 2)
    return float(normal.mean() * math.pi * 2 * math.pi)


def _simpleitk(sitk: object, mask: NDArray[np.bool_], spacing: tuple[float, ...]) -> object:
    image = sitk.GetImageFromArray(mask.astype(np.uint8).transpose(2, 1, 0))  # type: ignore[attr-defined]
    image.SetSpacing(spacing)
    found = sitk.LabelShapeStatisticsImageFilter()  # type: ignore[attr-defined]
    found.ComputeFeretDiameterOn()
    found.ComputePerimeterOn()
    found.Execute(image)
    return found
