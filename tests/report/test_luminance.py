"""What is uncertain shines: brightness and colours recomputed from the pictures of a page."""

from __future__ import annotations

import base64
import json
import math
import re
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from numpy.typing import NDArray

from helpers.browser import open_page
from helpers.colour_distance import ciede2000, lab
from helpers.page_pictures import bar_of, faults, luminance, slices_of
from helpers.report_cases import entropy_bits, pixels_of, report_case
from perturb_mpm.files.labels import label_colours, rgb
from perturb_mpm.report import EntropyScale, asset, grey_png, grey_window, in_window
from perturb_mpm.report.colours import (
    BRIGHTEST_GREY,
    COLOUR_MAPS,
    OPACITY,
    OPAQUE_GREY,
    SHOWN_FROM_BITS,
)
from perturb_mpm.report.data import ReportData
from perturb_mpm.report.pictures import data_uri, palette_png
from perturb_mpm.report.report import render_report, write_report

SHAPE = (24, 28, 10)


def bright_case(colour_map: str = "inferno") -> ReportData:
    """Enhancing tumour as bright as images get, certain in its middle, and every entropy."""
    rng = np.random.default_rng(5)
    image = rng.normal(100, 12, SHAPE).astype(np.float32)
    image[8:16, 8:20, 3:7] = 900.0
    marginals = rng.dirichlet([0.25] * 4, SHAPE).astype(np.float32)  # (X, Y, Z, L)
    marginals[10:14, 10:18, 4:6] = [0, 0, 0, 1]
    return report_case(
        SHAPE,
        np.eye(4),
        images={"T1ce": image, "T2": image[::-1].copy()},
        marginals=np.moveaxis(marginals, -1, 0),
        labels=marginals.argmax(axis=-1).astype(np.uint8),
        entropy=entropy_bits(np.moveaxis(marginals, -1, 0)),
        truth=np.zeros(SHAPE, dtype=np.uint8),
        colour_map=colour_map,
    )


@pytest.mark.parametrize("colour_map", COLOUR_MAPS)
def test_nothing_certain_is_as_bright_as_anything_uncertain(colour_map: str) -> None:
    page = render_report(bright_case(colour_map), viewer=False)[1]
    assert len(slices_of(page)) > 5
    assert faults(page) == set()


def rewritten(page: str, kind: str) -> str:
    """The page with its greys at full brightness, or its overlay at half opacity."""

    def brighter(found: re.Match[str]) -> str:
        grey = np.round(255 * pixels_of(found[2])).astype(np.float64)
        return found[1] + data_uri(grey_png(np.minimum(grey * 255 / 112, 255).astype(np.uint8)))

    def fainter(found: re.Match[str]) -> str:
        rgba = np.round(255 * pixels_of(found[2])).astype(np.uint8).reshape(-1, 4)
        colours, numbers = np.unique(rgba, axis=0, return_inverse=True)
        colours[:, 3] //= 2
        table = np.zeros((256, 4), dtype=np.uint8)
        table[: len(colours)] = colours
        rows = pixels_of(found[2]).shape[:2]
        return found[1] + data_uri(palette_png(numbers.reshape(rows).astype(np.uint8), table))

    if kind == "bright":
        return re.sub(r'(class="grey sequence-0" src=")([^"]+)', brighter, page)
    return re.sub(r'(class="overlay" src=")([^"]+)', fainter, page, count=1)


def test_the_check_finds_a_bright_image_a_faint_map_and_another_scale() -> None:
    page = render_report(bright_case(), viewer=False)[1]
    bright = faults(rewritten(page, "bright"))
    assert bright == {"something certain is as bright as something uncertain"}
    assert "the image shines through" in faults(rewritten(page, "faint"))
    other = render_report(bright_case("viridis"), viewer=False)[1]
    (bar,) = re.findall(r'<div class="bar"><i><img src="([^"]+)"', page)
    (others,) = re.findall(r'<div class="bar"><i><img src="([^"]+)"', other)
    assert "a colour is not on the scale" in faults(page.replace(bar, others))


def test_a_voxel_has_the_colour_of_its_entropy_on_the_bar() -> None:
    data = bright_case()
    page = render_report(data, viewer=False)[1]
    bar = bar_of(page)
    _, overlay = slices_of(page)[0]
    pixels = pixels_of(overlay)
    position = re.findall(r'class="where">axial<br>([SI]) (\d+)', page)[0]
    bits = data.entropy[:, :, int(position[1])].T[::-1, ::-1]  # front on top, right on the left
    expected = bar[np.minimum(np.floor(bits / math.log2(4) * 256), 255).astype(int)]
    visible = pixels[..., 3] > 0
    assert visible.any()
    assert (pixels[visible] == expected[visible]).all()
    assert (bits[visible] > SHOWN_FROM_BITS - 2 / 256).all()
    assert (bits[~visible] < SHOWN_FROM_BITS).all()


@pytest.mark.parametrize("colour_map", COLOUR_MAPS)
def test_the_colour_maps_are_those_of_matplotlib(colour_map: str) -> None:
    known = np.round(255 * mpl.colormaps[colour_map](np.arange(256))[:, :3]).astype(np.uint8)
    kept = json.loads(asset("colour_maps.json"))
    assert list(kept) == list(COLOUR_MAPS)
    assert bytes.fromhex(kept[colour_map]) == known.tobytes()


@pytest.mark.parametrize("labels", [2, 3, 4, 9, 40])
@pytest.mark.parametrize("colour_map", COLOUR_MAPS)
def test_every_shown_colour_is_brighter_than_the_brightest_grey(
    labels: int, colour_map: str
) -> None:
    scale = EntropyScale(colour_map, math.log2(labels))
    shown = scale.palette[scale.first_shown :] / 255
    assert luminance(OPACITY * shown).min() > luminance(np.full(3, BRIGHTEST_GREY / 255))
    assert luminance(shown).min() > luminance(np.full(3, OPAQUE_GREY / 255))
    if colour_map != "jet":
        assert (np.diff(luminance(shown)) >= -1e-3).all()  # more entropy is brighter


def test_the_window_never_goes_above_the_brightest_grey() -> None:
    values = np.array([np.nan, -np.inf, 0.0, 50.0, 100.0, 1e9, np.inf])
    greys = in_window(values, grey_window(values))
    assert greys.tolist()[:2] == [0, 0]
    assert greys.max() == BRIGHTEST_GREY
    assert (np.diff(greys.astype(int)) >= 0).all()


def test_a_browser_shows_the_colours_of_the_bar(tmp_path: Path) -> None:
    data = bright_case()
    write_report(tmp_path / "report.html", data, viewer=False)
    page = (tmp_path / "report.html").read_text()
    (grey, *_), overlay = slices_of(page)[0]
    pixels, greys = pixels_of(overlay), pixels_of(grey)[..., None]
    shots = []
    with open_page(tmp_path / "report.html") as opened:
        opened.page.locator("#show-outlines").uncheck()
        opened.page.add_style_tag(  # what is compared is the blending, not the interpolation
            content=".slice > :is(span, i) { visibility: hidden; } "
            ".grey { image-rendering: pixelated; }"
        )
        for choice in ("half", "opaque", "image"):
            opened.page.locator(f"#show-{choice}").check()
            shots.append(opened.page.locator(".location .slice:not(.bare)").first.screenshot())
        bare = opened.page.locator(".location .slice.bare").first.screenshot()
        assert opened.page.locator(".location .bare .layers").first.locator("img").count() == 2
    half, opaque, without = (_middles(shot, pixels.shape[:2]) for shot in shots)
    coloured = pixels[1:-1, 1:-1, 3] > 0  # corners of a slice may be rounded
    colours, image = pixels[1:-1, 1:-1, :3][coloured], greys[1:-1, 1:-1][coloured]
    assert opaque[coloured] == pytest.approx(colours, abs=1.5 / 255)
    blended = OPAQUE_GREY / BRIGHTEST_GREY * (OPACITY * colours + (1 - OPACITY) * image)
    assert half[coloured] == pytest.approx(blended, abs=6 / 255)  # rounded twice
    for seen in (half, opaque):
        assert luminance(seen[~coloured]).max() < luminance(seen[coloured]).min()
    assert without.max() > 0.95  # without the map the image has all its contrast
    assert np.abs(_middles(bare, pixels.shape[:2]) - without).mean() < 5 / 255


def _middles(shot: bytes, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """The colours in the middle of every voxel of a screenshot, but for its margin."""
    shown = pixels_of("data:image/png;base64," + base64.b64encode(shot).decode())
    rows, columns = (
        ((np.arange(n) + 0.5) * size / n).astype(int) for n, size in zip(shape, shown.shape)
    )
    return shown[np.ix_(rows, columns)][1:-1, 1:-1, :3]


def _distances(colour: str, scale: EntropyScale) -> float:
    """How far a colour is from those of the map, opaque or not, and from every grey."""
    shown = scale.palette[scale.first_shown :].astype(np.float64)
    blends = [OPACITY * shown + (1 - OPACITY) * grey for grey in (0, BRIGHTEST_GREY)]
    shines = [OPAQUE_GREY / BRIGHTEST_GREY * each for each in blends]
    greys = np.repeat(np.arange(256.0)[:, None], 3, axis=1)
    others = lab(np.concatenate([shown, *shines, greys]))
    return float(ciede2000(lab(np.array(rgb(colour))), others).min())


def test_label_colours_are_far_from_the_maps_and_from_greys() -> None:
    scale = EntropyScale("inferno", 2.0)
    names = [f"structure {number}" for number in range(8)]
    colours = label_colours(names)
    assert len(set(colours)) == 8
    assert min(_distances(colour, scale) for colour in colours) > 19
    first = lab(np.array([rgb(colour) for colour in colours[:4]]))
    between = ciede2000(first[:, None], first[None])
    assert between[~np.eye(4, dtype=bool)].min() > 17
    assert _distances("#ff7a33", scale) < 8  # orange, as the map is
    assert _distances("#f6ea4c", scale) < 8
    # Published pairs (Sharma, Wu and Dalal 2005).
    pairs = [([50, 2.6772, -79.7751], [50, 0, -82.7485], 2.0425)]
    pairs += [([50, 2.5, 0], [73, 25, -18], 27.1492), ([50, 2.5, 0], [50, 0, -2.5], 4.3065)]
    for one, other, expected in pairs:
        assert ciede2000(np.array(one), np.array(other)) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("width", [1400, 390])
def test_outlines_are_thinner_than_half_a_voxel(tmp_path: Path, width: int) -> None:
    write_report(tmp_path / "report.html", bright_case(), viewer=False)
    with open_page(tmp_path / "report.html", width=width) as opened:
        found = opened.page.evaluate(
            """[...document.querySelectorAll('.slice')].flatMap((slice) => {
              const path = slice.querySelector('.outlines path');
              const voxel = slice.clientWidth * getComputedStyle(slice).getPropertyValue('--voxel');
              return path ? [[parseFloat(getComputedStyle(path).strokeWidth), voxel / 100]] : [];
            })"""
        )
    assert len(found) > 5
    assert all(0 < line < voxel / 2 for line, voxel in found)
