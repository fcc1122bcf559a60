"""Do the ten tasks of docs/tasks.md and time them: ``python -m lab.benchmarks.tasks``.

Files of made-up patients take the place of a reader's own. Commands are typed by a script and
clicks made by one in a real browser, so the seconds are those one waits for the machine: none for
reading, thinking or typing. The cohort and the change are kept as pages of docs/gallery.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np

from lab.benchmarks import machine
from lab.benchmarks.figures import with_figures
from lab.screenshot import GALLERY, open_browser, open_data
from lab.words import markdown_table, paragraph
from perturb_mpm.files import save_nifti
from perturb_mpm.phantom import LABEL_NAMES, Phantom, glioblastoma
from perturb_mpm.report import write_report
from perturb_mpm.run import load_run

if TYPE_CHECKING:
    from playwright.sync_api import Page

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tasks.md"
BEGIN, END = "<!-- measured -->", "<!-- end of measured -->"
HEADER = (
    "task",
    "commands",
    "clicks",
    "seconds by the clock",
    "of a core",
    "what was done",
)
CASES, SPACING_MM, MEMBERS = 6, 4.0, 3
_PATIENCE_MS = 240_000


@dataclass
class TaskReader:
    """Somebody at work in a folder: counts what they type and click, and how long they wait."""

    folder: Path
    page: Page
    commands: int = 0
    clicks: int = 0

    def type(self, *command: str | Path) -> None:
        """Type a command of perturb-mpm and wait for its end."""
        self.commands += 1
        start = "from perturb_mpm.cli import main; main()"
        words = [sys.executable, "-c", start, *map(str, command)]
        subprocess.run(words, cwd=self.folder, check=True, stdout=subprocess.DEVNULL)

    def click(self, selector: str) -> None:
        """Click the first thing that a selector finds."""
        self.clicks += 1
        self.page.locator(selector).first.click()

    def open(self, name: str) -> None:
        """Open a page of the folder, by a click on its file."""
        self.clicks += 1
        self.page.goto((self.folder / name).resolve().as_uri(), wait_until="load")


def install(reader: TaskReader) -> str:
    """Install a checkout into a new environment, packages fetched, and let doctor look at it."""
    environment = reader.folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    for words in (["pip", "install", "--quiet", str(ROOT)], ["perturb-mpm", "doctor", "--quiet"]):
        command = [environment / "bin" / words[0], *words[1:]]
        subprocess.run(command, cwd=reader.folder, check=True)
        reader.commands += 1
    return "`pip install .`, packages from a nearby mirror; `doctor`"


def first_run(reader: TaskReader) -> str:
    """Run the demo and open its report."""
    reader.type("demo", "--output", "demo", "--quiet")
    reader.open("demo/report.html")
    return "`demo`: 200 samples at 2 mm; report open"


def read_report(reader: TaskReader) -> str:
    """Go to the main doubt and ask what is surely inside."""
    reader.click("a:text('See it')")
    reader.click(".controls label:has(input.with-curves)")
    reader.page.locator(".slice .curves").first.wait_for(state="visible")
    return "the main doubt, then the curves of 5, 50 and 95 %"


def correct(reader: TaskReader) -> str:
    """Paint over the main doubt of the demo, update, and see the interval shrink."""
    reader.commands += 1
    with open_viewer(reader.folder / "demo") as address:
        page = reader.page
        page.goto(address, wait_until="load")
        page.wait_for_selector("#pmpm-viewer[data-correction=ready]")
        page.locator("[data-part=volume-rows] tr").first.wait_for()
        reader.click('label:has(input[name="pmpm-pen"][value="0"])')
        page.locator("[data-part=brush]").fill("14")
        box = page.locator("[data-part=canvas]").bounding_box()
        if box is None:
            raise RuntimeError("the viewer must show its slices, got none")
        x, y = box["x"] + 0.236 * box["width"], box["y"] + 0.474 * box["height"]  # the crosshair
        page.mouse.move(x - 8, y - 8)
        page.mouse.down()
        for step in range(1, 9):
            page.mouse.move(x - 8 + 2 * step, y - 8 + step)
        page.mouse.up()
        reader.clicks += 1  # the stroke
        reader.click("[data-part=update]")
        wait_until(page, "window.pmpm.updates === 1")
    return "one stroke at the main doubt, until all samples are updated"


def five_hundred(reader: TaskReader) -> str:
    """Run a cohort, look at the case that it names first and rate it."""
    reader.type(
        *("cohort", "--images", "imagesTs", "--probabilities", "predicted", "--truth", "labelsTs"),
        *("--region", "whole=1,2,3,4", "core=1,3,4", "--samples", "100", "--seed", "7"),
        *("--output", "cohort", "--quiet"),
    )
    reader.open("cohort/cohort.html")
    reader.click("#cases a")
    reader.page.wait_for_load_state("load")
    reader.click("#rating label:has(input[value=fix])")
    return f"{CASES} cases at {SPACING_MM:.0f} mm; the first of the list opened and rated"


def own_network(reader: TaskReader) -> str:
    """Run one case of a network and open its report."""
    reader.type(
        *("run", "--image", "imagesTs/P1_0001.nii.gz", "imagesTs/P1_0003.nii.gz"),
        *("--probabilities", "predicted/P1.npz", "--output", "P1", "--quiet"),
    )
    reader.open("P1/report.html")
    return f"one case at {SPACING_MM:.0f} mm, 200 samples; report open"


def ensemble(reader: TaskReader) -> str:
    """Compare one network with an ensemble, both against the truth."""
    images = ("--image", "imagesTs/P1_0001.nii.gz", "imagesTs/P1_0003.nii.gz")
    members = [f"fold_{k}/P1.nii.gz" for k in range(MEMBERS)]
    for name, maps in (("one", members[:1]), ("ensemble", members)):
        reader.type("run", *images, "--probabilities", *maps, "--output", name, "--quiet")
        reader.type(
            *("evaluate", "--prediction", name, "--truth", "labelsTs/P1.nii.gz"),
            *("--output", f"{name}-evaluation", "--quiet"),
        )
        reader.open(f"{name}-evaluation/evaluation.html")
    return f"one member and {MEMBERS}, against the truth; both pages open"


def change(reader: TaskReader) -> str:
    """Compare two scans of one head in which nothing grew."""
    names = [f"{value}:{name}" for value, name in enumerate(LABEL_NAMES)]
    for month in ("january", "june"):
        reader.type(
            *("run", "--image", f"{month}_t1c.nii.gz", "--probabilities", f"{month}_p.nii.gz"),
            *("--labels", *names),
            *("--region", "tumour=1,3,4", "--output", month, "--quiet"),
        )
    reader.type(
        *("change", "january", "june", "--structure", "tumour", "--output", "change", "--quiet")
    )
    reader.open("change/report.html")
    return f"two scans at {SPACING_MM:.0f} mm; page open"


def cite(reader: TaskReader) -> str:
    """Find the methods in the report."""
    reader.page.goto((reader.folder / "demo" / "report.html").resolve().as_uri())
    reader.click("nav a:text('Provenance')")
    return "the paragraph and the paper, in the report that is open"


def trouble(reader: TaskReader) -> str:
    """Ask what is installed and whether it computes."""
    reader.type("doctor")
    return "`doctor`"


TASKS: dict[str, Callable[[TaskReader], str]] = {
    "install": install,
    "first run": first_run,
    "read the report": read_report,
    "correct": correct,
    "five hundred cases": five_hundred,
    "my own network": own_network,
    "compare with an ensemble": ensemble,
    "change over time": change,
    "cite": cite,
    "trouble": trouble,
}


def wait_until(page: Page, condition: str) -> None:
    """Wait until a condition holds in a page that lets nobody evaluate text by itself."""
    until = time.monotonic() + _PATIENCE_MS / 1000
    while not page.evaluate(condition):
        if time.monotonic() > until:
            raise TimeoutError(f"{condition} never came true")
        page.wait_for_timeout(50)


@contextmanager
def open_viewer(run: Path) -> Iterator[str]:
    """Serve a run as ``perturb-mpm view`` does, and yield the address that it prints."""
    start = "from perturb_mpm.cli import main; main()"
    command = [sys.executable, "-c", start, "view", str(run), "--no-browser", "--quiet"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            yield server.stdout.readline().strip() if server.stdout else ""
        finally:
            server.terminate()


def core_seconds() -> float:
    """Return the seconds of a core that commands have taken that ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def write_patients(folder: Path) -> None:
    """Write what the reader has: a network's cases, an ensemble's members, two scans of a head."""
    for name in ("imagesTs", "predicted", "labelsTs", *(f"fold_{k}" for k in range(MEMBERS))):
        (folder / name).mkdir()
    for number in range(1, CASES + 1):
        patient = glioblastoma(seed=number, spacing_mm=SPACING_MM)
        _write_case(folder, f"P{number}", patient)
    patient = glioblastoma(seed=1, spacing_mm=SPACING_MM)
    for k in range(MEMBERS):
        _write_maps(folder / f"fold_{k}" / "P1.nii.gz", replace(patient, seed=100 + k))
    for seed, month in enumerate(("january", "june")):
        scan = replace(patient, seed=seed)  # the same head; the network errs anew
        save_nifti(folder / f"{month}_t1c.nii.gz", scan.images[1], scan.affine)
        _write_maps(folder / f"{month}_p.nii.gz", scan)


def _write_case(folder: Path, name: str, patient: Phantom) -> None:
    """Write images, nnU-Net's prediction and the truth of a patient."""
    for number, image in enumerate(patient.images):  # T1, T1c, T2, FLAIR
        save_nifti(folder / "imagesTs" / f"{name}_{number:04d}.nii.gz", image, patient.affine)
    network = patient.network_probabilities  # (labels, x, y, z)
    predicted = folder / "predicted"
    np.savez_compressed(predicted / f"{name}.npz", probabilities=network.transpose(0, 3, 2, 1))
    likely = network.argmax(axis=0).astype(np.uint8)
    save_nifti(predicted / f"{name}.nii.gz", likely, patient.affine)
    labels = {each: value for value, each in enumerate(patient.label_names)}
    channels = {str(k): each for k, each in enumerate(patient.channel_names)}
    (predicted / "dataset.json").write_text(
        json.dumps({"labels": labels, "channel_names": channels})
    )
    truth = patient.truth.astype(np.uint8)
    save_nifti(folder / "labelsTs" / f"{name}.nii.gz", truth, patient.affine)


def _write_maps(path: Path, patient: Phantom) -> None:
    """Write a network's maps as one NIfTI, labels last."""
    save_nifti(path, patient.network_probabilities.transpose(1, 2, 3, 0), patient.affine)


def keep_pages(folder: Path) -> None:
    """Put the pages of cohort and change where they open without an installation."""
    gallery = GALLERY.parent
    patients = gallery / "patients"
    shutil.rmtree(patients, ignore_errors=True)
    patients.mkdir()
    shutil.copy(folder / "cohort" / "cohort.html", patients / "cohort.html")
    for number in range(1, CASES + 1):
        case = f"P{number}"
        (patients / case).mkdir()
        run = load_run(folder / "cohort" / case)
        write_report(patients / case / "report.html", open_data(run), viewer=False)
    shutil.copy(folder / "change" / "report.html", gallery / "change.html")


def main() -> None:
    """Do the tasks, print the table, and write it where asked."""
    parser = argparse.ArgumentParser(
        description="Do the ten tasks of docs/tasks.md, and time them.",
        epilog="example: python -m lab.benchmarks.tasks --page",
    )
    parser.add_argument("--page", action="store_true", help="write docs/tasks.md and the gallery")
    options = parser.parse_args()
    rows = []
    with TemporaryDirectory() as place, open_browser() as browser:
        folder = Path(place)
        write_patients(folder)
        page = browser.new_page(viewport={"width": 1400, "height": 900}, color_scheme="light")
        page.set_default_timeout(_PATIENCE_MS)
        for name, do in TASKS.items():
            reader = TaskReader(folder, page)
            began, used = time.monotonic(), core_seconds()
            what = do(reader)
            taken = f"{time.monotonic() - began:.1f}", f"{core_seconds() - used:.1f}"
            rows.append((name, str(reader.commands), str(reader.clicks), *taken, what))
            print(*rows[-1], sep=" | ", flush=True)
        if options.page:
            keep_pages(folder)
    about = (
        "Done by a script on made-up patients: commands typed, clicks made in a real browser "
        "(opening a page is one), and the seconds one waits for the machine, without reading and "
        "thinking; *of a core* is what the commands themselves took. On a machine with "
        f"{machine.cores()} cores. Written by `python -m lab.benchmarks.tasks --page`."
    )
    text = f"{paragraph(about)}\n\n{markdown_table(HEADER, rows)}"
    print(text)
    if options.page:
        PAGE.write_text(with_figures(PAGE.read_text(), text, BEGIN, END))


if __name__ == "__main__":
    main()
