"""What is measured of each case, and what is kept of it for pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.assess.sources import (
    Entry,
    Segmentation,
    read_labels,
    read_segmentation,
    regions_of,
)
from perturb_mpm.evaluation import (
    ALL,
    DOMAINS,
    Domain,
    Regions,
    Row,
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
)
from perturb_mpm.evaluation import reliability as calibration
from perturb_mpm.files import InputError, LabelScheme, Source

SPECIFICITIES = np.linspace(0, 1, 101)


@dataclass(frozen=True, eq=False)
class Measured:
    """The numbers of one case against one truth, and the curves and slices a page shows."""

    case: str
    against: str
    rows: list[Row]
    reliability: calibration.Reliability
    """Top-label, around the union of predicted and true foreground."""
    sensitivity: dict[str, NDArray[np.float64]]  # region -> (101,) at the specificities 0 … 1
    error: NDArray[np.bool_]  # (X, Y) of one slice
    entropy_bits: NDArray[np.float64]  # (X, Y) of the same slice
    most_bits: float
    slice_number: int


def measure_entry(
    entry: Entry,
    scheme: LabelScheme | None,
    region_words: Sequence[str],
    domains: Sequence[Domain] = DOMAINS,
) -> list[Measured]:
    """Measure one case against its truth, and against each rater."""
    segmentation = read_segmentation(entry.prediction, scheme, entry.mask)
    regions: Regions = regions_of(region_words, segmentation.scheme) or default_regions(
        segmentation.scheme.names
    )
    truths: dict[str, NDArray[np.uint8]] = {}
    if entry.truth is not None:
        truths["truth"] = read_labels(Source("--truth", entry.truth), segmentation)
    raters = [read_labels(Source("--rater", path), segmentation) for path in entry.raters]
    truths |= {f"rater {number}": labels for number, labels in enumerate(raters, start=1)}
    if not truths:
        raise InputError(f"case {entry.case} must have a truth or a rater to be compared with")
    measured = [
        measure(entry.case, segmentation, labels, regions, against, domains)
        for against, labels in truths.items()
    ]
    if raters and segmentation.sampled_labels is not None:
        measured[0].rows.extend(_rater_rows(entry.case, segmentation, np.stack(raters), regions))
    return measured


def measure(
    case: str,
    segmentation: Segmentation,
    truth: NDArray[np.uint8],
    regions: Regions,
    against: str = "truth",
    domains: Sequence[Domain] = DOMAINS,
) -> Measured:
    """Measure one segmentation against one label map (X, Y, Z) of label indices."""
    prediction = segmentation.prediction
    grid = prediction.grid
    rows = [
        replace(row, against=against)
        for row in evaluate_case(prediction, truth, regions, case=case, domains=domains)
    ]
    labels = grid.scatter(prediction.labels, 0)
    brain = np.ones(grid.shape, dtype=np.bool_) if grid.mask is None else grid.mask
    around = grid.gather(domain_mask("dilated", labels > 0, truth > 0, brain, grid.spacing))
    wrong = labels != truth
    entropy = grid.scatter(prediction.entropy_bits, 0)
    worst = int((wrong & brain).sum(axis=(0, 1)).argmax())
    curves = {}
    for name, members in {ALL: (), **regions}.items():
        u = prediction.entropy_bits
        error = grid.gather(wrong)
        if members:
            u = binary_entropy_percent(prediction.share(members)) / 100
            error = grid.gather(np.isin(labels, members) != np.isin(truth, members))
        curve = detection_curve(u[around], error[around])
        curves[name] = np.array([curve.sensitivity_at(float(s)) for s in SPECIFICITIES])
    return Measured(
        case,
        against,
        rows,
        calibration.top_label(
            prediction.marginals[:, around], grid.gather(truth).astype(np.int64)[around]
        ),
        curves,
        wrong[:, :, worst],
        entropy[:, :, worst],
        float(np.log2(prediction.n_labels)),
        worst,
    )


def _rater_rows(
    case: str, segmentation: Segmentation, raters: NDArray[np.uint8], regions: Regions
) -> list[Row]:
    """Compare the spread of samples with that of raters, region by region."""
    samples = segmentation.sampled_labels
    if samples is None:
        return []
    prediction = segmentation.prediction
    rows = []
    for name, members in regions.items():
        drawn, rated = np.isin(samples, members), np.isin(raters, members)
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
            Row(case, prediction.name, name, "image", metric, value, "all raters")
            for metric, value in values.items()
        ]
    return rows
