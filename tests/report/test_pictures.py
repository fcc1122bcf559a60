"""Pictures: fixed colours, true proportions, outlines that go around their region."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from helpers.report_cases import pixels_of, report_case
from perturb_mpm.report.colours import (
    BRIGHTEST_GREY,
    COLOUR_MAPS,
    SHOWN_FROM_BITS,
    EntropyScale,
    label_styles,
)
from perturb_mpm.report.pictures import Studio, outline_path

SHAPE = (20, 24, 16)


def overlay(entropy: np.ndarray, **changes: object) -> np.ndarray:
    """The coloured pixels of the axial slice at 8, turned back to (x, y) of the grid."""
    studio = Studio(report_case(SHAPE, entropy=entropy.astype(np.float32), **changes))
    picture = studio.entropy_picture(studio.planes[0], (10, 12, 8))
    return pixels_of(picture.overlay)[::-1, ::-1].transpose(1, 0, 2)


def test_the_same_entropy_has_the_same_colour_whatever_the_maximum() -> None:
    faint, strong = np.zeros(SHAPE), np.zeros(SHAPE)
    faint[3, 4, 8] = strong[3, 4, 8] = 0.7
    strong[10, 10, 8] = 2.0
    assert overlay(faint)[3, 4].tolist() == overlay(strong)[3, 4].tolist()
    assert overlay(strong)[10, 10].tolist() != overlay(strong)[3, 4].tolist()


def test_colours_end_with_the_map_at_log2_l() -> None:
    import matplotlib as mpl

    entropy = np.zeros(SHAPE)
    entropy[3, 4, 8], entropy[5, 4, 8] = 1.0, 2.0
    for name in COLOUR_MAPS:
        pixels = overlay(entropy, colour_map=name)
        every = mpl.colormaps[name](np.linspace(0, 1, 1024))[:, :3]
        assert np.abs(every - pixels[3, 4, :3]).max(axis=1).min() < 0.01  # one of the map's
        if name != "jet":  # whose last colours are dark
            assert pixels[5, 4, :3] == pytest.approx(every[-1], abs=0.01)
        assert pixels[3, 4, 3] == pixels[5, 4, 3] == 1.0
        assert pixels[0, 0, 3] == 0.0


def test_what_one_sample_in_twenty_gives_is_where_colour_starts() -> None:
    assert pytest.approx(0.286397, abs=1e-6) == SHOWN_FROM_BITS
    for labels in (2, 3, 4, 9):
        top = math.log2(labels)
        scale = EntropyScale("inferno", top)
        shown = scale.colours[scale.levels(np.array([0.0, 0.25, SHOWN_FROM_BITS, top])), 3]
        assert shown.tolist() == [0, 0, 255, 255]


def test_pictures_have_the_proportions_of_the_patient() -> None:
    affine = np.diag([1.0, 2.0, 5.0, 1.0])
    studio = Studio(report_case(SHAPE, affine))
    sizes = {
        plane.name: (picture.width_mm, picture.height_mm, picture.columns, picture.rows)
        for plane in studio.planes
        for picture in [studio.entropy_picture(plane, (10, 12, 8))]
    }
    assert sizes == {
        "axial": (20.0, 48.0, 20, 24),
        "coronal": (20.0, 80.0, 20, 16),
        "sagittal": (48.0, 80.0, 24, 16),
    }


def test_the_scale_bar_is_as_long_as_it_says() -> None:
    studio = Studio(report_case(SHAPE, np.diag([2.0, 2.0, 3.0, 1.0])))
    picture = studio.entropy_picture(studio.planes[0], (10, 12, 8))
    assert (picture.width_mm, picture.scale_bar_mm, picture.scale_bar_percent) == (40.0, 10, 25.0)


def test_pictures_are_cut_to_the_mask_and_a_margin() -> None:
    mask = np.zeros(SHAPE, dtype=bool)
    mask[6:10, 8:14, 4:12] = True
    studio = Studio(report_case(SHAPE, mask=mask))  # 2 × 2 × 3 mm, a margin of 4 mm
    assert studio.box == (slice(4, 12), slice(6, 16), slice(2, 14))


@pytest.mark.parametrize(
    ("shape", "planes"),
    [((20, 24, 1), ["axial"]), ((1, 24, 16), ["sagittal"]), ((1, 1, 9), ["axial"])],
)
def test_planes_of_which_only_a_line_is_left_are_not_shown(
    shape: tuple[int, int, int], planes: list[str]
) -> None:
    assert [plane.name for plane in Studio(report_case(shape)).planes] == planes


def test_large_slices_are_averaged_and_small_ones_kept() -> None:
    image = np.zeros((700, 30, 1), dtype=np.float32)
    image[350:] = 1.0
    data = report_case((700, 30, 1), np.eye(4), images={"CT": image})
    studio = Studio(data)
    pixels = pixels_of(studio.entropy_picture(studio.planes[0], (350, 15, 0)).greys[0][1])
    assert pixels.shape == (30, 320)
    assert pixels[0, 0] == pytest.approx(BRIGHTEST_GREY / 255)  # the patient's right
    assert pixels[0, -1] == 0.0
    assert pixels.mean() == pytest.approx(0.5 * BRIGHTEST_GREY / 255, abs=0.002)


def test_bright_enhancement_does_not_darken_the_tissue() -> None:
    image = np.linspace(90.0, 110.0, math.prod(SHAPE), dtype=np.float32).reshape(SHAPE)
    image[0] = 0.0  # fluid
    image[10:14, 10:14, 6:10] = 1000.0
    studio = Studio(report_case(SHAPE, images={"T1ce": image}))
    pixels = pixels_of(studio.entropy_picture(studio.planes[0], (10, 12, 8)).greys[0][1])
    shares = np.round(255 * pixels) / BRIGHTEST_GREY
    assert 0.45 < np.median(shares) < 0.65
    assert (shares == 1.0).sum() == 16


def test_constant_and_broken_images_do_not_stop_a_report() -> None:
    image = np.full(SHAPE, 7.0, dtype=np.float32)
    broken = image.copy()
    broken[0, 0, :] = np.nan
    studio = Studio(report_case(SHAPE, images={"flat": image, "broken": broken}))
    picture = studio.entropy_picture(studio.planes[0], (10, 12, 8))
    for _, address in picture.greys:
        assert set(np.unique(pixels_of(address))) <= {0.0, np.float32(BRIGHTEST_GREY / 255)}


def polygons(path: str) -> list[np.ndarray]:
    """The closed parts of a path as corners in pixels."""
    parts = []
    for x, y, steps in re.findall(r"M(-?\d+) (-?\d+)l([-\d ]+)z", path):
        moves = np.array(steps.split(), dtype=int).reshape(-1, 2)
        corners = np.vstack([[int(x), int(y)], moves]).cumsum(axis=0)
        parts.append(corners / 10.0)
    return parts


def inside(parts: list[np.ndarray], x: float, y: float) -> bool:
    """Whether a point lies inside by the even-odd rule."""
    crossings = 0
    for corners in parts:
        for (ax, ay), (bx, by) in zip(corners, np.roll(corners, -1, axis=0)):
            if (ay > y) != (by > y) and x < ax + (y - ay) * (bx - ax) / (by - ay):
                crossings += 1
    return crossings % 2 == 1


def test_an_outline_holds_the_middles_of_exactly_its_pixels() -> None:
    rng = np.random.default_rng(3)
    for _ in range(5):
        region = rng.random((9, 11)) < 0.5
        parts = polygons(outline_path(region))
        drawn = [[inside(parts, x + 0.5, y + 0.51) for x in range(11)] for y in range(9)]
        assert (np.array(drawn) == region).all()


def test_outlines_of_neighbours_do_not_cross() -> None:
    left = np.zeros((4, 6), dtype=bool)
    left[:, :3] = True
    (one,), (other,) = polygons(outline_path(left)), polygons(outline_path(~left))
    assert one[:, 0].max() == pytest.approx(2.8)
    assert other[:, 0].min() == pytest.approx(3.2)


def test_nothing_has_no_outline() -> None:
    assert outline_path(np.zeros((3, 3), dtype=bool)) == ""


def test_labels_differ_in_colour_and_in_dashes() -> None:
    styles = label_styles(("bg", "Necrosis", "edema", "non-enhancing", "enhancing", "cavity"))
    assert len({style.colour for style in styles}) == 5
    assert len({style.dashes for style in styles[:4]}) == 4
    # The same part has the same colour wherever it stands.
    assert label_styles(("bg", "ET", "NCR"))[1].colour == styles[0].colour
    many = label_styles([str(n) for n in range(30)])
    assert len(many) == 29
    assert len({(style.colour, style.dashes) for style in many[:8]}) == 8
