"""Measure what a correction does elsewhere: ``python -m lab.benchmarks.correct --help``.

A person is imagined who paints the truth where the label map is wrong, in one slice: the one with
most wrong voxels, all of them or the largest piece alone. What counts is the rest of the image:
the Dice of all other slices, the log score near the structure there, and whether the volume's
interval shrinks and still holds the truth. The table goes to docs/view.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lab.benchmarks.figures import with_figures
from lab.benchmarks.worker import ROOT
from lab.words import markdown_table, paragraph
from perturb_mpm.files import Case, LabelScheme, Source, label_indices, read_case, read_volume
from perturb_mpm.progress import Silent
from perturb_mpm.run import Run, RunSettings, run_case, volume_rows
from perturb_mpm.view import Corrector

PAGE = ROOT / "docs" / "view.md"
BEGIN, END = "<!-- correction figures -->", "<!-- end of correction figures -->"
NEAR_VOXELS = 3
HEADER = (
    "cases",
    "painted",
    "voxels painted",
    "Dice elsewhere",
    "log score elsewhere, nats",
    "width of the interval, ml",
    "truth inside",
)


class Row(NamedTuple):
    """One case and one stroke; pairs are before and after."""

    painted: int
    dice: tuple[float, float]  # of all foreground, in other slices
    nats: tuple[float, float]  # mean −log probability of the truth, near the structure
    width_ml: tuple[float, float]  # of the 95 % interval of all foreground
    inside: tuple[bool, bool]


def hippocampi(data: Path, most: int) -> Iterator[Case]:
    """Yield hippocampi with a network's probabilities, the last ones: others served to choose."""
    from lab.evidence import case_names, read_hippocampus

    folder = data / "hippocampus_network"
    for name in case_names(folder)[-most:]:
        yield read_hippocampus(folder, name)


def gliomas(data: Path, most: int) -> Iterator[Case]:
    """Yield gliomas with the probabilities of networks that never saw them."""
    scheme = LabelScheme((0, 1, 2, 4), ("background", "necrosis", "oedema", "enhancing"))
    for path in sorted((data / "glioma_network" / "probabilities").glob("*.npz"))[:most]:
        folder = data / "brats2021_2mm" / path.stem
        images = [folder / f"{path.stem}_{kind}.nii.gz" for kind in ("flair", "t1", "t1ce", "t2")]
        case = read_case(images, path, reference=images[0], labels=scheme)
        drawn = read_volume(Source("truth", folder / f"{path.stem}_seg.nii.gz"))
        truth = label_indices(drawn.voxels, scheme, drawn.source)
        yield replace(case, truth=truth.astype(np.uint8))


def paint(run: Run, truth: NDArray[np.uint8], *, whole: bool) -> tuple[int, dict[int, int]]:
    """Return the slice with most wrong voxels, and the truth where it is painted there."""
    from scipy.ndimage import label

    wrong = (run.labels != truth) & run.case.mask
    z = int(wrong.sum(axis=(0, 1)).argmax())
    here = np.zeros_like(wrong)
    here[:, :, z] = wrong[:, :, z]
    if not whole:
        pieces, _ = label(here)
        here = pieces == np.bincount(pieces.ravel())[1:].argmax() + 1
    voxels = np.flatnonzero(here)
    return z, dict(zip(voxels.tolist(), truth.flat[voxels].tolist()))


def measure(run: Run, truth: NDArray[np.uint8], *, whole: bool) -> Row:
    """Return what one stroke does to a run."""
    from scipy.ndimage import binary_dilation

    z, edits = paint(run, truth, whole=whole)
    corrector = Corrector(run)
    corrector.draw_samples(Silent())
    corrected, _ = corrector.solve(corrector.preview(edits), Silent(), lambda _: None)
    elsewhere = run.case.mask.copy()
    elsewhere[:, :, z] = False
    near = binary_dilation((truth > 0) | (run.labels > 0), iterations=NEAR_VOXELS) & elsewhere
    voxel_ml = float(np.prod(run.case.geometry.spacing)) / 1000
    truth_ml = float((truth > 0).sum()) * voxel_ml
    dice, nats, width, inside = [], [], [], []
    for each in (run, corrected):
        one, other = (each.labels > 0)[elsewhere], (truth > 0)[elsewhere]
        dice.append(2 * (one & other).sum() / max(1, one.sum() + other.sum()))
        shares = np.take_along_axis(each.marginals, truth[np.newaxis].astype(np.int64), axis=0)[0]
        nats.append(float(-np.log(np.maximum(shares[near], 1e-6)).mean()))
        (all_labels,) = (row for row in volume_rows(each) if row.kind == "together")
        low, high = all_labels.interval_ml  # as the viewer shows it
        width.append(high - low)
        inside.append(low <= truth_ml <= high)
    return Row(len(edits), *((each[0], each[1]) for each in (dice, nats, width, inside)))  # type: ignore[arg-type]


def cells(name: str, painted: str, rows: list[Row]) -> tuple[str, ...]:
    """Return a line of the table: means, before → after."""

    def means(field: str, form: str) -> str:
        pairs = np.array([getattr(row, field) for row in rows], dtype=np.float64)
        return " → ".join(format(value, form) for value in pairs.mean(axis=0))

    held = [sum(row.inside[k] for row in rows) for k in range(2)]
    return (
        f"{len(rows)} {name}",
        painted,
        f"{np.mean([row.painted for row in rows]):.0f}",
        means("dice", ".3f"),
        means("nats", ".3f"),
        means("width_ml", ".2f"),
        " → ".join(f"{count}/{len(rows)}" for count in held),
    )


def main() -> None:
    """Measure, print, and write the table where asked."""
    parser = argparse.ArgumentParser(
        description="What painting one slice does to all others.",
        epilog="example: python -m lab.benchmarks.correct --data ../shared/data --page",
    )
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--hippocampi", type=int, default=20, help="the last so many")
    parser.add_argument("--gliomas", type=int, default=0, help="the first so many of eleven")
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--page", action="store_true", help="put the table into docs/view.md")
    options = parser.parse_args()
    settings = RunSettings().changed(samples=options.samples, seed=1)
    lines = []
    plan = (("hippocampi", hippocampi, options.hippocampi), ("gliomas", gliomas, options.gliomas))
    for name, read, most in plan:
        rows: dict[str, list[Row]] = {"all errors of a slice": [], "its largest error": []}
        for case in read(options.data, most):
            if case.truth is None:
                raise ValueError("the truth of a case must be known")
            with TemporaryDirectory() as folder:
                run = run_case(case, settings, Path(folder) / "case", title=name)
                for painted, found in rows.items():
                    found.append(measure(run, case.truth, whole=painted.startswith("all")))
                    print(name, painted, found[-1], flush=True)
        lines += [cells(name, painted, found) for painted, found in rows.items()]
    about = (
        "A person who paints the truth where the label map is wrong, in the slice with most wrong "
        f"voxels: what it does to all other slices. Means, before → after, {options.samples} "
        "samples; volumes are of all foreground. Written by "
        "`python -m lab.benchmarks.correct --page`."
    )
    text = f"{paragraph(about)}\n\n{markdown_table(HEADER, lines)}"
    print(text)
    if options.page:
        PAGE.write_text(with_figures(PAGE.read_text(), text, BEGIN, END))


if __name__ == "__main__":
    main()
