"""All measures of one case against a truth, by region (a set of labels) and domain (of voxels).

Measured values are rows; their mean and spread over the cases of a cohort come last. A standard
deviation over cases, samples or raters divides by n − 1, here and in all other modules.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perturb_mpm import checks
from perturb_mpm.biomarkers import crps
from perturb_mpm.evaluation import reliability as calibration
from perturb_mpm.evaluation import structures
from perturb_mpm.evaluation.detection import (
    binary_entropy_percent,
    detection_curve,
    error_detection,
    error_overlap,
    filtered_curve,
    patch_counts,
)
from perturb_mpm.evaluation.masks import area_surface_dice, confusion, mask_pair, surface_distances
from perturb_mpm.evaluation.prediction import Prediction
from perturb_mpm.model import Grid
from perturb_mpm.posterior import Regions

Domain = Literal["brain", "union", "prediction", "truth", "dilated"]
Named = Iterator[tuple[str, str, float]]  # domain, metric, value

ALL = "all labels"
"""The region of measures that look at every label at once."""
DOMAINS: tuple[Domain, ...] = ("brain", "union", "dilated")
THRESHOLDS_BITS = (0.0, 0.1)
REPORTED_SPECIFICITIES = (0.8, 0.9, 0.95)
OUTSIDE_MASK = "truth_outside_mask_voxels"
"""The metric that counts the foreground voxels of a truth that lie outside the mask."""


@dataclass(frozen=True)
class Measurement:
    """One measured value; NaN where the measure is not defined for this case.

    Examples
    --------
    >>> from perturb_mpm.evaluation import Measurement
    >>> Measurement("P1", "votes", "core", "brain", "dice", 0.91).value
    0.91
    """

    case: str
    method: str
    region: str
    domain: str
    metric: str
    value: float
    against: str = "truth"


@dataclass(frozen=True)
class MetricSummary:
    """A metric over the cases of a cohort.

    Examples
    --------
    >>> from perturb_mpm.evaluation import Measurement, summarise
    >>> summarise([Measurement("P1", "votes", "core", "brain", "dice", 0.9)])[0].median
    0.9
    """

    method: str
    region: str
    domain: str
    metric: str
    mean: float
    sd: float
    """The standard deviation, which divides by n − 1; NaN for one case."""
    median: float
    cases: int
    undefined: int
    """Cases without a value, left out."""
    against: str = "truth"


def domain_mask(
    domain: Domain,
    prediction: ArrayLike,
    truth: ArrayLike,
    brain: ArrayLike,
    spacing: Sequence[float],
    margin_mm: float = 10.0,
) -> NDArray[np.bool_]:
    """Return the voxels a measure is taken over, all of them inside the brain.

    "brain": all; "prediction", "truth": the region's predicted or true voxels; "union": either;
    "dilated": all within ``margin_mm`` of the union. The masks have the image's shape.

    Examples
    --------
    >>> from perturb_mpm.evaluation import domain_mask
    >>> brain = np.ones(6, bool)
    >>> predicted, truth = np.array([[0, 1, 1, 0, 0, 0], [0, 0, 1, 1, 0, 0]], bool)
    >>> domain_mask("union", predicted, truth, brain, [1.0]).astype(int)
    array([0, 1, 1, 1, 0, 0])
    """
    checks.choice(domain, "domain", get_args(Domain))
    predicted, true = mask_pair(prediction, truth, ("prediction", "truth"))
    predicted, inside = mask_pair(predicted, brain, ("prediction", "brain"))
    if domain == "brain":
        return inside
    if domain == "prediction":
        return predicted & inside
    if domain == "truth":
        return true & inside
    union = (predicted | true) & inside
    if domain == "union":
        return union
    return _dilate(union, spacing, checks.number(margin_mm, "margin_mm", minimum=0)) & inside


def _dilate(mask: NDArray[np.bool_], spacing: Sequence[float], margin: float) -> NDArray[np.bool_]:
    from scipy.ndimage import distance_transform_edt

    step = checks.one_each(
        checks.positive_numbers(spacing, "spacing"), "spacing", mask.ndim, "axis"
    )
    if not mask.any():
        return mask
    return distance_transform_edt(~mask, sampling=step) <= margin


def default_regions(label_names: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Return one region a label but the background, and all of them together where several.

    Examples
    --------
    >>> from perturb_mpm.evaluation import default_regions
    >>> default_regions(["background", "core", "oedema"])
    {'core': (1,), 'oedema': (2,), 'foreground': (1, 2)}
    """
    regions: dict[str, tuple[int, ...]] = {
        name: (label,) for label, name in enumerate(label_names) if label > 0
    }
    if len(regions) > 1:
        regions.setdefault("foreground", tuple(range(1, len(label_names))))
    return regions


def check_regions(regions: Regions, n_labels: int) -> dict[str, tuple[int, ...]]:
    """Return the regions after checking that each is a set of foreground labels."""
    if not regions:
        raise ValueError("regions must name at least one set of labels, got none")
    for name, labels in regions.items():
        if not labels or len(set(labels)) < len(labels):
            raise ValueError(f"regions[{name!r}] must be different labels, got {labels}")
        for label in labels:
            checks.integer(label, f"regions[{name!r}]", minimum=1, maximum=n_labels - 1)
    return {name: tuple(labels) for name, labels in regions.items()}


def truth_in_mask(prediction: Prediction, truth: ArrayLike) -> NDArray[np.int64]:
    """Return a truth (*spatial), label indices 0 … L − 1, as background outside the mask.

    Examples
    --------
    >>> from perturb_mpm.evaluation import from_marginals, truth_in_mask
    >>> prediction = from_marginals([[0.8, 0.4], [0.2, 0.6]], spacing=[1.0], mask=[1, 0])
    >>> truth_in_mask(prediction, np.array([1, 1]))
    array([1, 0])
    """
    grid = prediction.grid
    true = checks.whole(truth, "truth")
    if true.shape != grid.shape:
        raise ValueError(f"truth must have the prediction's shape {grid.shape}, got {true.shape}")
    checks.in_range(true, "truth", prediction.n_labels)
    return true if grid.mask is None else np.where(grid.mask, true, 0)


@dataclass(frozen=True)
class _Choices:
    """Which voxels count, and where sensitivity is given."""

    domains: tuple[Domain, ...]
    margin_mm: float
    thresholds_bits: tuple[float, ...]
    specificities: tuple[float, ...]

    def find_voxels(
        self, grid: Grid, predicted: NDArray[np.bool_], true: NDArray[np.bool_]
    ) -> dict[Domain, NDArray[np.bool_]]:
        """Return the voxels of each domain, (N,), of two masks (*spatial)."""
        brain, step, margin = _brain(grid), grid.spacing, self.margin_mm
        return {
            each: grid.gather(domain_mask(each, predicted, true, brain, step, margin))
            for each in self.domains
        }


@dataclass(frozen=True, eq=False)
class _Region:
    """One region of one case, as images and inside the mask."""

    predicted: NDArray[np.bool_]  # (*spatial)
    true: NDArray[np.bool_]  # (*spatial)
    share: NDArray[np.float64]  # (N,) of samples, or the marginal
    bits: NDArray[np.float64]  # (N,) binary entropy of the share


def evaluate_case(
    prediction: Prediction,
    truth: ArrayLike,
    regions: Regions,
    *,
    case: str = "case",
    domains: Sequence[Domain] = DOMAINS,
    thresholds_bits: Sequence[float] = THRESHOLDS_BITS,
    specificities: Sequence[float] = REPORTED_SPECIFICITIES,
    margin_mm: float = 10.0,
) -> list[Measurement]:
    """Measure a prediction against a truth (*spatial), label indices 0 … L − 1.

    Sensitivities are given above each of ``thresholds_bits`` and at each of ``specificities``.

    Measures of a region are of its binary question (in or out) and the entropy of that, so that two
    tumour labels which compete do not count as uncertainty of the whole tumour. Those of all labels
    use the entropy over labels. Nothing outside the prediction's mask counts, the truth neither:
    where there is a mask, ``truth_outside_mask_voxels`` says how much of it that is.

    Examples
    --------
    >>> from perturb_mpm.evaluation import evaluate_case, from_samples
    >>> truth = np.zeros((6, 6, 4), int)
    >>> truth[1:5, 1:5, 1:3] = 1
    >>> samples = [truth, np.roll(truth, 1, axis=0), truth]
    >>> prediction = from_samples(samples, n_labels=2, spacing=(1.0, 1.0, 2.0))
    >>> rows = evaluate_case(prediction, truth, {"lesion": (1,)})
    >>> next(row.value for row in rows if row.metric == "dice")
    1.0
    """
    true = truth_in_mask(prediction, truth)
    named = check_regions(regions, prediction.n_labels)
    outside = int(np.count_nonzero(truth) - np.count_nonzero(true))
    choices = _Choices(tuple(domains), margin_mm, tuple(thresholds_bits), tuple(specificities))
    return [
        Measurement(case, prediction.name, region, domain, metric, float(value))
        for region, values in _measure(prediction, true, outside, named, choices)
        for domain, metric, value in values
    ]


def _measure(
    prediction: Prediction,
    true: NDArray[np.int64],
    outside: int,
    regions: Regions,
    choices: _Choices,
) -> Iterator[tuple[str, Named]]:
    """Yield the measures of all labels, then those of each region."""
    grid = prediction.grid
    labels = grid.scatter(prediction.labels, 0)
    if grid.mask is not None:
        yield ALL, iter([("image", OUTSIDE_MASK, outside)])
    around = choices.find_voxels(grid, labels > 0, true > 0)
    yield ALL, _all_labels(prediction, grid.gather(true), around, choices)
    yield ALL, _patches(prediction, labels == true, _brain(grid))
    for name, members in regions.items():
        share = prediction.share(members)
        region = _Region(
            np.isin(labels, members),
            np.isin(true, members),
            share,
            binary_entropy_percent(share) / 100.0,
        )
        yield name, _overlap(region, grid.spacing)
        yield name, _volumes(prediction, region, members)
        yield name, _filtering(prediction, region)
        yield name, _region_errors(region, grid, choices)


def _region_errors(region: _Region, grid: Grid, choices: _Choices) -> Named:
    wrong, happened = grid.gather(region.predicted != region.true), grid.gather(region.true)
    for domain, here in choices.find_voxels(grid, region.predicted, region.true).items():
        yield from _detection(domain, region.bits[here], wrong[here], 1.0, choices)
        curve = calibration.reliability(
            region.share[here], happened[here], calibration.FOREGROUND_BINS
        )
        yield domain, "ece_region", curve.expected_error


def _all_labels(
    prediction: Prediction,
    truth: NDArray[np.int64],
    around: dict[Domain, NDArray[np.bool_]],
    choices: _Choices,
) -> Named:
    most = math.log2(prediction.n_labels)
    for domain, where in around.items():
        wrong = (prediction.labels != truth)[where]
        yield from _detection(domain, prediction.entropy_bits[where], wrong, most, choices)
        marginals, true = prediction.marginals[:, where], truth[where]
        top = calibration.top_label(marginals, true)
        yield domain, "ece_top_label", top.expected_error
        yield domain, "ace_top_label", top.average_error
        yield domain, "mce_top_label", top.largest_error
        yield domain, "ece_foreground", calibration.foreground(marginals, true).expected_error
        classes = [each.expected_error for each in calibration.class_wise(marginals, true)]
        yield domain, "ece_class_wise", float(np.mean(classes))
        likelihood = calibration.negative_log_likelihood(marginals, true, prediction.samples)
        yield domain, "negative_log_likelihood_nats", likelihood
        yield domain, "brier", calibration.brier(marginals, true)


def _brain(grid: Grid) -> NDArray[np.bool_]:
    return np.ones(grid.shape, dtype=np.bool_) if grid.mask is None else grid.mask


def _patches(prediction: Prediction, correct: NDArray[np.bool_], brain: NDArray[np.bool_]) -> Named:
    entropy = prediction.grid.scatter(prediction.entropy_bits, 0)
    counts = patch_counts(entropy, correct, brain, threshold=0.1)
    yield "brain", "pavpu", counts.pavpu
    yield "brain", "patch_accurate_given_certain", counts.accurate_given_certain
    yield "brain", "patch_uncertain_given_inaccurate", counts.uncertain_given_inaccurate


def _overlap(region: _Region, spacing: Sequence[float]) -> Named:
    counts = confusion(region.predicted, region.true)
    yield "brain", "dice", counts.dice
    yield "brain", "iou", counts.iou
    surfaces = surface_distances(region.predicted, region.true, spacing)
    yield "brain", "hausdorff_mm", surfaces.hausdorff
    yield "brain", "hausdorff95_mm", surfaces.hausdorff95
    yield "brain", "hausdorff95_pooled_mm", surfaces.hausdorff95_pooled
    yield "brain", "average_surface_distance_mm", surfaces.average
    yield "brain", "surface_dice_2mm", surfaces.dice(2.0)
    if region.true.ndim == 3:
        area = area_surface_dice(region.predicted, region.true, spacing, 2.0)
        yield "brain", "area_surface_dice_2mm", area


def _volumes(prediction: Prediction, region: _Region, members: Sequence[int]) -> Named:
    voxel_ml = math.prod(prediction.grid.spacing) / 1000.0
    true_ml = float(np.count_nonzero(region.true)) * voxel_ml
    inside = prediction.grid.gather(region.predicted)
    yield "brain", "volume_true_ml", true_ml
    yield "brain", "volume_ml", float(np.count_nonzero(region.predicted)) * voxel_ml
    entropy = prediction.entropy_bits[inside]
    yield "prediction", "mean_entropy_bits", float(entropy.mean()) if len(entropy) else math.nan
    if prediction.samples is not None and prediction.samples > 1:
        votes = np.rint(region.share * prediction.samples)
        yield "brain", "pairwise_dice", structures.pairwise_dice(votes, prediction.samples)
    sampled = prediction.region_volumes_ml(members)
    if sampled is None:
        return
    lower, median, upper = np.quantile(sampled, [0.025, 0.5, 0.975])
    yield "brain", "volume_median_ml", float(median)
    yield "brain", "volume_interval_width_ml", float(upper - lower)
    yield "brain", "volume_covered", float(lower <= true_ml <= upper)
    yield "brain", "volume_crps_ml", crps(sampled, true_ml)
    if len(sampled) > 1:
        yield "brain", "volume_cv", structures.volume_variation(sampled)


def _filtering(prediction: Prediction, region: _Region) -> Named:
    gather = prediction.grid.gather
    curve = filtered_curve(gather(region.predicted), gather(region.true), 100 * region.bits)
    yield "brain", "qu_brats_dice_area", curve.dice_area
    yield "brain", "qu_brats_ftp_area", curve.true_positive_area
    yield "brain", "qu_brats_ftn_area", curve.true_negative_area
    yield "brain", "qu_brats_score", curve.score


def _detection(
    domain: str,
    bits: NDArray[np.float64],
    wrong: NDArray[np.bool_],
    most_bits: float,
    choices: _Choices,
) -> Named:
    for threshold in choices.thresholds_bits:
        counts = error_detection(bits, wrong, threshold)
        yield domain, f"sensitivity_above_{threshold:g}_bits", counts.sensitivity
        yield domain, f"specificity_above_{threshold:g}_bits", counts.specificity
    curve = detection_curve(bits, wrong)
    for specificity in choices.specificities:
        found = curve.sensitivity_at(specificity)
        yield domain, f"sensitivity_at_{specificity:g}_specificity", found
    yield domain, "auroc", curve.auroc
    yield domain, "auprc", curve.average_precision
    yield domain, "error_prevalence", curve.prevalence
    overlap = error_overlap(np.clip(bits / most_bits, 0, 1), wrong)
    yield domain, "error_overlap_best", overlap.best
    yield domain, "error_overlap_threshold", overlap.best_threshold


def summarise(rows: Iterable[Measurement]) -> list[MetricSummary]:
    """Return mean, sd and median of every metric over cases, in the order they first appear.

    Examples
    --------
    >>> from perturb_mpm.evaluation import Measurement, summarise
    >>> rows = [Measurement(f"P{n}", "votes", "core", "brain", "dice", n / 10) for n in (7, 8, 9)]
    >>> summary = summarise(rows)[0]
    >>> round(summary.mean, 2), summary.cases
    (0.8, 3)
    """
    groups: dict[tuple[str, str, str, str, str], list[float]] = defaultdict(list)
    for row in rows:
        groups[row.method, row.region, row.domain, row.metric, row.against].append(row.value)
    summaries = []
    for key, values in groups.items():
        array = np.array(values)
        defined = array[np.isfinite(array)]
        n = len(defined)
        mean, median = (float(f(defined)) if n else math.nan for f in (np.mean, np.median))
        sd = float(defined.std(ddof=1)) if n > 1 else math.nan
        undefined = len(array) - n
        summaries.append(MetricSummary(*key[:4], mean, sd, median, n, undefined, key[4]))
    return summaries
