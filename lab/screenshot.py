"""Make the pictures and the open report of the demo in docs/: ``python -m lab.screenshot``.

One picture is its page; the other, on white and on black paper, shows labels and doubt in one slice
and the tumour's volumes. It needs Playwright (the extra ``test``) and a Chromium.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from perturb_mpm.cli import UsageError
from perturb_mpm.files import Source, read_volume
from perturb_mpm.report import (
    EntropyScale,
    ReportData,
    VolumeRow,
    field_of_view,
    in_window,
    label_styles,
    radiological_planes,
    write_report,
)
from perturb_mpm.run import Run, load_run, report_data, volume_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from playwright.sync_api import Browser

DOCS = Path(__file__).parents[1] / "docs"
PICTURE = DOCS / "report.png"
HEROES = {False: DOCS / "hero.png", True: DOCS / "hero-dark.png"}  # by whether they are dark
GALLERY = DOCS / "gallery" / "demo-report.html"
SEQUENCE = "FLAIR"  # whose oedema one sees, where the demo's doubt is
WIDTH, HEIGHT = 1000, 1150  # pixels of the page that are shown

_INKED = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color")
_FLAGS = ("--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--no-sandbox")
_CHROMIUM = ("chromium", "chromium-browser", "google-chrome")


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Yield the Chromium of this machine, without a window."""
    from playwright.sync_api import sync_playwright

    path = next(filter(None, map(shutil.which, _CHROMIUM)), None)
    if path is None:
        raise UsageError("a screenshot needs Chromium, got none: apt-get install chromium")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=path, args=[*_FLAGS])
        try:
            yield opened
        finally:
            opened.close()


def photograph(page: Path, picture: Path) -> None:
    """Write the first screen of a page as a PNG."""
    with open_browser() as browser:
        shown = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        shown.goto(page.resolve().as_uri(), wait_until="load")
        shown.screenshot(path=picture, timeout=240_000)


def run_demo(folder: Path) -> None:
    """Run the demo in a process of its own."""
    start = "from perturb_mpm.cli import main; main()"
    command = [sys.executable, "-c", start, "demo", "--output", str(folder), "--quiet"]
    subprocess.run(command, check=True)  # noqa: S603 - this program alone


def draw_hero(run: Run, truth_ml: float, picture: Path, *, dark: bool) -> None:
    """Draw what a user gets of one patient: labels, doubt in the same slice, and a volume.

    The slice is the axial one with most doubt; ``truth_ml`` is the tumour's true volume.
    """
    import matplotlib.pyplot as plt
    from scipy.ndimage import gaussian_filter

    plane = radiological_planes(run.case.geometry.affine)[0]
    spacing = run.case.geometry.spacing
    box = field_of_view(run.labels > 0, run.case.mask, spacing)
    others = tuple({0, 1, 2} - {plane.across})
    index = int(run.entropy.sum(axis=others).argmax())
    image = run.case.images[SEQUENCE]
    low, high = np.percentile(image[run.case.mask], [0.5, 99.9])
    greys = in_window(plane.cut(image, index, box), (low, high), 255)
    labels, bits = (plane.cut(each, index, box) for each in (run.labels, run.entropy))
    scale = EntropyScale("inferno", float(np.log2(len(run.case.labels))))
    aspect = spacing[plane.rows] / spacing[plane.columns]
    ink, paper = ("#e6edf3", "#0d1117") if dark else ("#1f2328", "#ffffff")
    drawing: Any = {  # its keys are literals to mypy
        "font.size": 13.5,
        "figure.facecolor": paper,
        "image.interpolation": "bicubic",
        **dict.fromkeys(_INKED, ink),
    }
    with plt.rc_context(drawing):
        figure, axes = plt.subplots(
            1,
            3,
            figsize=(12.4, 5.1),
            layout="constrained",
            dpi=120,
            gridspec_kw={"width_ratios": (1, 1, 1.15)},
        )
        for panel in axes[:2]:
            panel.imshow(greys, cmap="gray", vmin=0, vmax=255, aspect=aspect)
            panel.set_axis_off()
        for label, style in enumerate(label_styles(run.case.labels.names), start=1):
            if not (labels == label).any():
                continue
            inside = gaussian_filter((labels == label).astype(np.float64), 0.7)
            for panel, width in zip(axes, (2.4, 1.2)):
                panel.contour(inside, levels=[0.5], colors=style.colour, linewidths=width)
            axes[0].plot([], [], color=style.colour, linewidth=3, label=style.name)
        colours = scale.colours[scale.levels(bits)].astype(np.float64) / 255
        colours[..., 3] *= 0.75
        axes[1].imshow(colours, aspect=aspect, interpolation="bilinear")
        axes[0].set_title(f"the network's labels on {SEQUENCE}")
        axes[0].legend(
            loc="upper center",
            bbox_to_anchor=(0.5, 0.0),
            ncols=2,
            facecolor="black",
            edgecolor="black",
            framealpha=1,
            labelcolor="white",
            fontsize=10,
            columnspacing=1.0,
            handlelength=1.3,
        )
        axes[1].set_title("where not to trust them")
        whole = next(each for each in volume_rows(run) if each.name == "whole")
        _draw_volume(axes[2], whole, truth_ml)
        figure.savefig(picture)
        plt.close(figure)


def _draw_volume(panel: Axes, row: VolumeRow, truth_ml: float) -> None:
    """Draw a structure's volumes in the samples, their interval and the truth."""
    low, high = row.interval_ml
    panel.set_facecolor("none")
    most = float(np.max(panel.hist(row.samples_ml, bins=24, color="#6f8fb5")[0]))
    panel.axvspan(low, high, color="#4c8ed9", alpha=0.22)
    panel.axvline(truth_ml, color="#e5534b", linewidth=2.5, linestyle="--")
    panel.text(truth_ml, 1.06 * most, f"  truth {truth_ml:.0f} ml", va="center")
    panel.set_ylim(0, 1.14 * most)
    panel.set_title(f"how large: {row.volume_ml:.0f} ml ({low:.0f}–{high:.0f})")
    panel.set_xlabel(f"tumour in {len(row.samples_ml)} samples, ml; shaded: 95 %")
    panel.set_yticks([])
    panel.spines[["top", "right", "left"]].set_visible(False)


def open_data(run: Run) -> ReportData:
    """Return what the report of a run shows, with the Dice that its summary has."""
    rows = [*run.summary.get("regions", ()), *run.summary["labels"]]
    keys = ("dice_median", "dice_lower", "dice_upper")
    agreement = {row["name"]: tuple(row[key] for key in keys) for row in rows if row[keys[0]]}
    return replace(report_data(run), agreement=agreement)


if __name__ == "__main__":
    with TemporaryDirectory() as place:
        run_demo(Path(place))
        run = load_run(place)
        drawn = read_volume(Source("truth", Path(place) / "patient" / "truth.nii.gz")).voxels
        truth_ml = float((drawn > 0).sum() * np.prod(run.case.geometry.spacing)) / 1000
        for dark, hero in HEROES.items():
            draw_hero(run, truth_ml, hero, dark=dark)
        write_report(GALLERY, open_data(run), viewer=False)
        photograph(GALLERY, PICTURE)
