"""The measures of each case, and the curves and slices that its page shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.assess.sources import (
    Segmentation,
    read_labels,
    read_segmentation,
)
from perturb_mpm.evaluation import (
    ALL,
    DOMAINS,
    REPORTED_SPECIFICITIES,
    Domain,
    Measurement,
    Prediction,
    Regions,
    Reliability,
    best_dice,
    binary_entropy_percent,
    default_regions,
    detection_curve,
    domain_mask,
    evaluate_case,
    generalized_energy_distance,
    level_dice,
    matched_iou,
    rater_correlation,
    top_label,
    truth_in_mask,
)
from perturb_mpm.files import CaseFiles, InputError, LabelScheme, Source, regions_from_text
from perturb_mpm.posterior import MarginalKind, decide_labels

if TYPE_CHECKING:
    from perturb_mpm.report import Plane

SPECIFICITIES = np.linspace(0, 1, 101)


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
    domains: Sequence[Domain] = DOMAINS,
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
        assess(files.name, segmentation, labels, regions, against, domains, specificities)
        for against, labels in truths.items()
    ]
    if raters and segmentation.sampled_labels is not None:
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
        labels = decide_labels(scores, regions)
    except ValueError:
        return prediction
    return replace(prediction, labels=labels.astype(np.int64))


def assess(
    case: str,
    segmentation: Segmentation,
    truth: NDArray[np.uint8],
    regions: Regions,
    against: str = "truth",
    domains: Sequence[Domain] = DOMAINS,
    specificities: Sequence[float] = REPORTED_SPECIFICITIES,
) -> CaseAssessment:
    """Measure one segmentation against one label map (X, Y, Z) of label indices."""
    prediction = segmentation.prediction
    grid = prediction.grid
    rows = [
        replace(row, against=against)
        for row in evaluate_case(
            prediction, truth, regions, case=case, domains=domains, specificities=specificities
        )
    ]
    true = truth_in_mask(prediction, truth)
    labels = grid.scatter(prediction.labels, 0)
    inside = np.ones(grid.shape, dtype=np.bool_) if grid.mask is None else grid.mask
    around = grid.gather(domain_mask("dilated", labels > 0, true > 0, inside, grid.spacing))
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
    )


def _worst_slice(
    segmentation: Segmentation,
    labels: NDArray[np.integer],
    truth: NDArray[np.integer],
    inside: NDArray[np.bool_],
) -> WorstSlice:
    """Return the slice with most wrong labels, cut to the foreground and its surroundings."""
    from perturb_mpm.report import (
        field_of_view,
        grey_window,
        in_window,
        radiological_planes,
        to_mm,
    )

    grid, geometry = segmentation.prediction.grid, segmentation.geometry
    plane = radiological_planes(geometry.affine)[0]
    others = tuple(axis for axis in range(3) if axis != plane.across)
    index = int((labels != truth).sum(axis=others).argmax())
    box = field_of_view((labels > 0) | (truth > 0), inside, geometry.spacing)
    grey = None
    if segmentation.image is not None:
        window = grey_window(segmentation.image[inside])
        grey = in_window(plane.cut(segmentation.image, index, box), window)
    voxel = [0, 0, 0]
    voxel[plane.across] = index
    bits = grid.scatter(segmentation.prediction.entropy_bits, 0)
    return WorstSlice(
        plane=plane,
        position_mm=to_mm(geometry.affine, (voxel[0], voxel[1], voxel[2]))[plane.looks_along],
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
    """Compare the spread of samples with that of raters, region by region."""
    samples = segmentation.sampled_labels
    if samples is None:
        return []
    prediction = segmentation.prediction
    inside = prediction.grid.mask
    rows = []
    for name, members in regions.items():
        drawn, rated = np.isin(samples, members), np.isin(raters, members)
        if inside is not None:
            drawn, rated = drawn & inside, rated & inside
        share = prediction.grid.scatter(prediction.share(members), 0)
        bits = binary_entropy_percent(share) / 100
        values = {
            "generalized_energy_distance_iou": generalized_energy_distance(drawn, rated),
            "matched_iou": matched_iou(drawn, rated),
            "best_dice": float(best_dice(drawn, rated).mean()),
            "rater_correlation": rater_correlation(bits, rated),
            "level_dice": level_dice(share, rated),
        }
        rows += [
            Measurement(case, prediction.name, name, "image", metric, value, "all raters")
            for metric, value in values.items()
        ]
    return rows
