"""The page, pictures and tables of the segmentation experiment, written from its numbers."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING

import numpy as np

from lab.figures import BLACK, BLUE, GREEN, ORANGE, RED, new_figure
from lab.segmentation.plan import DEFAULT_ITERATIONS, SegmentationPlan
from lab.segmentation.summary import (
    DEFAULT,
    FIELDS,
    FOREST,
    LIKELY,
    OVERLAP,
    TUNED,
    TurnResult,
    VolumeScore,
    calibration_rows,
    chosen_settings,
    label_iou,
    log_scores,
    mean_dice,
    overlap_rows,
    pooled_curve,
    volume_scores,
)
from lab.words import markdown_table
from perturb_mpm.learning import NO_FIELDS, FieldSetting

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_BEFORE = {
    "forest, raw": (BLACK, "o"),
    FOREST: (ORANGE, "s"),
    "CRF, default": (BLUE, "^"),
    "votes, default": (GREEN, "v"),
}
_AFTER = {
    "forest, raw": (BLACK, "o"),
    "CRF, tuned for both": (RED, "D"),
    "votes, tuned for both": (BLACK, "P"),
    "CRF, tuned for likelihood": (BLUE, "^"),
    "votes, tuned for likelihood": (GREEN, "v"),
    FIELDS: (ORANGE, "s"),
}
_FEWEST = 50  # voxels of a bin that is drawn
_TICKS = (1, 3, 10, 30, 100, 300, 1000)  # ml

OVERLAP_VOTES = "votes, tuned for overlap"
VOTES, LIKELY_VOTES = "votes, tuned for both", "votes, tuned for likelihood"

_PAGE = """# Segmentation with a learned CRF

Written by `python -m lab segmentation{options}`.

{origin}, one left out in each turn. {unaries}.

The CRF is tuned for overlap (the mean over patients of the intersection over union), for
likelihood, and for both, their sum. Tuned it makes {iterations} mean-field iterations;
its phases are {phases}, its voxels those within {crop:g} mm of foreground, true or likely.
The default CRF has a spatial kernel of 3 mm and weight 1, a bilateral kernel of 20 mm, 0.5 standard
deviations and weight 3, and makes {default_iterations} iterations. A patient without a region does
not count for it.

## Overlap

{overlap}

{overlap_findings}

IoU of each label, the mean over patients that have it, before and after tuning for both:

{iou}

## Calibration around the tumour

The most probable label's probability against how often it is right, 15 bins, over the voxels within
10 mm of tumour, true or by the forest: the same voxels for every map. ECE pooled over the voxels of
all patients, and the mean over patients; log score: the mean of −ln p(truth), p no less than
10⁻⁵, votes smoothed by ½. Raw is the forest before its temperature.

{calibration}

{calibration_findings}

![Reliability before and after tuning](calibration.png)

## Volumes

{samples} samples of the CRF tuned for overlap, with random fields: one shared by all tumour labels
and one of its own for each. For each patient the length and the amplitudes are those that predict
the volumes of all others best, with a log score of their voxels no worse than without fields and
intervals that hold the truth in 90 % of them in every region. Each row of that table of scores
comes from a forest and a CRF that did not see its patient; they did see the patient that the row is
used for, as one of many. CRPS: of log(volume + 1 ml), lower is better. Fixed width: a log-normal
around the CRF's volume, its width that of the errors of all others; shifted: around it times their
mean error, too.

{volumes}

{volume_findings}

![Volume intervals](volumes.png)

Chosen: {chosen}.
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


def volume_figure(turns: Sequence[TurnResult]) -> Figure:
    """Draw each patient's sampled interval against the true volume, region by region."""
    from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter

    rows = volume_scores(turns)
    regions = list(dict.fromkeys(row.region for row in rows))
    figure = new_figure(9.0, 3.6)
    for axes, region in zip(np.atleast_1d(figure.subplots(1, len(regions))), regions):
        here = [row for row in rows if row.region == region]
        truth = np.array([row.truth_ml for row in here]) + 1.0
        lower = np.array([row.lower_ml for row in here]) + 1.0
        upper = np.array([row.upper_ml for row in here]) + 1.0
        axes.plot([_TICKS[0], _TICKS[-1]], [_TICKS[0], _TICKS[-1]], color="0.7", linewidth=1)
        for low, high, value, row in zip(lower, upper, truth, here):
            axes.plot([value, value], [low, high], color=BLUE if row.inside else RED, linewidth=2)
        axes.set_xscale("log")
        axes.set_yscale("log")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(FixedLocator(_TICKS))
            axis.set_major_formatter(ScalarFormatter())
            axis.set_minor_locator(NullLocator())
        axes.set_xlim(0.9, 1.1 * _TICKS[-1])
        axes.set_ylim(0.9, 1.1 * _TICKS[-1])
        inside = sum(row.inside for row in here)
        axes.set_title(f"{region}: {inside} of {len(here)} inside")
        axes.set_xlabel("true volume + 1 ml")
        _open(axes)
    figure.axes[0].set_ylabel("sampled 95 % interval + 1 ml")
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
        volumes=_volume_table(volume_scores(turns)),
        volume_findings=volume_findings(turns),
        chosen=_chosen(chosen_settings(turns)),
    )


def overlap_findings(turns: Sequence[TurnResult]) -> str:
    """Return in words whether the tuned CRFs are worse than the forest anywhere."""
    rows = overlap_rows(turns)
    forest = mean_dice(rows, FOREST)
    sentences = []
    names = {
        OVERLAP: "Tuned for overlap the CRF is",
        TUNED: "Tuned for both the CRF is",
        LIKELY: "Tuned for likelihood the CRF is",
        VOTES: "Votes of the CRF tuned for both are",
        FIELDS: "Votes of the CRF tuned for overlap, sampled with fields, are",
    }
    for method, subject in names.items():
        tuned = mean_dice(rows, method)
        worse = [region for region in forest if tuned[region] < forest[region]]
        where = f"for: {', '.join(worse)}" if worse else "in no region's mean"
        sentences.append(f"{subject} worse than the forest {where}.")
    return "\n".join(sentences)


def calibration_findings(turns: Sequence[TurnResult]) -> str:
    """Return in words what temperature and tuning do to the calibration error."""
    error = {row.map: row.pooled_ece for row in calibration_rows(turns)}
    raw = error["forest, raw"]
    before, after = (
        pooled_curve(turns, name, "brain_reliability").expected_error
        for name in ("forest, raw", FOREST)
    )
    return (
        f"The temperature moves the forest's ECE from {before:.3f} to {after:.3f} over the whole "
        f"brain,\nand from {raw:.3f} to {error[FOREST]:.3f} around the tumour.\n"
        f"That of votes around the tumour is {error['votes, default']:.3f} by the default CRF, "
        f"{error[OVERLAP_VOTES]:.3f} tuned for overlap,\n"
        f"{_compared(error[VOTES], raw)} tuned for both,\n"
        f"{_compared(error[LIKELY_VOTES], raw)} tuned for likelihood, and\n"
        f"{_compared(error[FIELDS], raw)} tuned for overlap with fields."
    )


def _compared(error: float, raw: float) -> str:
    return (
        f"{error:.3f} ({'no worse' if error <= raw else 'worse'} than the raw forest's {raw:.3f})"
    )


def volume_findings(turns: Sequence[TurnResult]) -> str:
    """Return in words where fields predict volumes better than a fixed width, and the voxels."""
    rows = volume_scores(turns)
    better: list[str] = []
    worse: list[str] = []
    for region in dict.fromkeys(row.region for row in rows):
        here = [row for row in rows if row.region == region]
        fields = sum(row.crps for row in here)
        fixed = min(
            sum(row.crps_fixed_width for row in here),
            sum(row.crps_fixed_width_shifted for row in here),
        )
        (better if fields < fixed else worse).append(region)
    without, with_fields = log_scores(turns)
    return (
        f"Fields predict volumes better than the better of the two fixed widths for: "
        f"{', '.join(better) or 'no region'};\nworse for: {', '.join(worse) or 'no region'}. "
        f"Voxelwise log score over the brain: {without:.3f} nats without\nfields, "
        f"{with_fields:.3f} with them."
    )


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


def volume_csv(turns: Sequence[TurnResult]) -> str:
    """Return one line a patient and region as CSV: intervals and scores of volumes."""
    text = io.StringIO()
    names = [each.name for each in fields(VolumeScore) if each.name != "setting"]
    settings = ["length_mm", "shared", "own"]
    writer = csv.DictWriter(text, [*names, *settings], lineterminator="\n")
    writer.writeheader()
    for row in volume_scores(turns):
        values = asdict(row)
        setting = values.pop("setting")
        writer.writerow({key: _digits(each) for key, each in (values | setting).items()})
    return text.getvalue()


def _overlap_table(turns: Sequence[TurnResult]) -> str:
    rows = overlap_rows(turns)
    regions = list(turns[0]["truth_ml"])
    patients = [next(row.patients for row in rows if row.region == region) for region in regions]
    lines = []
    for method in (FOREST, DEFAULT, OVERLAP, TUNED, LIKELY, VOTES, FIELDS):
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


def _volume_table(rows: Sequence[VolumeScore]) -> str:
    head = ["region", "95 %, fields", "without", "CRPS, fields", "without"]
    lines = []
    for region in dict.fromkeys(row.region for row in rows):
        here = [row for row in rows if row.region == region]
        n = len(here)
        lines.append(
            [
                region,
                f"{sum(row.inside for row in here)}/{n}",
                f"{sum(row.inside_without_fields for row in here)}/{n}",
                f"{sum(row.crps for row in here) / n:.3f}",
                f"{sum(row.crps_without_fields for row in here) / n:.3f}",
                f"{sum(row.crps_fixed_width for row in here) / n:.3f}",
                f"{sum(row.crps_fixed_width_shifted for row in here) / n:.3f}",
            ]
        )
    return markdown_table([*head, "fixed width", "shifted"], lines)


def _chosen(settings: Sequence[FieldSetting]) -> str:
    counted = {setting: settings.count(setting) for setting in settings}
    return "; ".join(
        f"{_words(setting)} for {count} of {len(settings)}" for setting, count in counted.items()
    )


def _words(setting: FieldSetting) -> str:
    if setting == NO_FIELDS:
        return "no fields"
    length = "one offset" if math.isinf(setting.length_mm) else f"{setting.length_mm:g} mm"
    own = setting.own if isinstance(setting.own, tuple) else (setting.own,)
    each = ", ".join(f"{amplitude:g}" for amplitude in own)
    return f"{length}, {setting.shared:g} nats shared and {each} of each label"


def _digits(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, tuple):
        return " ".join(_digits(each) for each in value)
    return f"{value:.6g}" if isinstance(value, float) else str(value)
