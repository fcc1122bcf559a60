"""The page, picture and table of the segmentation experiment, written from its numbers."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lab.figures import BLACK, BLUE, GREEN, ORANGE, RED, new_figure
from lab.segmentation.plan import DEFAULT_ITERATIONS, SegmentationPlan
from lab.segmentation.summary import (
    CLASSIFIER,
    DEFAULT,
    LIKELY,
    OVERLAP,
    TUNED,
    TurnResult,
    calibration_rows,
    label_iou,
    mean_dice,
    overlap_rows,
    pooled_curve,
)
from lab.words import markdown_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_BEFORE = {
    "classifier, raw": (BLACK, "o"),
    CLASSIFIER: (ORANGE, "s"),
    "CRF, default": (BLUE, "^"),
    "votes, default": (GREEN, "v"),
}
_AFTER = {
    "classifier, raw": (BLACK, "o"),
    "CRF, tuned for both": (RED, "D"),
    "votes, tuned for both": (BLACK, "P"),
    "CRF, tuned for likelihood": (BLUE, "^"),
    "votes, tuned for likelihood": (GREEN, "v"),
}
_FEWEST = 50  # voxels of a bin that is drawn

OVERLAP_VOTES = "votes, tuned for overlap"
VOTES, LIKELY_VOTES = "votes, tuned for both", "votes, tuned for likelihood"

_PAGE = """# Segmentation with a learned CRF

{origin}, one left out in each turn. Written by `python -m lab segmentation{options}`.

Does a CRF segment better than its classifier, and stay calibrated, when its weights and
compatibility are learned by gradients? This experiment asks it of a model of the paper's kind.
Settings for one's own cases come from `perturb-mpm tune`: it learns fewer numbers, and volume
intervals beside them.

{unaries}.

The CRF is tuned for overlap (the mean over patients of the intersection over union), for
likelihood, and for both, their sum. A tuned CRF makes {iterations} mean-field iterations;
its phases are {phases}, its voxels those within {crop:g} mm of foreground, true or likely.
The default CRF has our kernels at full strength, not centred (the paper does not state its
own): a spatial kernel of 3 mm and
weight 1, a bilateral kernel of 20 mm, 0.5 standard deviations and weight 3, and
{default_iterations} iterations. Votes are {samples} samples under the paper's noise. A patient
without a region does not count for it.

## Overlap

{overlap}

{overlap_findings}

IoU of each label, the mean over patients that have it, before and after tuning for both:

{iou}

## Calibration around the tumour

The most probable label's probability against how often it is right, 15 bins, over the voxels within
10 mm of tumour, true or by the classifier: the same voxels for every map. ECE pooled over the
voxels of all patients, and the mean over patients; log score: the mean of −ln p(truth), p no less
than 10⁻⁵, votes smoothed by ½. Raw is the classifier before its temperature.

{calibration}

{calibration_findings}

![Reliability before and after tuning](calibration.png)
"""


def calibration_figure(turns: Sequence[TurnResult]) -> Figure:
    """Draw reliability curves before and after tuning, side by side."""
    figure = new_figure(9.0, 4.2)
    sides = figure.subplots(1, 2, sharey=True)
    for axes, title, maps in zip(sides, ("before tuning", "after tuning"), (_BEFORE, _AFTER)):
        axes.plot([0, 1], [0, 1], color="0.7", linewidth=1)
        for name, (colour, marker) in maps.items():
            curve = pooled_curve(turns, name)
            drawn = curve.voxels >= _FEWEST
            axes.plot(
                curve.confidence[drawn],
                curve.accuracy[drawn],
                color=colour,
                marker=marker,
                markersize=4,
                linewidth=1.2,
                label=f"{name}: ECE {curve.expected_error:.3f}",
            )
        axes.set_title(title)
        axes.set_xlim(0.2, 1.02)
        axes.set_ylim(0.0, 1.02)
        axes.set_xlabel("probability of the most probable label")
        axes.legend(frameon=False, loc="lower right", fontsize=8)
        _open(axes)
    sides[0].set_ylabel("how often it is right")
    return figure


def _open(axes: Axes) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def page(
    turns: Sequence[TurnResult], plan: SegmentationPlan, origin: str, unaries: str, options: str
) -> str:
    """Return the page as Markdown."""
    return _PAGE.format(
        options=options,
        origin=origin,
        unaries=unaries,
        iterations=plan.iterations,
        default_iterations=DEFAULT_ITERATIONS,
        phases=" and ".join(plan.phases),
        crop=plan.crop_mm,
        samples=plan.samples,
        overlap=_overlap_table(turns),
        overlap_findings=overlap_findings(turns),
        iou=_iou_table(turns),
        calibration=_calibration_table(turns),
        calibration_findings=calibration_findings(turns),
    )


def overlap_findings(turns: Sequence[TurnResult]) -> str:
    """Return in words whether the tuned CRFs are worse than the classifier anywhere."""
    rows = overlap_rows(turns)
    alone = mean_dice(rows, CLASSIFIER)
    sentences = []
    names = {
        OVERLAP: "Tuned for overlap the CRF is",
        TUNED: "Tuned for both the CRF is",
        LIKELY: "Tuned for likelihood the CRF is",
        VOTES: "Votes of the CRF tuned for both are",
    }
    for method, subject in names.items():
        tuned = mean_dice(rows, method)
        worse = [region for region in alone if tuned[region] < alone[region]]
        where = f"for: {', '.join(worse)}" if worse else "in no region's mean"
        sentences.append(f"{subject} worse than the classifier {where}.")
    return "\n".join(sentences)


def calibration_findings(turns: Sequence[TurnResult]) -> str:
    """Return in words what temperature and tuning do to the calibration error."""
    error = {row.map: row.pooled_ece for row in calibration_rows(turns)}
    raw = error["classifier, raw"]
    before, after = (
        pooled_curve(turns, name, "brain_reliability").expected_error
        for name in ("classifier, raw", CLASSIFIER)
    )
    return (
        f"The temperature moves the classifier's ECE from {before:.3f} to {after:.3f} over the "
        f"whole brain,\nand from {raw:.3f} to {error[CLASSIFIER]:.3f} around the tumour.\n"
        f"That of votes around the tumour is {error['votes, default']:.3f} by the default CRF, "
        f"{error[OVERLAP_VOTES]:.3f} tuned for overlap,\n"
        f"{_comparison(error[VOTES], raw)} tuned for both,\n"
        f"and {_comparison(error[LIKELY_VOTES], raw)} tuned for likelihood."
    )


def _comparison(error: float, raw: float) -> str:
    than = "no worse" if error <= raw else "worse"
    return f"{error:.3f} ({than} than the raw classifier's {raw:.3f})"


def patients_csv(turns: Sequence[TurnResult]) -> str:
    """Return one line a patient, method and region as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["patient", "method", "region", "dice", "volume_ml", "truth_ml"])
    for turn in turns:
        for method, by_region in turn["dice"].items():
            for region, value in by_region.items():
                volume = turn["volume_ml"].get(method, {}).get(region)
                cells = [_digits(each) for each in (value, volume, turn["truth_ml"][region])]
                writer.writerow([turn["patient"], method, region, *cells])
    return text.getvalue()


def _overlap_table(turns: Sequence[TurnResult]) -> str:
    rows = overlap_rows(turns)
    regions = list(turns[0]["truth_ml"])
    patients = [next(row.patients for row in rows if row.region == region) for region in regions]
    lines = []
    for method in (CLASSIFIER, DEFAULT, OVERLAP, TUNED, LIKELY, VOTES):
        found = mean_dice(rows, method)
        lines.append([method, *(f"{found[region]:.3f}" for region in regions)])
    head = [f"{region} (n = {number})" for region, number in zip(regions, patients)]
    return markdown_table(["mean Dice", *head], lines)


def _iou_table(turns: Sequence[TurnResult]) -> str:
    before, after = label_iou(turns, DEFAULT), label_iou(turns, TUNED)
    lines = [
        [name, *("–" if math.isnan(value) else f"{value:.3f}" for value in values)]
        for name, values in (("default", before), ("tuned", after))
    ]
    return markdown_table(["label", *(str(label) for label in range(len(before)))], lines)


def _calibration_table(turns: Sequence[TurnResult]) -> str:
    lines = []
    for row in calibration_rows(turns):
        numbers = (row.pooled_ece, row.mean_ece, row.log_score_nats)
        lines.append([row.map, *(f"{number:.3f}" for number in numbers)])
    return markdown_table(["map", "ECE, pooled", "ECE, mean of patients", "log score, nats"], lines)


def _digits(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
