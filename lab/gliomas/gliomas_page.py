"""The page of the gliomas, written from its numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from lab.gliomas.measuring import BARE, DEFAULT, DISPLACED, WHITE
from lab.words import markdown_table, paragraph
from perturb_mpm.tune import (
    ALONE,
    FIXED,
    GRID,
    LEARNED,
    NEAR_MM,
    RESIDUAL,
    SAMPLED,
    TEMPERED,
    CaseScores,
    Tuned,
    means,
)

PAGE_NAME = "reproduce-gliomas.md"
ORDER = (
    ALONE,
    GRID,
    TEMPERED,
    DISPLACED,
    WHITE,
    BARE,
    DEFAULT,
    LEARNED,
    SAMPLED,
    FIXED,
    RESIDUAL,
)

OPENING = """{cases} glioma patients of BraTS 2021 at 2 mm (T1, T1ce, T2, FLAIR), with the
probabilities of {classifier} that never saw the patient. Written by `{command}`; {samples}
samples a patient. What
is learned is learned on all patients but one and scored on that one. Regions are the whole
tumour, its core and its enhancing part; labels are decided region by region, but for those of
white noise, which are the most frequent votes. In the defaults of `run` the image decides whether
kernels act and how strongly, and the grid decides the temperature; the row above it leaves the
kernels out. Displaced borders are the probabilities moved by a smooth random field, one voxel's
size in standard deviation. Patients without a region do not count for its Dice."""
MAPS = """Dice of whole / core / enhancing; the calibration error of the most probable label, the
log score (nats, lower is better) and the area under the ROC curve of entropy against errors, all
within {near:g} mm of true or predicted tumour."""
VOLUMES = """How many true volumes lie inside the 95 % intervals, among the patients who have the
region; the width of the interval and the CRPS of log(V + 0.1 ml), lower is better, over all
patients. Samples alone are those that were learned from, as they are. Fixed width is Student's law
with the mean and spread of the errors of the other patients; residuals are these errors
themselves."""


TREES = (
    "boosted trees",
    "python -m lab gliomas --data FOLDER --model MODEL`, the model by `perturb-mpm train",
)
NETWORK = ("U-Nets", "python -m lab gliomas --data FOLDER --probabilities FOLDER")
"""The classifier, and the command that measures it."""


def page(
    tuned: Tuned,
    scores: Sequence[CaseScores],
    samples: int,
    classifier: tuple[str, str] = TREES,
) -> str:
    """Return the page in Markdown."""
    cases = sum(map(len, tuned.folds))
    rows = means(scores, tuned.regions)
    parts = [
        "# What the CRF and its noise make of gliomas",
        paragraph(
            OPENING.format(
                cases=cases, samples=samples, classifier=classifier[0], command=classifier[1]
            )
        ),
        "## Labels and maps",
        paragraph(MAPS.format(near=NEAR_MM)),
        _maps(rows, tuned.regions),
        "## Volumes",
        paragraph(VOLUMES),
        _volumes(rows, scores, tuned.regions),
        "## What to make of it",
        paragraph(findings(rows, tuned.regions)),
        paragraph(f"Learned on all patients: {tuned.verdict}"),
    ]
    return "\n\n".join(parts) + "\n"


def findings(rows: Mapping[str, Mapping[str, float]], regions: Sequence[str]) -> str:
    """Return in words where the defaults and what is learned win, and where they lose."""
    ours, alone, fixed = rows[LEARNED], rows[ALONE], rows[FIXED]

    def changes(row: Mapping[str, float], than: Mapping[str, float]) -> str:
        return ", ".join(f"{n} {row[f'dice {n}'] - than[f'dice {n}']:+.3f}" for n in regions)

    def scores(row: Mapping[str, float]) -> str:
        return f"from {alone['log_score_nats']:.3f} to {row['log_score_nats']:.3f} nats"

    beaten = [name for name in regions if ours[f"crps {name}"] < fixed[f"crps {name}"]]
    lost = [name for name in regions if name not in beaten]
    words = (
        f"Without a label the defaults change the Dice by {changes(rows[DEFAULT], alone)}, their "
        f"kernels alone by {changes(rows[DEFAULT], rows[BARE])}, and the log score near the tumour "
        f"{scores(rows[DEFAULT])}. What is learned changes the Dice by {changes(ours, alone)}, and "
        f"the log score {scores(ours)}. "
    )
    if beaten:
        words += f"Its volumes score better than a fixed width for {' and '.join(beaten)}"
        words += f", and worse for {' and '.join(lost)}. " if lost else ". "
    else:
        words += "Its volumes score worse than a fixed width in every region. "
    return words + (
        "The strengths, lengths and rules that tuning chooses from were decided with these "
        "patients in view, so all of its figures are optimistic."
    )


def _maps(rows: Mapping[str, Mapping[str, float]], regions: Sequence[str]) -> str:
    header = ["method", "Dice", "calibration error", "log score", "ROC area"]
    cells = []
    for method in ORDER:
        row = rows[method]
        if "log_score_nats" in row:
            keys = ("calibration_error", "log_score_nats", "roc_area")
            cells.append(
                [
                    method,
                    " / ".join(f"{row[f'dice {name}']:.3f}" for name in regions),
                    *(f"{row[key]:.4f}" for key in keys),
                ]
            )
    return markdown_table(header, cells)


def _volumes(
    rows: Mapping[str, Mapping[str, float]], scores: Sequence[CaseScores], regions: Sequence[str]
) -> str:
    header = ["method", "inside", "width, log", "CRPS, log"]
    cells = []
    for method in ORDER:
        row = rows[method]
        if f"crps {regions[0]}" not in row:
            continue
        mine = [each.volumes for each in scores if each.method == method and each.volumes]
        counts = []
        for name in regions:
            present = [each[name] for each in mine if each[name].truth > 0]
            counts.append(f"{sum(each.inside for each in present)}/{len(present)}")
        cells.append(
            [
                method,
                " · ".join(counts),
                " / ".join(f"{row[f'width {name}']:.2f}" for name in regions),
                " / ".join(
                    "–" if math.isnan(row[f"crps {name}"]) else f"{row[f'crps {name}']:.3f}"
                    for name in regions
                ),
            ]
        )
    return markdown_table(header, cells)
