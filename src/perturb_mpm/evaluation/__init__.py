"""Is the uncertainty any good? Measures of any posterior, or of samples from elsewhere."""

from __future__ import annotations

from perturb_mpm.evaluation.case import (
    DOMAINS,
    OUTSIDE_MASK,
    REPORTED_SPECIFICITIES,
    Domain,
    default_regions,
    domain_mask,
    evaluate_case,
    truth_in_mask,
)
from perturb_mpm.evaluation.detection import (
    auroc,
    binary_entropy_percent,
    detection_curve,
    error_detection,
    error_overlap,
    filtered_curve,
    patch_counts,
)
from perturb_mpm.evaluation.measurements import ALL, Measurement, MetricSummary, summarise
from perturb_mpm.evaluation.overlap import confusion, dice, expected_dice, region_dice
from perturb_mpm.evaluation.prediction import (
    Prediction,
    from_marginals,
    from_posterior,
    from_samples,
)
from perturb_mpm.evaluation.raters import (
    best_dice,
    generalized_energy_distance,
    level_dice,
    matched_iou,
    pairwise_overlap,
    rater_correlation,
)
from perturb_mpm.evaluation.reliability import (
    Reliability,
    brier,
    class_wise,
    foreground,
    negative_log_likelihood,
    top_label,
)
from perturb_mpm.evaluation.structures import (
    image_uncertainty,
    lesions,
    pairwise_dice,
    risk_coverage,
    volume_variation,
)
from perturb_mpm.evaluation.surfaces import (
    SurfaceDistances,
    area_surface_dice,
    surface_distances,
)
from perturb_mpm.posterior import Regions

__all__ = [
    "Prediction",
    "from_posterior",
    "from_samples",
    "from_marginals",
    "evaluate_case",
    "Measurement",
    "MetricSummary",
    "summarise",
    "default_regions",
    "confusion",
    "dice",
    "expected_dice",
    "region_dice",
    "area_surface_dice",
    "surface_distances",
    "SurfaceDistances",
    "error_detection",
    "detection_curve",
    "auroc",
    "error_overlap",
    "filtered_curve",
    "binary_entropy_percent",
    "patch_counts",
    "generalized_energy_distance",
    "matched_iou",
    "best_dice",
    "rater_correlation",
    "level_dice",
    "volume_variation",
    "pairwise_dice",
    "lesions",
    "image_uncertainty",
    "risk_coverage",
    "DOMAINS",
    "Domain",
    "Regions",
    "domain_mask",
    "pairwise_overlap",
    "Reliability",
    "negative_log_likelihood",
    "brier",
    "class_wise",
    "foreground",
    "top_label",
    "ALL",
    "OUTSIDE_MASK",
    "REPORTED_SPECIFICITIES",
    "truth_in_mask",
]
