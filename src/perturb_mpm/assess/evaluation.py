"""Measures of each case, and the files that ``evaluate`` writes of them: a table and a page.

The page is one HTML file that opens from disk and reads in print.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.assess.sources import (
    NETWORK,
    FoundLesions,
    Segmentation,
    first_row,
    read_labels,
    read_segmentation,
    refuse_others,
)
from perturb_mpm.evaluation import (
    ALL,
    REPORTED_SPECIFICITIES,
    Measurement,
    MetricSummary,
    Prediction,
    Regions,
    Reliability,
    best_dice,
    binary_entropy_percent,
    curvas_crps,
    curvas_ece,
    default_regions,
    detection_curve,
    domain_mask,
    evaluate_case,
    generalized_energy_distance,
    lesion_detection,
    level_dice,
    matched_iou,
    rater_correlation,
    summarise,
    top_label,
    truth_in_mask,
)
from perturb_mpm.files import (
    CaseFiles,
    InputError,
    LabelScheme,
    Source,
    regions_from_text,
    write_table,
)
from perturb_mpm.posterior import MarginalKind, choose_regions, decide_labels
from perturb_mpm.report import (
    DASHES,
    ChartLine,
    EntropyScale,
    LineChart,
    Picture,
    Plane,
    colour_bar,
    data_uri,
    entropy_overlay,
    error_overlay,
    field_of_view,
    grey_png,
    grey_window,
    in_window,
    label_styles,
    page_environment,
    radiological_planes,
    slice_picture,
    unit_chart,
)
from perturb_mpm.storage import read_json, write_json, write_set, write_text

SPECIFICITIES = np.linspace(0, 1, 101)
EVALUATION_COLUMNS = ("case", "method", "against", "region", "domain", "metric", "value")
GENERATOR = '<meta name="generator" content="perturb-mpm evaluate">'
"""What tells the page from others of its name."""
LESIONS_FORMAT = "perturb-mpm lesion scores"
MOST_SLICES = 6
BORDER_MM = 3.0
"""How far voxels lie from a border, at most, whose probabilities the headline speaks of."""
_NINETY = 13  # the one of 15 bins that has 90 % in its middle
_LARGER_IS_BETTER = {  # measures by which a run is compared with the network alone
    "dice": True,
    "hausdorff95_mm": False,
    "auroc": True,
    "auprc": True,
    "error_overlap_best": True,
    "qu_brats_score": True,
    "ece_top_label": False,
    "ece_region": False,
    "negative_log_likelihood_nats": False,
}
_SMALLEST_DIFFERENCE = 0.0005
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
    "curvas_ece": ("calibration error, all raters (CURVAS)", "image"),
    "curvas_crps_ml": ("volume score, all raters (CURVAS CRPS), ml", "image"),
    "generalized_energy_distance_iou": ("energy distance to raters", "image"),
    "matched_iou": ("matched IoU with raters", "image"),
    "rater_correlation": ("correlation with the raters' spread", "image"),
}


@dataclass(frozen=True, eq=False)
class CaseAssessment:
    """The measures of one case against one truth, and the curves and slices a page shows."""

    case: str
    against: str
    rows: list[Measurement]
    reliability: Reliability
    """Of the most probable label, around the union of predicted and true foreground."""
    sensitivity: dict[str, NDArray[np.float64]]  # region -> (101,) at the specificities 0 … 1
    worst: WorstSlice
    truth_outside_mask: int
    """Foreground voxels of the truth outside the prediction's mask, which do not count."""
    at_borders: Reliability
    """Of the most probable label, within ``BORDER_MM`` of a predicted or true border."""
    network_at_borders: Reliability | None = None
    """The same of the network alone."""
    lesions: LesionHits | None = None
    """Of a run that found lesions one by one."""
    image_evidence: float | None = None
    """Of a run: how well its image predicts its probabilities."""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class LesionHits:
    """The lesions that a run found, and which of them the truth has."""

    structure: str
    probability: NDArray[np.float64]  # (C,)
    hit: NDArray[np.bool_]  # (C,)
    missed: int
    """True lesions that no candidate stands for."""


@dataclass(frozen=True, eq=False)
class WorstSlice:
    """The axial slice with most errors, (rows, columns) as a radiologist looks at it."""

    plane: Plane
    position_mm: float
    spacing: tuple[float, float, float]
    grey: NDArray[np.uint8] | None  # the image, where there is one
    labels: NDArray[np.uint8]  # label indices
    truth: NDArray[np.uint8]
    entropy_bits: NDArray[np.float32]
    label_names: tuple[str, ...]
    oriented: bool


def assess_case(
    files: CaseFiles,
    scheme: LabelScheme | None,
    region_words: Sequence[str],
    *,
    estimator: MarginalKind | None = None,
    mapped: Mapping[int, int] | None = None,
    specificities: Sequence[float] = REPORTED_SPECIFICITIES,
) -> list[CaseAssessment]:
    """Measure one case against its truth, and against each rater.

    ``estimator`` says which marginals of a run are measured, its own where it is None. Values of
    truth and raters that are ``mapped`` stand for others.
    """
    if files.prediction is None or (files.truth is None and not files.raters):
        raise InputError(
            f"case {files.name} must have a prediction, and a truth or a rater to compare it with"
        )
    source = Source("prediction", files.prediction)
    segmentation = read_segmentation(source, scheme, files.mask, estimator)
    asked = regions_from_text(region_words, segmentation.scheme)
    if asked and segmentation.posterior is None:
        segmentation = replace(
            segmentation, prediction=_decide_regions(segmentation.prediction, asked)
        )
    of_labels = default_regions(segmentation.scheme.names)
    regions: Regions = asked or {**segmentation.regions, **of_labels}
    truths: dict[str, NDArray[np.uint8]] = {}
    if files.truth is not None:
        truths["truth"] = read_labels(Source("truth", files.truth), segmentation, mapped)
    raters = [read_labels(Source("raters", path), segmentation, mapped) for path in files.raters]
    truths |= {f"rater {number}": labels for number, labels in enumerate(raters, start=1)}
    assessments = [
        assess(files.name, segmentation, labels, regions, against, specificities)
        for against, labels in truths.items()
    ]
    if raters:
        rows = _rater_rows(files.name, segmentation, np.stack(raters), regions)
        assessments[0].rows.extend(rows)
    return assessments


def _decide_regions(prediction: Prediction, regions: Regions) -> Prediction:
    """Return a prediction from elsewhere with labels decided as ``run`` decides them.

    Regions that overlap decide nothing: then labels stay the most probable ones.
    """
    scores = prediction.marginals
    if prediction.samples is not None:  # whole votes, so that one half is one half
        scores = np.rint(scores * prediction.samples)
    try:
        labels = decide_labels(scores, choose_regions(prediction.marginals, regions))
    except ValueError:
        return prediction
    return replace(prediction, labels=labels.astype(np.int64))


def assess(
    case: str,
    segmentation: Segmentation,
    truth: NDArray[np.uint8],
    regions: Regions,
    against: str = "truth",
    specificities: Sequence[float] = REPORTED_SPECIFICITIES,
) -> CaseAssessment:
    """Measure one segmentation against one label map (X, Y, Z) of label indices."""
    prediction = segmentation.prediction
    grid = prediction.grid
    measured = [each for each in (prediction, segmentation.network) if each is not None]
    rows = [
        replace(row, against=against)
        for each in measured
        for row in evaluate_case(each, truth, regions, case=case, specificities=specificities)
    ]
    true = truth_in_mask(prediction, truth)
    labels = grid.scatter(prediction.labels, 0)
    inside = np.ones(grid.shape, dtype=np.bool_) if grid.mask is None else grid.mask
    around = grid.gather(domain_mask("dilated", labels > 0, true > 0, inside, grid.spacing))
    near = grid.gather(_near_borders((labels, true), grid.spacing) & inside)
    at_borders = [top_label(e.marginals[:, near], grid.gather(true)[near]) for e in measured]
    wrong = labels != true
    curves = {}
    for name, members in {ALL: (), **regions}.items():
        uncertainty = prediction.entropy_bits
        error = grid.gather(wrong)
        if members:
            uncertainty = binary_entropy_percent(prediction.share(members)) / 100
            error = grid.gather(np.isin(labels, members) != np.isin(true, members))
        curve = detection_curve(uncertainty[around], error[around])
        curves[name] = np.array([curve.sensitivity_at(float(s)) for s in SPECIFICITIES])
    return CaseAssessment(
        case=case,
        against=against,
        rows=rows,
        reliability=top_label(prediction.marginals[:, around], grid.gather(true)[around]),
        sensitivity=curves,
        worst=_worst_slice(segmentation, labels, true, inside),
        truth_outside_mask=int(np.count_nonzero(truth) - np.count_nonzero(true)),
        at_borders=at_borders[0],
        network_at_borders=at_borders[1] if len(at_borders) > 1 else None,
        lesions=_match_lesions(segmentation.lesions, true),
        image_evidence=segmentation.image_evidence,
        warnings=segmentation.warnings,
    )


def _near_borders(
    maps: Sequence[NDArray[np.integer]], spacing: Sequence[float]
) -> NDArray[np.bool_]:
    """Return the voxels within ``BORDER_MM`` of a border between labels of any map."""
    from scipy.ndimage import distance_transform_edt

    border = np.zeros(maps[0].shape, dtype=np.bool_)
    for labels in maps:
        for axis in range(labels.ndim):
            differ = np.diff(labels.astype(np.int64), axis=axis) != 0
            before = [(0, int(other == axis)) for other in range(labels.ndim)]
            border |= np.pad(differ, before) | np.pad(differ, [pair[::-1] for pair in before])
    if not border.any():
        return border
    return distance_transform_edt(~border, sampling=spacing) <= BORDER_MM


def _match_lesions(found: FoundLesions | None, truth: NDArray[np.integer]) -> LesionHits | None:
    if found is None:
        return None
    match = found.candidates.match(np.isin(truth, found.members))
    return LesionHits(found.structure, found.probability, match.exists, match.unmatched)


def score_lesions(assessments: Sequence[CaseAssessment]) -> dict[str, Any] | None:
    """Return FROC, average precision and reliability of all cases' lesions, against the truth."""
    found = [each.lesions for each in assessments if each.lesions and each.against == "truth"]
    if not found:
        return None
    scores = lesion_detection(
        np.concatenate([each.probability for each in found]),
        np.concatenate([each.hit for each in found]),
        missed=sum(each.missed for each in found),
        scans=len(found),
    )
    curve = scores.reliability
    return {
        "format": LESIONS_FORMAT,
        "structures": sorted({each.structure for each in found}),
        "cases": len(found),
        "candidates": sum(len(each.hit) for each in found),
        "true_lesions": sum(int(each.hit.sum()) + each.missed for each in found),
        "true_lesions_without_candidate": sum(each.missed for each in found),
        "average_precision": scores.average_precision,
        "froc": [
            {"false_alarms_per_case": alarms, "sensitivity": scores.sensitivity_at(alarms)}
            for alarms in (0.125, 0.25, 0.5, 1, 2, 4, 8)
        ],
        "reliability": [
            {"candidates": int(n), "mean_probability": p, "share_in_truth": share}
            for n, p, share in zip(curve.voxels, curve.confidence, curve.accuracy)
        ],
    }


def _worst_slice(
    segmentation: Segmentation,
    labels: NDArray[np.integer],
    truth: NDArray[np.integer],
    inside: NDArray[np.bool_],
) -> WorstSlice:
    """Return the slice with most wrong labels, cut to the foreground and its surroundings."""
    grid, geometry = segmentation.prediction.grid, segmentation.geometry
    plane = radiological_planes(geometry.affine)[0]
    index = int(plane.sum_slices(labels != truth).argmax())
    box = field_of_view((labels > 0) | (truth > 0), inside, geometry.spacing)
    grey = None
    if segmentation.image is not None:
        window = grey_window(segmentation.image[inside])
        grey = in_window(plane.cut(segmentation.image, index, box), window)
    bits = grid.scatter(segmentation.prediction.entropy_bits, 0)
    return WorstSlice(
        plane=plane,
        position_mm=plane.slice_mm(geometry.affine, index),
        spacing=geometry.spacing,
        grey=grey,
        labels=plane.cut(labels, index, box).astype(np.uint8),
        truth=plane.cut(truth, index, box).astype(np.uint8),
        entropy_bits=plane.cut(bits, index, box).astype(np.float32),
        label_names=segmentation.scheme.names,
        oriented=geometry.has_orientation,
    )


def _rater_rows(
    case: str, segmentation: Segmentation, raters: NDArray[np.uint8], regions: Regions
) -> list[Measurement]:
    """Score marginals by all raters together, and compare the spread of samples with theirs."""
    samples, prediction = segmentation.sampled_labels, segmentation.prediction
    grid = prediction.grid
    inside = np.ones(grid.shape, dtype=np.bool_) if grid.mask is None else grid.mask
    voxel_ml = math.prod(grid.spacing) / 1000.0
    labels = np.stack([grid.gather(each) for each in raters]).astype(np.int64)  # (R, N)
    values = {ALL: {"curvas_ece": curvas_ece(prediction.marginals, labels)}}
    for name, members in regions.items():
        rated, inside_share = np.isin(raters, members) & inside, prediction.share(members)
        share = grid.scatter(inside_share, 0)
        rated_ml = rated.reshape(len(rated), -1).sum(axis=1) * voxel_ml  # (R,)
        values[name] = {
            "curvas_crps_ml": curvas_crps(float(inside_share.sum()) * voxel_ml, rated_ml),
            "rater_correlation": rater_correlation(binary_entropy_percent(share) / 100, rated),
            "level_dice": level_dice(share, rated),
        }
        if samples is not None:
            drawn = np.isin(samples, members) & inside
            values[name] |= {
                "generalized_energy_distance_iou": generalized_energy_distance(drawn, rated),
                "matched_iou": matched_iou(drawn, rated),
                "best_dice": float(best_dice(drawn, rated).mean()),
            }
    return [
        Measurement(case, prediction.name, region, "image", metric, value, "all raters")
        for region, by_metric in values.items()
        for metric, value in by_metric.items()
    ]


def check_evaluation_folder(folder: Path) -> None:
    """Refuse a folder that contains a run, or files of the names to be written that are others'."""
    refuse_others(
        folder,
        {
            "metrics.csv": lambda path: first_row(path) == EVALUATION_COLUMNS,
            "summary.json": lambda path: _are_summaries(read_json(path)),
            "evaluation.html": lambda path: GENERATOR in path.read_text("utf-8")[:2000],
            "lesions.json": lambda path: read_json(path)["format"] == LESIONS_FORMAT,
        },
    )


def write_evaluation(folder: Path, title: str, assessments: Sequence[CaseAssessment]) -> list[Path]:
    """Write metrics.csv, summary.json and evaluation.html; the same measures give the same bytes.

    Where runs found lesions one by one, lesions.json scores them.
    The folder must be there, and pass ``check_evaluation_folder``.
    """
    check_evaluation_folder(folder)
    metrics, summary, page = files = [
        folder / name for name in ("metrics.csv", "summary.json", "evaluation.html")
    ]
    html = render_evaluation(title, assessments)
    rows = [row for each in assessments for row in each.rows]
    lines = [[getattr(row, name) for name in EVALUATION_COLUMNS] for row in rows]
    lesions = score_lesions(assessments)
    with write_set(folder / "lesions.json"):
        write_table(metrics, EVALUATION_COLUMNS, lines)
        write_json(summary, summarise(rows))
        write_text(page, html)
        if lesions is not None:
            files.append(folder / "lesions.json")
            write_json(files[-1], lesions)
    return files


def _are_summaries(content: object) -> bool:
    return isinstance(content, list) and all(
        isinstance(each, dict) and "metric" in each for each in content
    )


@dataclass(frozen=True)
class RegionTable:
    """The measures of one region: a row a measure, a column a truth, the network alone beside."""

    region: str
    columns: list[str]
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
    everywhere = reduce(Reliability.merge, (each.reliability for each in assessments))
    return (
        page_environment("perturb_mpm.assess")
        .get_template("evaluation.html")
        .render(
            title=title,
            generator=GENERATOR,
            cases=len({each.case for each in assessments}),
            outside=[each for each in assessments if each.truth_outside_mask],
            warnings=list(dict.fromkeys(words for each in assessments for words in each.warnings)),
            answer=answer_in_words(summaries, *_border_reliability(assessments)),
            evidence=_evidence_words(assessments),
            worse=_worse_than_network(assessments),
            border_mm=BORDER_MM,
            tables=_tables(summaries),
            reliability=reliability_chart(assessments),
            calibration_error=everywhere.expected_error,
            detection=detection_chart(assessments),
            slices=[error_slice(each) for each in assessments[:MOST_SLICES]],
            styles=label_styles(assessments[0].worst.label_names),
            colour_bar=colour_bar(
                EntropyScale("inferno", math.log2(len(assessments[0].worst.label_names)))
            ),
            left_out=max(0, len(assessments) - MOST_SLICES),
        )
    )


def answer_in_words(
    summaries: Sequence[MetricSummary],
    at_borders: Reliability | None = None,
    network: Reliability | None = None,
) -> str:
    """Return what a reader asks first, from the measures against the first truth.

    Most voxels lie far from any border, where everything is right: ``at_borders`` says how good
    probabilities are where it matters, of the run and of the network alone.
    """
    against = summaries[0].against if summaries else ""
    own = [each for each in summaries if each.against == against and each.method != NETWORK]
    words = [] if at_borders is None else _calibration_words(at_borders, network)
    words += [
        f"A wrong voxel is more uncertain than a right one in {100 * each.mean:.0f} % of pairs "
        "(area under ROC)."
        for each in own
        if (each.region, each.metric, each.domain) == (ALL, "auroc", "dilated")
        and not math.isnan(each.mean)
    ]
    covered = [e for e in own if (e.metric, e.domain) == ("volume_covered", "brain") and e.cases]
    if covered:
        inside = sum(each.mean * each.cases for each in covered)
        total = sum(each.cases for each in covered)
        words.append(
            f"The 95 % sample intervals contain {inside:.0f} of {total} true volumes of regions."
        )
    return " ".join(words)


def _evidence_words(assessments: Sequence[CaseAssessment]) -> str:
    """Return how much of the probabilities the images predict, "" where no run has asked."""
    found = [each.image_evidence for each in assessments if each.image_evidence is not None]
    shares = sorted({f"{100 * max(each, 0.0):.0f}" for each in found}, key=int)
    if not shares:
        return ""
    span = shares[0] if len(shares) == 1 else f"{shares[0]} to {shares[-1]}"
    return f"Voxels that look alike predict {span} % of what the probabilities say."


def _calibration_words(own: Reliability, network: Reliability | None) -> list[str]:
    """Return what a stated probability is worth near borders, first that of 90 %."""
    if not own.voxels.any():
        return []
    words = []
    if own.voxels[_NINETY]:
        beside = ""
        if network is not None and network.voxels[_NINETY]:
            beside = f" (network alone: {100 * network.accuracy[_NINETY]:.0f} %)"
        words.append(
            "Near borders, a label with 90 % probability is right in "
            f"{100 * own.accuracy[_NINETY]:.0f} % of voxels{beside}."
        )
    beside = ""
    if network is not None and network.voxels.any():
        beside = f" (network alone: {100 * network.expected_error:.1f})"
    words.append(
        f"Probabilities there are {100 * own.expected_error:.1f} percentage points off on "
        f"average{beside}."
    )
    return words


def _border_reliability(
    assessments: Sequence[CaseAssessment],
) -> tuple[Reliability, Reliability | None]:
    """Return how good probabilities are near borders, all cases pooled, and the network's."""
    networks = [each.network_at_borders for each in assessments]
    known = [each for each in networks if each is not None]
    own = reduce(Reliability.merge, (each.at_borders for each in assessments))
    return own, reduce(Reliability.merge, known) if len(known) == len(networks) else None


def _worse_than_network(
    assessments: Sequence[CaseAssessment],
) -> list[tuple[str, str, int, list[tuple[str, float, float]]]]:
    """Return measure, region, of how many cases, and the cases in which the network is better.

    Of each case there is the measure of the run and that of the network, the worst case first.
    Differences that the page's digits do not show are left out, and so is what is no number.
    """
    pairs: dict[tuple[str, str], dict[str, dict[bool, float]]] = {}
    for row in (row for each in assessments for row in each.rows):
        shown = SHOWN.get(row.metric)
        if row.metric in _LARGER_IS_BETTER and shown is not None and row.domain == shown[1]:
            cases = pairs.setdefault((row.metric, row.region), {})
            case = row.case if row.against == "truth" else f"{row.case}, {row.against}"
            cases.setdefault(case, {})[row.method == NETWORK] = row.value
    found = []
    for (metric, region), cases in pairs.items():
        sign = 1 if _LARGER_IS_BETTER[metric] else -1
        both = [(case, of[False], of[True]) for case, of in cases.items() if len(of) == 2]
        worse = [each for each in both if sign * (each[2] - each[1]) >= _SMALLEST_DIFFERENCE]
        worse.sort(key=lambda each: sign * (each[1] - each[2]))
        if both:
            found.append((SHOWN[metric][0], region, len(both), worse))
    return [each for each in found if each[3]]


def reliability_chart(assessments: Sequence[CaseAssessment]) -> LineChart:
    """Return how often the most probable label is right near borders, against its probability."""
    single = [each.at_borders for each in assessments] if len(assessments) > 1 else []
    own, network = _border_reliability(assessments)
    lines = [
        ChartLine([(0.0, 0.0), (100.0, 100.0)], faint=True),
        *(ChartLine(_reliability_points(each), faint=True) for each in single),
        ChartLine(_reliability_points(own), "measured", dots=True),
    ]
    if network is not None:
        lines.append(ChartLine(_reliability_points(network), NETWORK, DASHES[1]))
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
        replace(
            picture(error_overlay(wrong), worst.truth, f"{int(wrong.sum())} wrong voxels"),
            opaque=True,
        ),
        picture(
            entropy_overlay(worst.entropy_bits, scale),
            worst.labels,
            f"entropy up to {most:.2f} bits",
        ),
        worst.oriented,
    )


def _reliability_points(curve: Reliability) -> list[tuple[float, float]]:
    filled = curve.voxels > 0
    points = zip(100 * curve.confidence[filled], 100 * curve.accuracy[filled])
    return [(float(x), float(y)) for x, y in points]


def _tables(summaries: Sequence[MetricSummary]) -> list[RegionTable]:
    found = {(s.region, s.metric, s.method == NETWORK, s.against, s.domain): s for s in summaries}
    truths = list(dict.fromkeys(s.against for s in summaries))
    alone = NETWORK if len(truths) == 1 else f"{NETWORK}, {{}}"
    columns = {
        (is_alone, truth): name.format(truth)
        for truth in truths
        for is_alone, name in ((False, "{}"), (True, alone))
    }
    regions = list(dict.fromkeys(s.region for s in summaries))
    tables = []
    for region in sorted(regions, key=lambda name: name != ALL):
        rows = []
        for metric, (name, domain) in SHOWN.items():
            cells = [found.get((region, metric, *each, domain)) for each in columns]
            if any(cells):
                rows.append((name, cells))
        used = [any(cells[column] for _, cells in rows) for column in range(len(columns))]
        names = [name for name, shown in zip(columns.values(), used) if shown]
        rows = [(name, [c for c, shown in zip(cells, used) if shown]) for name, cells in rows]
        tables.append(RegionTable(region, names, rows))
    return tables
