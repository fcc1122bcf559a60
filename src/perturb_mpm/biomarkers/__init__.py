"""Extent of resection, residual tumour volume, and the statistics that go with them."""

from __future__ import annotations

from perturb_mpm.biomarkers.change import (
    CHANGE_CLASSES,
    RANO_PRODUCT,
    RANO_VOLUME,
    ResponseLimits,
    SampledChange,
    ScanCorrelation,
    fit_correlation,
    sampled_change,
)
from perturb_mpm.biomarkers.intervals import (
    OFFSET_ML,
    ConformalWidening,
    LearnedLaw,
    MeasureScale,
    conformal_widening,
    coverage,
    crps,
    fit_law,
    from_scale,
    to_scale,
)
from perturb_mpm.biomarkers.resection import (
    KARSCHNIA_2021,
    RANO_RESECT,
    ResectionClass,
    SampledBiomarker,
    class_probabilities,
    classify,
    distribution,
    extent_of_resection,
    paired_samples,
    region_volume_ml,
)
from perturb_mpm.biomarkers.signed_rank import bonferroni, hodges_lehmann, holm, wilcoxon_exact

__all__ = [
    "OFFSET_ML",
    "fit_correlation",
    "sampled_change",
    "ScanCorrelation",
    "SampledChange",
    "ResponseLimits",
    "RANO_VOLUME",
    "RANO_PRODUCT",
    "CHANGE_CLASSES",
    "extent_of_resection",
    "region_volume_ml",
    "paired_samples",
    "distribution",
    "ResectionClass",
    "RANO_RESECT",
    "KARSCHNIA_2021",
    "classify",
    "class_probabilities",
    "crps",
    "coverage",
    "conformal_widening",
    "wilcoxon_exact",
    "hodges_lehmann",
    "bonferroni",
    "holm",
    "ConformalWidening",
    "fit_law",
    "from_scale",
    "LearnedLaw",
    "MeasureScale",
    "to_scale",
    "SampledBiomarker",
]
