"""Which side of the patient is where, for every order of the voxels."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from helpers.report_cases import Affine, affine_of, pixels_of, report_case, turned
from perturb_mpm.report.pictures import Studio
from perturb_mpm.report.planes import grid_axes, in_words, radiological_planes, tilt_degrees, to_mm

RAS = affine_of([[2, 0, 0], [0, 2, 0], [0, 0, 3]], (-20, -24, -24))
LPS = affine_of([[-2, 0, 0], [0, -2, 0], [0, 0, 3]], (20, 24, -24))
SAGITTAL_PIR = affine_of([[0, -2, 0], [0, 0, -1.5], [3, 0, 0]], (-24, 20, 18))
AFFINES = {
    "RAS": RAS,
    "LPS": LPS,
    "PIR": SAGITTAL_PIR,
    "turned by 30 degrees": turned(30.0),
    "turned by 8 degrees and LPS": turned(8.0) @ np.diag([-1.0, -1.0, 1.0, 1.0]),
}


@pytest.mark.parametrize("affine", [RAS, LPS, SAGITTAL_PIR], ids=["RAS", "LPS", "PIR"])
def test_upright_scans_have_the_radiologist_s_marks(affine: Affine) -> None:
    marks = {p.name: (p.left, p.right, p.top, p.bottom) for p in radiological_planes(affine)}
    assert marks == {
        "axial": ("R", "L", "A", "P"),
        "coronal": ("R", "L", "S", "I"),
        "sagittal": ("A", "P", "S", "I"),
    }


def test_which_axis_is_cut_and_flipped_by_hand() -> None:
    axial, coronal, sagittal = radiological_planes(SAGITTAL_PIR)
    # The grid runs to the back, down and to the right: axes 0, 1 and 2.
    assert (axial.across, axial.rows, axial.columns) == (1, 0, 2)
    assert (axial.flip_rows, axial.flip_columns) == (False, True)
    assert (coronal.across, coronal.rows, coronal.columns) == (0, 1, 2)
    assert (coronal.flip_rows, coronal.flip_columns) == (False, True)
    assert (sagittal.across, sagittal.rows, sagittal.columns) == (2, 1, 0)
    assert (sagittal.flip_rows, sagittal.flip_columns) == (False, False)


def test_an_oblique_scan_has_two_letters_from_twenty_degrees_on() -> None:
    axial = radiological_planes(turned(30.0))[0]
    # Its first axis points to the right and front: (0.87, 0.5, 0).
    assert (axial.left, axial.right, axial.top, axial.bottom) == ("RA", "LP", "AL", "PR")
    nearly = radiological_planes(turned(19.0))[0]
    assert (nearly.left, nearly.right, nearly.top, nearly.bottom) == ("R", "L", "A", "P")
    assert tilt_degrees(turned(30.0)) == pytest.approx(30.0)
    assert tilt_degrees(LPS) == pytest.approx(0.0)


def picture_with_a_marker(affine: Affine, towards: tuple[float, float, float]) -> dict[str, tuple]:
    """Where a bright voxel, this far in mm from the middle, appears: (down, right) from 0 to 1."""
    shape = (20, 24, 16)
    middle = tuple(n // 2 for n in shape)
    wanted = np.array(to_mm(affine, middle)) + towards
    voxel = np.round(np.linalg.inv(affine[:3, :3]) @ (wanted - affine[:3, 3])).astype(int)
    i, j, k = (int(index) for index in voxel)
    image = np.zeros(shape, dtype=np.float32)
    image[i, j, k] = 1.0
    studio = Studio(report_case(shape, affine, images={"T1": image}))
    found = {}
    for plane in studio.planes:
        picture = studio.entropy_picture(plane, (i, j, k))
        pixels = pixels_of(picture.greys[0][1])
        row, column = np.unravel_index(pixels.argmax(), pixels.shape)
        assert (pixels == pixels.max()).sum() == 1
        place = ((row + 0.5) / pixels.shape[0], (column + 0.5) / pixels.shape[1])
        assert picture.cross == pytest.approx((100 * place[0], 100 * place[1]))
        found[plane.name] = place
    return found


@pytest.mark.parametrize("affine", AFFINES.values(), ids=AFFINES)
def test_the_patient_s_sides_appear_where_the_marks_say(affine: Affine) -> None:
    left = picture_with_a_marker(affine, (-12.0, 0.0, 0.0))
    assert left["axial"][1] > 0.6
    assert left["coronal"][1] > 0.6
    right = picture_with_a_marker(affine, (12.0, 0.0, 0.0))
    assert right["axial"][1] < 0.45
    front = picture_with_a_marker(affine, (0.0, 12.0, 0.0))
    assert front["axial"][0] < 0.45
    assert front["sagittal"][1] < 0.45
    top = picture_with_a_marker(affine, (0.0, 0.0, 12.0))
    assert top["coronal"][0] < 0.45
    assert top["sagittal"][0] < 0.45


def test_a_mirrored_affine_would_be_seen() -> None:
    mirrored = np.diag([-1.0, 1.0, 1.0, 1.0]) @ RAS
    here = (4, 12, 8)
    side = [Studio(report_case(affine=a)).planes[0].position(here, BOX)[1] for a in (RAS, mirrored)]
    assert side[0] > 0.5 > side[1]


BOX = (slice(0, 20), slice(0, 24), slice(0, 16))


def test_coordinates_have_sides_instead_of_signs() -> None:
    assert in_words(0, -23.46, digits=1) == "L 23.5"
    assert in_words(1, 162.5) == "A 163"
    assert in_words(2, -0.2) == "S 0"


@pytest.mark.parametrize("seed", range(40))
def test_axes_go_with_the_nearest_scanner_axes_up_to_45_degrees(seed: int) -> None:
    rng = np.random.default_rng(seed)
    axes, signs = rng.permutation(3), rng.choice([-1.0, 1.0], 3)
    turn = Rotation.from_rotvec(rng.uniform(-0.4, 0.4, 3)).as_matrix()
    affine = np.eye(4)
    affine[:3, :3] = turn @ (np.eye(3)[:, axes] * signs) * rng.uniform(0.5, 5.0, 3)
    assert tilt_degrees(affine) < 45
    directions = np.abs(affine[:3, :3] / np.linalg.norm(affine[:3, :3], axis=0))
    nearest = max(permutations(range(3)), key=lambda p: sum(directions[w, p[w]] for w in range(3)))
    assert grid_axes(affine) == nearest
    axial, _, sagittal = radiological_planes(affine)
    assert axial.flip_columns == (signs[nearest[0]] > 0)
    assert sagittal.flip_rows == (signs[nearest[2]] > 0)
