"""What is uncertain shines: brightness and colours recomputed from the pictures of a page."""

from __future__ import annotations

import base64
import math
import re
from pathlib import Path

import numpy as np
import pytest

from helpers.browser import open_page
from helpers.page_pictures import bar_of, faults, luminance, slices_of
from helpers.report_cases import entropy_bits, pixels_of, report_case
from perturb_mpm.report import EntropyScale, grey_png, grey_window, in_window
from perturb_mpm.report.colours import BRIGHTEST_GREY, COLOUR_MAPS, SHOWN_FROM_BITS
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
    page = render_report(bright_case(colour_map), viewer=False)
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
        return re.sub(r'(class="grey sequence-0" src=")([^"]+)', brighter, page, count=1)
    return re.sub(r'(class="overlay" src=")([^"]+)', fainter, page, count=1)


def test_the_check_finds_a_bright_image_a_faint_map_and_another_scale() -> None:
    page = render_report(bright_case(), viewer=False)
    bright = faults(rewritten(page, "bright"))
    assert bright == {"something certain is as bright as something uncertain"}
    assert "the image shines through" in faults(rewritten(page, "faint"))
    other = render_report(bright_case("viridis"), viewer=False)
    (bar,) = re.findall(r'<div class="bar"><img src="([^"]+)"', page)
    (others,) = re.findall(r'<div class="bar"><img src="([^"]+)"', other)
    assert "a colour is not on the scale" in faults(page.replace(bar, others))


def test_a_voxel_has_the_colour_of_its_entropy_on_the_bar() -> None:
    data = bright_case()
    page = render_report(data, viewer=False)
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


@pytest.mark.parametrize("labels", [2, 3, 4, 9, 40])
@pytest.mark.parametrize("colour_map", COLOUR_MAPS)
def test_every_shown_colour_is_brighter_than_the_brightest_grey(
    labels: int, colour_map: str
) -> None:
    scale = EntropyScale(colour_map, math.log2(labels))
    shown = scale.palette[scale.first_shown :] / 255
    assert luminance(shown).min() > luminance(np.full(3, BRIGHTEST_GREY / 255))
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
    shots = []
    with open_page(tmp_path / "report.html") as opened:
        opened.page.locator("#show-outlines").uncheck()
        opened.page.add_style_tag(content=".slice > :is(span, i) { visibility: hidden; }")
        shots.append(opened.page.locator(".location .slice").first.screenshot())
        opened.page.locator("#show-overlay").uncheck()
        shots.append(opened.page.locator(".location .slice").first.screenshot())
    shown, without = (
        pixels_of("data:image/png;base64," + base64.b64encode(shot).decode()) for shot in shots
    )
    page = (tmp_path / "report.html").read_text()
    pixels = pixels_of(slices_of(page)[0][1])
    rows, columns = pixels.shape[:2]
    middle = [  # of every voxel in the screenshot
        ((np.arange(n) + 0.5) * size / n).astype(int)
        for n, size in zip((rows, columns), shown.shape)
    ]
    seen = shown[np.ix_(*middle)][1:-1, 1:-1, :3]  # corners of a slice may be rounded
    coloured = pixels[1:-1, 1:-1, 3] > 0
    assert seen[coloured] == pytest.approx(pixels[1:-1, 1:-1, :3][coloured], abs=1.5 / 255)
    assert luminance(seen[~coloured]).max() < luminance(seen[coloured]).min()
    assert without[..., :3].max() > 0.95  # without the map the image has all its contrast
