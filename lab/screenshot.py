"""Make the pictures and the open report of the demo in docs/: ``python -m lab.screenshot``.

The first is its page, the second one slice: the image, the labels, the doubt, and the volumes of
the samples. It needs Playwright (the extra ``test``) and a Chromium that is already there.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from perturb_mpm.cli import UsageError
from perturb_mpm.report import (
    EntropyScale,
    ReportData,
    field_of_view,
    in_window,
    label_styles,
    radiological_planes,
    write_report,
)
from perturb_mpm.run import Run, load_run, report_data, volume_rows

DOCS = Path(__file__).parents[1] / "docs"
PICTURE, HERO = DOCS / "report.png", DOCS / "hero.png"
GALLERY = DOCS / "gallery" / "demo-report.html"
WIDTH, HEIGHT = 1000, 1150  # pixels of the page that are shown

_FLAGS = ("--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--no-sandbox")
_CHROMIUM = ("chromium", "chromium-browser", "google-chrome")


def photograph(page: Path, picture: Path) -> None:
    """Write the first screen of a page as a PNG."""
    from playwright.sync_api import sync_playwright

    browser = next(filter(None, map(shutil.which, _CHROMIUM)), None)
    if browser is None:
        raise UsageError("a screenshot needs Chromium, got none: apt-get install chromium")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=browser, args=[*_FLAGS])
        shown = opened.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        shown.goto(page.resolve().as_uri(), wait_until="load")
        shown.screenshot(path=picture, timeout=240_000)
        opened.close()


def run_demo(folder: Path) -> None:
    """Run the demo in a process of its own."""
    start = "from perturb_mpm.cli import main; main()"
    command = [sys.executable, "-c", start, "demo", "--output", str(folder), "--quiet"]
    subprocess.run(command, check=True)  # noqa: S603 - this program alone


def draw_hero(run: Run, picture: Path) -> None:
    """Draw what goes in and what comes out of a run, in one slice through its largest doubt."""
    import matplotlib.pyplot as plt

    plane = radiological_planes(run.case.geometry.affine)[0]
    spacing = run.case.geometry.spacing
    box = field_of_view(run.labels > 0, run.case.mask, spacing)
    others = tuple({0, 1, 2} - {plane.across})
    index = int(run.entropy.sum(axis=others).argmax())
    name, image = next(iter(run.case.images.items()))
    window = np.percentile(image[run.case.mask], [0.5, 99.9])  # enhancement keeps its texture
    greys = (in_window(plane.cut(image, index, box), (window[0], window[1]), 255) / 255) ** 0.6
    labels, bits = (plane.cut(each, index, box) for each in (run.labels, run.entropy))
    scale = EntropyScale("inferno", float(np.log2(len(run.case.labels))))
    aspect = spacing[plane.rows] / spacing[plane.columns]
    shape = {"width_ratios": (1, 1, 1, 1.25)}
    figure, axes = plt.subplots(
        1, 4, figsize=(12.4, 3.9), layout="constrained", dpi=120, gridspec_kw=shape
    )
    titles = (f"image ({name})", "labels", "where not to trust them")
    for panel, title in zip(axes, titles):
        panel.imshow(greys, cmap="gray", vmin=0, vmax=1, aspect=aspect, interpolation="bicubic")
        panel.set_title(title, fontsize=12)
        panel.set_axis_off()
    for label, style in enumerate(label_styles(run.case.labels.names), start=1):
        for panel in axes[1:3]:
            panel.contour(labels == label, levels=[0.5], colors=style.colour, linewidths=1.3)
    colours = scale.colours[scale.levels(bits)].astype(np.float64) / 255
    colours[..., 3] *= 0.7
    axes[2].imshow(colours, aspect=aspect, interpolation="nearest")
    row = next(each for each in volume_rows(run) if each.name == "whole")
    low, high = row.interval_ml
    axes[3].hist(row.samples_ml, bins=24, color="#8c97a1")
    axes[3].axvspan(low, high, color="#0b5cad", alpha=0.12)
    axes[3].set_title(f"whole tumour: {row.volume_ml:.0f} ml ({low:.0f}–{high:.0f})", fontsize=12)
    axes[3].set_xlabel("ml in each sample; blue: 95 % interval")
    axes[3].set_yticks([])
    axes[3].spines[["top", "right", "left"]].set_visible(False)
    figure.savefig(picture)
    plt.close(figure)


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
        draw_hero(run, HERO)
        write_report(GALLERY, open_data(run), viewer=False)
        photograph(GALLERY, PICTURE)
