"""Correcting in a real browser: paint, update, and look at what is on disk."""

from __future__ import annotations

import io
import json
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
from numpy.typing import NDArray

from helpers.accessibility import broken_rules
from helpers.browser import OpenPage, open_page
from helpers.viewer_run import SHAPE, VALUES, copy_run
from perturb_mpm.run import RunSettings
from perturb_mpm.view.server import ViewServer
from perturb_mpm.view.session import open_session

pytestmark = pytest.mark.slow

OEDEMA, CORE = 1, 2
PATIENCE_S = 240  # machines may be busy


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return copy_run(tmp_path / "case")


@pytest.fixture
def server(folder: Path) -> Iterator[ViewServer]:
    with serve(folder) as server:
        yield server


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenPage]:
    """One page for the tests that save nothing: each compiles its shaders anew, for seconds."""
    folder = copy_run(tmp_path_factory.mktemp("viewer") / "case")
    with (
        serve(folder) as server,
        open_page(server.address, width=1400, height=900) as opened,
    ):
        ready(opened)
        yield opened


@pytest.fixture
def opened(shared: OpenPage) -> Iterator[OpenPage]:
    """The shared page as it opens: the whole head, and nothing painted or chosen."""
    yield shared
    if told(shared)["edited"]:
        while told(shared)["edited"]:
            part(shared, "undo").click()
        wait_for_draft(shared)
    shared.switch("[data-part=ball]", on=True)
    choose_pen(shared, "none")
    part(shared, "brightness").fill("0")
    shared.page.keyboard.press("r")
    assert shared.errors == []


@contextmanager
def serve(folder: Path) -> Iterator[ViewServer]:
    with ViewServer(open_session(folder)) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server
        finally:  # a test that fails must not leave a thread that keeps pytest from ending
            server.session.wait()
            server.shutdown()
            thread.join()


def part(opened: OpenPage, name: str) -> Any:
    return opened.page.locator(f"[data-part={name}]")


def told(opened: OpenPage) -> dict[str, Any]:
    words: dict[str, Any] = json.loads(opened.page.evaluate("JSON.stringify(window.pmpm)"))
    return words


def wait_for(opened: OpenPage, name: str, value: object) -> None:
    until = time.monotonic() + PATIENCE_S
    while told(opened).get(name) != value:
        assert time.monotonic() < until, f"{name} never became {value}: {told(opened)}"
        opened.page.wait_for_timeout(50)


def choose_pen(opened: OpenPage, value: object) -> None:
    opened.switch(f'input[name="pmpm-pen"][value="{value}"]', on=True)


def ready(opened: OpenPage) -> None:
    opened.page.wait_for_selector("#pmpm-viewer[data-correction=ready]")


def canvas_box(opened: OpenPage) -> dict[str, float]:
    """Scroll to the top, where tools may have scrolled away from; return where the canvas is."""
    opened.page.evaluate("window.scrollTo(0, 0)")
    box: dict[str, float] = part(opened, "canvas").bounding_box()
    return box


def find(opened: OpenPage, label: int) -> tuple[float, float]:
    """Return a point of the axial slice where the readout names a label."""
    box = canvas_box(opened)
    for down in np.linspace(0.3, 0.7, 7):
        for right in np.linspace(0.1, 0.5, 9):
            point = box["x"] + right * box["width"], box["y"] + down * box["height"]
            opened.page.mouse.click(*point)
            if told(opened)["label"] == label and told(opened)["bits"] > 0.3:
                return point
    raise AssertionError("the label is nowhere in the slice")


def middle(opened: OpenPage) -> tuple[float, float]:
    """Return the middle of the axial slice."""
    box = canvas_box(opened)
    return box["x"] + 0.3 * box["width"], box["y"] + 0.5 * box["height"]


def stroke(opened: OpenPage, start: tuple[float, float], across: float = 24) -> None:
    canvas_box(opened)
    mouse = opened.page.mouse
    mouse.move(*start)
    mouse.down()
    for step in range(1, 7):
        mouse.move(start[0] + across * step / 6, start[1])
    mouse.up()


def test_paint_update_and_look_at_the_disk(server: ViewServer, folder: Path) -> None:
    own = np.asarray(nib.load(folder / "labels.nii.gz").dataobj)
    entropy = np.asarray(nib.load(folder / "entropy.nii.gz").dataobj)
    untouched = {name: (folder / name).read_bytes() for name in ("labels.nii.gz", "report.html")}
    with open_page(server.address, width=700, height=620) as opened:
        ready(opened)
        point = find(opened, OEDEMA)
        mm = told(opened)["mm"]
        choose_pen(opened, CORE)
        opened.switch("[data-part=flat]", on=True)
        assert part(opened, "update").is_disabled()
        stroke(opened, point)
        assert told(opened)["edited"] > 0
        part(opened, "update").click()
        wait_for(opened, "updates", 1)
        choose_pen(opened, "none")
        canvas_box(opened)
        opened.page.mouse.click(*point)
        assert told(opened)["revision"] >= 2  # the mean field first, then the samples
        assert told(opened)["label"] == CORE  # the maps in the page are the new ones
        assert told(opened)["bits"] == 0
        assert "labels-corrected.nii.gz" in part(opened, "status").inner_text()
        opened.switch("[data-part=original]", on=True)
        wait_for(opened, "label", OEDEMA)
        page = opened.page
        assert all(request.startswith(server.address.split("?")[0]) for request in opened.requests)
        assert opened.errors == []

        second = page.context.new_page()
        answer = second.goto(server.address.split("?")[0])
        assert answer is not None
        assert answer.status == 403

    edits = json.loads((folder / "edits.json").read_text())["edits"]
    painted = {tuple(entry["voxel"]) for entry in edits}
    affine = nib.load(folder / "labels.nii.gz").affine
    clicked = np.round(np.linalg.solve(affine[:3, :3], np.array(mm) - affine[:3, 3])).astype(int)
    assert tuple(clicked.tolist()) in painted
    assert all(entry["new_label"] == VALUES[CORE] for entry in edits)
    assert all(entry["old_label"] == own[tuple(entry["voxel"])] for entry in edits)
    assert len({voxel[2] for voxel in painted}) == 1  # an axial stroke

    corrected = np.asarray(nib.load(folder / "labels-corrected.nii.gz").dataobj)
    changed = {tuple(voxel) for voxel in np.argwhere(corrected != own).tolist()}
    assert all(corrected[voxel] == VALUES[CORE] for voxel in painted)
    elsewhere = changed - painted
    # What moved beside the stroke was in doubt before, is near, and is a small part of the image.
    assert len(elsewhere) < 0.01 * np.prod(SHAPE)
    assert all(entropy[voxel] > 0 for voxel in elsewhere)
    reach_voxels = 4 * 8.0 / 4.0
    for voxel in elsewhere:
        assert min(np.linalg.norm(np.subtract(voxel, other)) for other in painted) <= reach_voxels
    bits = np.asarray(nib.load(folder / "entropy-corrected.nii.gz").dataobj)
    assert all(bits[voxel] == 0 for voxel in painted)
    for name, content in untouched.items():
        assert (folder / name).read_bytes() == content


def colour_at(opened: OpenPage, point: tuple[float, float]) -> NDArray[np.int64]:
    """The mean colour of a few pixels of the page, [r, g, b]."""
    from PIL import Image

    clip = {"x": point[0] - 1, "y": point[1] - 1, "width": 3, "height": 3}
    picture = Image.open(io.BytesIO(opened.page.screenshot(clip=clip))).convert("RGB")
    mean: NDArray[np.int64] = np.asarray(picture).mean(axis=(0, 1)).astype(int)
    return mean


def test_paint_is_seen_at_once_above_entropy_and_outlines(opened: OpenPage) -> None:
    x, y = find(opened, OEDEMA)
    colours = [label["colour"] for label in viewer_settings(opened)["labels"]]
    opened.page.mouse.click(x + 60, y + 60)  # the crosshair is out of the way
    before = colour_at(opened, (x, y))
    choose_pen(opened, CORE)
    part(opened, "brush").fill("20")
    canvas_box(opened)
    opened.page.mouse.move(x - 12, y)
    opened.page.mouse.down()
    opened.page.mouse.move(x - 6, y)
    opened.page.mouse.move(x + 2, y)
    opened.page.wait_for_timeout(100)
    during = colour_at(opened, (x - 12, y))  # the button is still down
    opened.page.mouse.up()
    away = [np.abs(each - np.array(colours[CORE])).sum() for each in (before, during)]
    assert away[1] < 0.5 * np.abs(np.array(colours[CORE])).sum()
    hue = during / during.max() - np.array(colours[CORE]) / max(colours[CORE])
    assert np.abs(hue).max() < 0.2  # the pen's colour over a dim image, nothing of the scale


def viewer_settings(opened: OpenPage) -> dict[str, Any]:
    text = opened.page.locator("#pmpm-settings").text_content()
    settings: dict[str, Any] = json.loads(text or "{}")
    return settings


def test_controls_stay_where_they_are_while_texts_change(server: ViewServer) -> None:
    names = ("update", "undo", "revert", "original", "volumes", "threshold", "next", "sequence")
    with open_page(server.address, width=1400, height=900) as opened:
        ready(opened)

        def places() -> list[tuple[float, float]]:
            opened.page.evaluate("window.scrollTo(0, 0)")
            boxes = [part(opened, name).bounding_box() for name in names]
            return [(box["x"], box["y"]) for box in boxes]

        before = places()
        point = find(opened, OEDEMA)
        assert places() == before
        choose_pen(opened, CORE)
        stroke(opened, point)
        part(opened, "update").click()
        seen = set()
        while told(opened).get("updates") != 1:
            seen.add(part(opened, "status").inner_text())
            assert places() == before
            opened.page.wait_for_timeout(20)
        assert places() == before
        part(opened, "next").click()
        assert places() == before
        assert any("Now" in words for words in seen)


def test_what_changed_is_told_in_ml_and_undo_takes_it_back(
    server: ViewServer, folder: Path
) -> None:
    with open_page(server.address, width=1400, height=900) as opened:
        ready(opened)
        rows = part(opened, "volume-rows")
        untouched = rows.inner_text()
        assert "core" in untouched
        point = find(opened, OEDEMA)
        choose_pen(opened, CORE)
        stroke(opened, point)
        part(opened, "update").click()
        wait_for(opened, "updates", 1)
        changed = rows.inner_text()
        summary = json.loads((folder / "summary-corrected.json").read_text())
        core = next(each for each in summary["labels"] if each["name"] == "core")
        assert f"{core['volume_ml']:.2f}" in changed
        assert "interval" not in part(opened, "status").inner_text()  # noise is white: it has none
        assert (folder / "report-corrected.html").is_file()
        part(opened, "undo").click()
        assert part(opened, "update").is_enabled()
        part(opened, "update").click()
        wait_for(opened, "updates", 2)
        assert rows.inner_text() == untouched
        assert opened.errors == []
    assert not (folder / "report-corrected.html").exists()


def test_a_sentence_tells_how_the_interval_changed(tmp_path: Path) -> None:
    settings = RunSettings().changed(samples=24, seed=5, iterations=5)  # noise is correlated
    folder = copy_run(tmp_path / "case", settings)
    with serve(folder) as server, open_page(server.address, width=1400, height=900) as opened:
        ready(opened)
        before = part(opened, "update").bounding_box(), part(opened, "download").bounding_box()
        choose_pen(opened, 0)
        stroke(opened, middle(opened), across=40)
        part(opened, "update").click()
        wait_for(opened, "updates", 1)
        volumes = json.loads((folder / "summary-corrected.json").read_text())["corrected"][
            "volumes"
        ]
        least = max(volumes, key=lambda each: float(np.ptp(each["before_interval_ml"])))
        widths = [float(np.ptp(least[f"{when}_interval_ml"])) for when in ("before", "after")]
        percent = round(100 * (widths[1] / widths[0] - 1))
        change = f"{abs(percent)} % {'narrower' if percent < 0 else 'wider'}"
        words = part(opened, "status").inner_text()
        assert f"Volume of {least['name']} in ml: {least['before_ml']:.1f} (" in words
        assert f"), its interval {change if percent else 'as wide'}. " in words
        canvas_box(opened)
        after = part(opened, "update").bounding_box(), part(opened, "download").bounding_box()
        assert after == before  # the sentence has its place
        assert opened.errors == []


@pytest.mark.parametrize("width", [1400, 390])
def test_no_rule_of_accessibility_is_broken_before_and_after_a_correction(
    server: ViewServer, width: int
) -> None:
    with open_page(server.address, width=width, height=844) as opened:
        ready(opened)
        assert broken_rules(opened) == []
        choose_pen(opened, CORE)
        stroke(opened, middle(opened), across=12)
        part(opened, "update").click()
        wait_for(opened, "updates", 1)
        assert broken_rules(opened) == []
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= width


def test_brightness_and_contrast_move_what_is_black_and_white(opened: OpenPage) -> None:
    low, high = told(opened)["range"]
    part(opened, "contrast").fill("1")
    wait_for(opened, "range", [low + (high - low) / 4, high - (high - low) / 4])
    part(opened, "contrast").fill("0")
    wait_for(opened, "range", pytest.approx([low, high]))
    part(opened, "brightness").fill("0.5")
    brighter = [low - (high - low) / 4, high - (high - low) / 4]
    wait_for(opened, "range", pytest.approx(brighter))


def test_undo_take_back_reopen_and_revert(server: ViewServer, folder: Path) -> None:
    with open_page(server.address, width=700, height=620) as opened:
        ready(opened)
        point = middle(opened)
        choose_pen(opened, 0)
        part(opened, "brush").fill("1")
        stroke(opened, point)
        one = told(opened)["edited"]
        stroke(opened, (point[0], point[1] + 40))
        assert told(opened)["edited"] > one > 0
        part(opened, "undo").click()
        assert told(opened)["edited"] == one
        part(opened, "update").click()
        wait_for(opened, "updates", 1)
        assert part(opened, "update").is_disabled()
        assert len(json.loads((folder / "edits.json").read_text())["edits"]) == one

        opened.page.reload()
        ready(opened)
        assert told(opened)["edited"] == one
        choose_pen(opened, "clear")
        part(opened, "brush").fill("15")
        stroke(opened, point)
        assert told(opened)["edited"] == 0
        part(opened, "undo").click()
        assert told(opened)["edited"] == one
        opened.page.once("dialog", lambda dialog: dialog.accept())
        part(opened, "revert").click()
        wait_for(opened, "updates", 1)
        assert told(opened)["edited"] == 0
        assert opened.errors == []
    assert not (folder / "edits.json").exists()
    assert not (folder / "labels-corrected.nii.gz").exists()


def test_edits_of_another_window_are_shown_with_the_own_ones_before_they_are_saved(
    server: ViewServer, folder: Path
) -> None:
    session = server.session
    with open_page(server.address, width=700, height=620) as opened:
        ready(opened)
        choose_pen(opened, CORE)
        stroke(opened, middle(opened))
        mine = told(opened)["edited"]
        assert mine > 0
        theirs = {int(voxel): OEDEMA for voxel in np.flatnonzero(session.run.case.mask)[:3]}
        session.update(theirs, session.shown.number)
        session.wait()
        part(opened, "update").click()
        opened.page.wait_for_selector(".pmpm-failed")
        wait_for(opened, "edited", mine + 3)
        assert "another window or tab" in part(opened, "status").inner_text()
        assert session.shown.edits == theirs
        part(opened, "update").click()
        wait_for(opened, "updates", 1)
    edits = json.loads((folder / "edits.json").read_text())["edits"]
    assert len(edits) == mine + 3


def test_failures_are_told_in_words(server: ViewServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("perturb_mpm.view.correction.write_page", full)
    with open_page(server.address, width=700, height=620) as opened:
        ready(opened)
        choose_pen(opened, CORE)
        stroke(opened, middle(opened))
        part(opened, "update").click()
        opened.page.wait_for_selector(".pmpm-failed")
        assert "No space left on device" in part(opened, "status").inner_text()
        # Told first, then the page asks for the server's edits; the button is free after that.
        opened.page.wait_for_selector("[data-part=update]:enabled")
        assert opened.errors == []


def painted(opened: OpenPage) -> NDArray[np.uint8]:
    """Return the drawing as the page has it in its draft: label + 1, (X, Y, Z) of the browser."""
    answer = opened.page.evaluate(
        """async () => {
          const settings = JSON.parse(document.getElementById("pmpm-settings").textContent);
          const headers = { "X-Perturb-Mpm-Token": settings.token };
          return (await (await fetch("/draft", { headers })).json()).draft.runs;
        }"""
    )
    drawing = np.zeros(np.prod(SHOWN), dtype=np.uint8)
    for label, start, length in answer:
        drawing[start : start + length] = label + 1
    return drawing.reshape(SHOWN, order="F")


SHOWN = SHAPE  # the margin around the mask reaches the border of the image


def wait_for_draft(opened: OpenPage) -> None:
    """Wait until the server has what is painted."""
    wait_for(opened, "draft", told(opened)["edited"])


def test_a_ball_reaches_other_slices_and_a_flat_brush_does_not(opened: OpenPage) -> None:
    choose_pen(opened, CORE)
    part(opened, "brush").fill("25")
    x, y = middle(opened)
    canvas_box(opened)
    opened.page.mouse.click(x, y)
    wait_for_draft(opened)
    ball = np.argwhere(painted(opened))
    # 12.5 mm around a point are three voxels of 4 mm and a bit, along each axis.
    assert (np.ptp(ball, axis=0) + 1).tolist() in [[a, b, 7] for a in (6, 7) for b in (6, 7)]
    inside = np.linalg.norm((ball - ball.mean(axis=0)) * 4.0, axis=1)
    assert inside.max() < 15
    part(opened, "undo").click()
    opened.switch("[data-part=flat]", on=True)
    canvas_box(opened)
    opened.page.mouse.click(x, y)
    wait_for_draft(opened)
    flat = np.argwhere(painted(opened))
    assert np.ptp(flat, axis=0)[2] == 0
    assert 25 <= len(flat) <= 37


def test_slices_between_painted_ones_are_filled(opened: OpenPage) -> None:
    choose_pen(opened, CORE)
    opened.switch("[data-part=flat]", on=True)
    x, y = middle(opened)
    canvas_box(opened)
    part(opened, "brush").fill("45")
    canvas_box(opened)
    opened.page.mouse.click(x, y)
    wait_for_draft(opened)
    for _ in range(4):
        opened.page.mouse.wheel(0, 100)
    part(opened, "brush").fill("15")
    canvas_box(opened)
    opened.page.mouse.click(x, y)
    wait_for_draft(opened)
    slices = np.flatnonzero(painted(opened).any(axis=(0, 1)))
    assert len(slices) == 2
    assert slices[1] - slices[0] == 4
    part(opened, "fill").click()
    wait_for_draft(opened)
    areas = (painted(opened) == CORE + 1).sum(axis=(0, 1))[slices[0] : slices[1] + 1]
    assert areas.min() > 0
    steps = np.diff(areas.astype(int))
    assert (steps > 0).all() or (steps < 0).all()  # from the large disc to the small one
    opened.page.keyboard.press("Control+z")  # one step back takes all of them
    wait_for_draft(opened)
    assert np.flatnonzero(painted(opened).any(axis=(0, 1))).tolist() == slices.tolist()


def test_undo_goes_on_after_an_update_and_after_reopening(folder: Path) -> None:
    with serve(folder) as server, open_page(server.address, width=700, height=620) as opened:
        ready(opened)
        choose_pen(opened, CORE)
        point = middle(opened)
        stroke(opened, point)
        one = told(opened)["edited"]
        stroke(opened, (point[0], point[1] + 40))
        both = told(opened)["edited"]
        part(opened, "update").click()
        wait_for(opened, "updates", 1)
        part(opened, "undo").click()
        assert told(opened)["edited"] == one
        assert "not saved" in part(opened, "status").inner_text()
        wait_for_draft(opened)
    with serve(folder) as server, open_page(server.address, width=700, height=620) as opened:
        ready(opened)
        assert told(opened)["edited"] == one  # not all of them again
        assert "not saved" in part(opened, "status").inner_text()
        assert part(opened, "update").is_enabled()
        part(opened, "redo").click()
        assert told(opened)["edited"] == both
        part(opened, "undo").click()
        part(opened, "undo").click()
        assert told(opened)["edited"] == 0
        part(opened, "redo").click()
        part(opened, "update").click()
        wait_for(opened, "updates", 1)
        assert opened.errors == []
    assert len(json.loads((folder / "edits.json").read_text())["edits"]) == one


def test_leaving_with_paint_that_is_not_saved_asks(server: ViewServer) -> None:
    with open_page(server.address, width=700, height=620) as opened:
        ready(opened)
        asked: list[str] = []

        def refuse(dialog: Any) -> None:
            asked.append(dialog.type)
            dialog.dismiss()

        opened.page.on("dialog", refuse)
        choose_pen(opened, CORE)
        stroke(opened, middle(opened))
        opened.page.close(run_before_unload=True)
        assert told(opened)["edited"] > 0  # it is still there
        assert asked == ["beforeunload"]
        part(opened, "undo").click()
        opened.page.wait_for_selector("[data-part=undo]:disabled")
        with opened.page.expect_event("close"):
            opened.page.close(run_before_unload=True)
        assert asked == ["beforeunload"]


def test_keys_do_what_the_overlay_says(server: ViewServer) -> None:
    with open_page(server.address, width=1400, height=900) as opened:
        ready(opened)
        press = opened.page.keyboard.press
        press("2")
        assert opened.page.locator('input[name="pmpm-pen"][value="2"]').is_checked()
        size = int(part(opened, "brush").input_value())
        press("]")
        assert int(part(opened, "brush").input_value()) == size + 2
        press("[")
        assert int(part(opened, "brush").input_value()) == size
        press("b")
        assert part(opened, "flat").is_checked()
        stroke(opened, middle(opened))
        many = told(opened)["edited"]
        assert many > 0
        press("Control+z")
        assert told(opened)["edited"] == 0
        press("Control+y")
        assert told(opened)["edited"] == many
        press("Control+z")
        press("Control+Shift+Z")
        assert told(opened)["edited"] == many
        press("n")
        wait_for(opened, "place", 0)
        first = told(opened)["mm"]
        press("n")
        wait_for(opened, "place", 1)
        press("p")
        wait_for(opened, "place", 0)
        assert told(opened)["mm"] == pytest.approx(first, abs=1e-3)
        press("x")
        assert opened.page.locator('input[name="pmpm-pen"][value="none"]').is_checked()
        before = told(opened)["mm"]
        part(opened, "canvas").focus()
        press("PageUp")
        assert told(opened)["mm"][2] == pytest.approx(before[2] + 4.0, abs=0.5)
        press("?")
        assert part(opened, "help").is_visible()
        assert broken_rules(opened) == []
        press("Escape")
        assert part(opened, "help").is_hidden()
        press("u")
        wait_for(opened, "updates", 1)
        assert opened.errors == []


def test_zoom_keeps_what_is_under_the_pointer_and_fingers_pinch(opened: OpenPage) -> None:
    x, y = middle(opened)
    mouse = opened.page.mouse
    mouse.click(x, y)
    before = told(opened)["mm"]
    opened.page.keyboard.down("Control")
    mouse.wheel(0, -200)
    opened.page.keyboard.up("Control")
    mouse.click(x, y)
    assert told(opened)["mm"] == pytest.approx(before, abs=1.0)
    mouse.click(x + 60, y)
    zoomed = abs(told(opened)["mm"][0] - before[0])
    opened.page.keyboard.press("r")
    mouse.click(x + 60, y)
    whole = abs(told(opened)["mm"][0] - before[0])
    assert 1.4 < whole / zoomed < 2.6  # exp(200 / 300) = 1.95
    fingers(opened, (x, y), [(30, 30), (60, 60)])
    mouse.click(x + 60, y)
    assert abs(told(opened)["mm"][0] - before[0]) == pytest.approx(whole / 2, abs=3.0)
    assert told(opened)["edited"] == 0


def fingers(opened: OpenPage, at: tuple[float, float], spread: list[tuple[float, float]]) -> None:
    """Pinch with two fingers around a point, from one distance on both sides to the next."""
    opened.page.evaluate(
        """([x, y, spread]) => {
          const glass = document.querySelector(".pmpm-glass");
          glass.setPointerCapture = () => {};
          const send = (type, id, clientX, clientY) => glass.dispatchEvent(new PointerEvent(type,
            { pointerId: id, pointerType: "touch", clientX, clientY, bubbles: true }));
          const [first, ...rest] = spread;
          send("pointerdown", 11, x - first[0], y);
          send("pointerdown", 12, x + first[1], y);
          for (const [left, right] of rest) {
            send("pointermove", 11, x - left, y);
            send("pointermove", 12, x + right, y);
          }
          send("pointerup", 11, x, y);
          send("pointerup", 12, x, y);
        }""",
        [*at, spread],
    )


def test_a_corrected_run_downloads_as_one_file(server: ViewServer, folder: Path) -> None:
    with open_page(server.address, width=1400, height=900) as opened:
        ready(opened)
        assert part(opened, "download").is_disabled()
        choose_pen(opened, CORE)
        stroke(opened, middle(opened))
        opened.switch("[data-part=at-once]", on=True)
        stroke(opened, (middle(opened)[0], middle(opened)[1] + 40))  # which updates by itself
        wait_for(opened, "updates", 1)
        with opened.page.expect_download() as got:
            part(opened, "download").click()
        assert got.value.suggested_filename == "case-corrected.zip"
        with zipfile.ZipFile(got.value.path()) as pack:
            for name in ("labels-corrected.nii.gz", "report-corrected.html", "edits.json"):
                assert pack.read(name) == (folder / name).read_bytes()
        assert opened.errors == []
