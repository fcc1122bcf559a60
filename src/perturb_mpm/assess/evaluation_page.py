"""The page of an evaluation: one HTML file that opens from disk and reads in print."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.assess.measure import SPECIFICITIES, CaseAssessment
from perturb_mpm.evaluation import ALL, MetricSummary, Reliability, summarise
from perturb_mpm.report import (
    DASHES,
    ChartLine,
    EntropyScale,
    LineChart,
    Picture,
    colour_bar,
    data_uri,
    entropy_overlay,
    error_overlay,
    grey_png,
    label_styles,
    page_environment,
    slice_picture,
    unit_chart,
)

GENERATOR = '<meta name="generator" content="perturb-mpm evaluate">'
"""What tells the page from others of its name."""
MOST_SLICES = 6
# What a reader asks first, and over which voxels; everything else is in the table on disk.
SHOWN = {
    "dice": ("Dice", "brain"),
    "hausdorff95_mm": ("95 % Hausdorff distance, mm", "brain"),
    "volume_true_ml": ("true volume, ml", "brain"),
    "volume_ml": ("found volume, ml", "brain"),
    "volume_covered": ("truth within the 95 % sample interval", "brain"),
    "volume_crps_ml": ("volume score (CRPS), ml", "brain"),
    "sensitivity_above_0_bits": ("sensitivity, entropy above 0", "dilated"),
    "specificity_above_0_bits": ("specificity, entropy above 0", "dilated"),
    "auroc": ("area under ROC", "dilated"),
    "auprc": ("average precision", "dilated"),
    "error_prevalence": ("share of errors", "dilated"),
    "error_overlap_best": ("uncertainty–error overlap", "dilated"),
    "qu_brats_score": ("QU-BraTS score", "brain"),
    "ece_top_label": ("calibration error, top label", "dilated"),
    "ece_region": ("calibration error", "dilated"),
    "negative_log_likelihood_nats": ("log score, nats", "dilated"),
    "generalized_energy_distance_iou": ("energy distance to raters", "image"),
    "matched_iou": ("matched IoU with raters", "image"),
    "rater_correlation": ("correlation with the raters' spread", "image"),
}


@dataclass(frozen=True)
class RegionTable:
    """The measures of one region: a row a measure, a column a truth."""

    region: str
    against: list[str]
    rows: list[tuple[str, list[MetricSummary | None]]]


@dataclass(frozen=True)
class ErrorSlice:
    """Where one case is wrong, and where it is uncertain, in one slice."""

    case: str
    against: str
    errors: Picture
    entropy: Picture
    oriented: bool


def render_evaluation(title: str, assessments: Sequence[CaseAssessment]) -> str:
    """Return the page of one case or a cohort as HTML; the same measures give the same text."""
    summaries = summarise(row for each in assessments for row in each.rows)
    reliability = _merge_reliability(assessments)
    return (
        page_environment("perturb_mpm.assess")
        .get_template("evaluation.html")
        .render(
            title=title,
            generator=GENERATOR,
            cases=len({each.case for each in assessments}),
            outside=[each for each in assessments if each.truth_outside_mask],
            answer=answer_in_words(summaries, reliability.expected_error),
            tables=_tables(summaries),
            reliability=reliability_chart(assessments, reliability),
            calibration_error=reliability.expected_error,
            detection=detection_chart(assessments),
            slices=[error_slice(each) for each in assessments[:MOST_SLICES]],
            styles=label_styles(assessments[0].worst.label_names),
            colour_bar=colour_bar(
                EntropyScale("inferno", math.log2(len(assessments[0].worst.label_names)))
            ),
            left_out=max(0, len(assessments) - MOST_SLICES),
        )
    )


def answer_in_words(summaries: Sequence[MetricSummary], calibration_error: float) -> str:
    """Return what a reader asks first, from the measures against the first truth."""
    against = summaries[0].against if summaries else ""
    own = [each for each in summaries if each.against == against]
    words = [
        f"A wrong voxel is more uncertain than a right one in {100 * each.mean:.0f} % of pairs "
        "(area under ROC)."
        for each in own
        if (each.region, each.metric, each.domain) == (ALL, "auroc", "dilated")
        and not math.isnan(each.mean)
    ]
    if not math.isnan(calibration_error):
        words.append(
            f"Probabilities are {100 * calibration_error:.1f} percentage points off on average "
            "(calibration error)."
        )
    covered = [e for e in own if (e.metric, e.domain) == ("volume_covered", "brain") and e.cases]
    if covered:
        holding = sum(each.mean * each.cases for each in covered)
        total = sum(each.cases for each in covered)
        words.append(
            f"The 95 % sample intervals hold {holding:.0f} of {total} true volumes of regions."
        )
    return " ".join(words)


def reliability_chart(
    assessments: Sequence[CaseAssessment], pooled: Reliability | None = None
) -> LineChart:
    """Return how often the most probable label is right, against its probability."""
    single = [each.reliability for each in assessments] if len(assessments) > 1 else []
    lines = [
        ChartLine([(0.0, 0.0), (100.0, 100.0)], faint=True),
        *(ChartLine(_reliability_points(each), faint=True) for each in single),
        ChartLine(_reliability_points(pooled or _merge_reliability(assessments)), dots=True),
    ]
    return unit_chart(lines, "probability of the most probable label", "how often it is right")


def detection_chart(assessments: Sequence[CaseAssessment]) -> LineChart:
    """Return the mean share of errors found against the share of correct voxels left alone."""
    lines = [ChartLine([(0.0, 100.0), (100.0, 0.0)], faint=True)]
    for region, dashes in zip(assessments[0].sensitivity, cycle(DASHES)):
        curves = np.array([each.sensitivity[region] for each in assessments])
        defined = curves[~np.isnan(curves).any(axis=1)]
        if len(defined):
            points = zip(100 * SPECIFICITIES, 100 * defined.mean(axis=0))
            lines.append(ChartLine([(float(x), float(y)) for x, y in points], region, dashes))
    return unit_chart(
        lines,
        "specificity: correct voxels called certain",
        "sensitivity: errors called uncertain",
    )


def error_slice(assessment: CaseAssessment) -> ErrorSlice:
    """Return the slice with most errors: where it is wrong, and where it is uncertain."""
    worst = assessment.worst
    greys = [] if worst.grey is None else [("image", data_uri(grey_png(worst.grey)))]
    wrong = worst.labels != worst.truth
    scale = EntropyScale("inferno", math.log2(len(worst.label_names)))

    def picture(overlay: str, labels: NDArray[np.uint8], description: str) -> Picture:
        return slice_picture(
            worst.plane,
            worst.position_mm,
            worst.spacing,
            greys=greys,
            overlay=overlay,
            labels=labels,
            styles=label_styles(worst.label_names),
            description=description,
        )

    most = float(worst.entropy_bits.max(initial=0.0))
    return ErrorSlice(
        assessment.case,
        assessment.against,
        picture(error_overlay(wrong), worst.truth, f"{int(wrong.sum())} wrong voxels"),
        picture(
            entropy_overlay(worst.entropy_bits, scale),
            worst.labels,
            f"entropy up to {most:.2f} bits",
        ),
        worst.oriented,
    )


def _merge_reliability(assessments: Sequence[CaseAssessment]) -> Reliability:
    pooled = assessments[0].reliability
    for each in assessments[1:]:
        pooled = pooled.merge(each.reliability)
    return pooled


def _reliability_points(curve: Reliability) -> list[tuple[float, float]]:
    filled = curve.voxels > 0
    points = zip(100 * curve.confidence[filled], 100 * curve.accuracy[filled])
    return [(float(x), float(y)) for x, y in points]


def _tables(summaries: Sequence[MetricSummary]) -> list[RegionTable]:
    found = {(s.region, s.metric, s.against, s.domain): s for s in summaries}
    against = list(dict.fromkeys(s.against for s in summaries))
    regions = list(dict.fromkeys(s.region for s in summaries))
    tables = []
    for region in sorted(regions, key=lambda name: name != ALL):
        rows = []
        for metric, (name, domain) in SHOWN.items():
            cells = [found.get((region, metric, each, domain)) for each in against]
            if any(cells):
                rows.append((name, cells))
        used = [any(cells[place] for _, cells in rows) for place in range(len(against))]
        columns = [name for name, shown in zip(against, used) if shown]
        kept = [(name, [c for c, shown in zip(cells, used) if shown]) for name, cells in rows]
        tables.append(RegionTable(region, columns, kept))
    return tables
