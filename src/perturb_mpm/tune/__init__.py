"""Settings of ``run`` learned from labelled cases, and what they are worth on cases left out."""

from perturb_mpm.tune.cases import classify_cases, read_cohort_cases, read_labelled_cases
from perturb_mpm.tune.problem import (
    METHODS,
    NEAR_MM,
    CaseScores,
    LabelledProblem,
    MapScore,
    VolumePrediction,
    score_maps,
    score_volumes,
)
from perturb_mpm.tune.study import TuningOptions
from perturb_mpm.tune.summary import Tuned, maps_table, means, volumes_table, write_scores
from perturb_mpm.tune.tuning import tune

__all__ = [
    "read_cohort_cases",
    "classify_cases",
    "read_labelled_cases",
    "CaseScores",
    "LabelledProblem",
    "MapScore",
    "maps_table",
    "means",
    "METHODS",
    "NEAR_MM",
    "score_maps",
    "score_volumes",
    "tune",
    "Tuned",
    "TuningOptions",
    "VolumePrediction",
    "volumes_table",
    "write_scores",
]
