"""The viewer inside a report, in a real browser."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.browser import OpenPage, open_page
from helpers.viewer_run import NAMES, copy_run
from perturb_mpm.run import Run, load_run

pytestmark = pytest.mark.slow

MOST_PICTURES = 20
PLAIN_GREY = 40  # of 255: the most that red, green and blue of a grey pixel differ


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_run(tmp_path_factory.mktemp("viewer") / "case")


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    return load_run(folder)


@pytest.fixture(scope="module")
def shared(folder: Path) -> Iterator[OpenPage]:
    """One page for all tests that only look: a browser takes seconds to start."""
    with open_page(folder / "report.html", width=900, height=700) as opened:
        opened.page.wait_for_selector("#pmpm-viewer[data-state]")
        yield opened


@pytest.fixture
def opened(shared: OpenPage) -> Iterator[OpenPage]:
    reset = {"threshold": "0.29", "labels-opacity": "0"}
    for name, value in reset.items():
        shared.page.locator(f"[data-part={name}]").fill(value)
    for name in ("labels-on", "entropy-on"):
        shared.switch(f"[data-part={name}]", on=True)
    yield shared
    assert shared.errors == []
    assert shared.requests == []


def part(opened: OpenPage, name: str) -> Any:
    return opened.page.locator(f"[data-part={name}]")


def told(opened: OpenPage) -> dict[str, Any]:
    words: dict[str, Any] = json.loads(opened.page.evaluate("JSON.stringify(window.pmpm)"))
    return words


def pixels(opened: OpenPage) -> np.ndarray:
    """Return what the viewer's canvas shows once it stands still, (rows, columns, 3)."""
    from matplotlib.image import imread

    frame = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
    shot = b""
    for _ in range(MOST_PICTURES):
        opened.page.evaluate(frame)  # a busy machine draws late
        opened.page.wait_for_timeout(50)
        before, shot = shot, part(opened, "canvas").screenshot()
        if shot == before:
            break
    return np.round(255 * imread(io.BytesIO(shot))[..., :3]).astype(int)


def coloured(picture: np.ndarray) -> float:
    """Return the share of pixels that are not grey."""
    return float((np.ptp(picture, axis=-1) > PLAIN_GREY).mean())


def show_entropy_alone(opened: OpenPage) -> None:
    opened.switch("[data-part=labels-on]", on=False)


def test_the_viewer_draws_the_patient_and_the_overlays(opened: OpenPage) -> None:
    assert told(opened)["ready"]
    picture = pixels(opened)
    assert (picture.max(axis=-1) > 60).mean() > 0.1
    assert (picture.max(axis=-1) < 10).mean() > 0.1  # around the head it is black
    assert coloured(picture) > 0.02


def test_the_threshold_hides_what_is_below_it(opened: OpenPage) -> None:
    show_entropy_alone(opened)
    shares = []
    for bits in ("0", "0.8", "1.3", "1.58"):
        part(opened, "threshold").fill(bits)
        shares.append(coloured(pixels(opened)))
        assert part(opened, "threshold-text").inner_text() == f"{float(bits):.2f} bits"
    assert shares[0] > 0.02
    assert shares[0] > 1.2 * shares[1] > 2 * shares[2]
    crosshair_alone = shares[3]
    opened.switch("[data-part=entropy-on]", on=False)
    assert coloured(pixels(opened)) == pytest.approx(crosshair_alone, abs=2e-3)
    assert crosshair_alone < 0.3 * shares[0]


def test_labels_are_outlined_and_can_be_filled(opened: OpenPage) -> None:
    opened.switch("[data-part=entropy-on]", on=False)
    outlined = coloured(pixels(opened))
    part(opened, "labels-opacity").fill("0.6")
    filled = coloured(pixels(opened))
    opened.switch("[data-part=labels-on]", on=False)
    assert coloured(pixels(opened)) < outlined < filled


def test_the_colours_of_entropy_can_be_chosen(opened: OpenPage) -> None:
    show_entropy_alone(opened)
    first = pixels(opened)
    part(opened, "colour-map").select_option("viridis")
    second = pixels(opened)
    part(opened, "colour-map").select_option("inferno")
    assert (np.abs(first - second).max(axis=-1) > 30).mean() > 0.01
    assert np.array_equal(pixels(opened), first)


def test_another_sequence_can_be_shown(opened: OpenPage) -> None:
    opened.switch("[data-part=entropy-on]", on=False)
    first = pixels(opened)
    part(opened, "sequence").select_option("FLAIR")
    assert np.abs(pixels(opened) - first).mean() > 5
    part(opened, "sequence").select_option("T1")


def test_a_click_on_a_region_moves_the_crosshair_there(opened: OpenPage, run: Run) -> None:
    rows = opened.page.locator("tr.location-row")
    assert rows.count() >= 2
    bits = run.posterior.entropy
    for place in (1, 0):
        rows.nth(place).locator("td").last.click()
        wanted = json.loads(rows.nth(place).get_attribute("data-mm") or "")
        stands = told(opened)
        assert stands["mm"] == pytest.approx(wanted, abs=0.01)
        affine = run.case.geometry.affine
        voxel = np.round(np.linalg.solve(affine[:3, :3], np.array(wanted) - affine[:3, 3]))
        at = tuple(voxel.astype(int))
        assert stands["label"] == run.posterior.labels[at]
        assert stands["bits"] == pytest.approx(bits[at], abs=0.01)
        assert part(opened, "label").inner_text() == NAMES[stands["label"]]
        assert part(opened, "bits").inner_text() == f"{stands['bits']:.2f} bits"
        share = 100 * run.posterior.marginals[(stands["label"], *at)]
        assert f"{share:.0f} % {NAMES[stands['label']]}" in part(opened, "shares").inner_text()
    assert part(opened, "position").inner_text().endswith(" mm")


def test_samples_can_be_stepped_through(opened: OpenPage) -> None:
    opened.switch("[data-part=entropy-on]", on=False)
    total = 16
    first = pixels(opened)
    assert part(opened, "sample-text").inner_text() == "most probable"
    part(opened, "next").click()
    assert part(opened, "sample-text").inner_text().startswith("sample 1: ")
    one = pixels(opened)
    part(opened, "next").click()
    assert part(opened, "sample-text").inner_text().startswith("sample 2: ")
    two = pixels(opened)
    assert not np.array_equal(one, first)
    assert not np.array_equal(one, two)
    part(opened, "previous").click()
    part(opened, "previous").click()
    assert part(opened, "sample-text").inner_text() == "most probable"
    part(opened, "previous").click()
    assert part(opened, "sample-text").inner_text().startswith(f"sample {total}: ")
    part(opened, "most-probable").click()
    assert part(opened, "sample").input_value() == "0"
    assert part(opened, "sample-text").inner_text() == "most probable"
    assert np.array_equal(pixels(opened), first)


def test_a_slider_goes_through_samples_from_small_to_large(opened: OpenPage, run: Run) -> None:
    voxel_ml = np.prod(run.case.geometry.spacing) / 1000
    expected = sorted(voxel_ml * np.count_nonzero(each) for each in run.sampled_labels)
    shown = []
    for step in range(1, len(expected) + 1):
        part(opened, "sample").fill(str(step))
        words = part(opened, "sample-text").inner_text()
        shown.append(float(words.removesuffix(" ml").split(": ")[1]))
    assert shown == pytest.approx(expected, rel=0.005)
    part(opened, "most-probable").click()


def test_keys_move_the_crosshair_by_voxels(opened: OpenPage) -> None:
    part(opened, "canvas").focus()
    before = told(opened)["mm"]
    for keys, axis, step in (("ArrowLeft", 0, 4), ("ArrowUp", 1, 4), ("PageDown", 2, -4)):
        opened.page.keyboard.press(keys)
        after = told(opened)["mm"]
        moved = [0.0, 0.0, 0.0]
        moved[axis] = step
        assert np.subtract(after, before) == pytest.approx(moved, abs=0.1)
        before = after
    opened.page.keyboard.press("Tab")
    focus = "document.activeElement.dataset.part"
    assert opened.page.evaluate(focus) == "sequence"


def test_the_page_says_that_its_volumes_are_reduced(opened: OpenPage) -> None:
    note = part(opened, "note").inner_text()
    assert "reduced" in note
    assert "perturb-mpm view shows all" in note
