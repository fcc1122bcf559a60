"""Settings of ``run`` learned from labelled cases, and what they are worth on cases left out."""

from perturb_mpm.tune.cases import cases_of_cohort, cases_of_model, cases_with_probabilities
from perturb_mpm.tune.problem import NEAR_MM, LabelledProblem
from perturb_mpm.tune.scores import (
    CaseScores,
    MapScore,
    VolumePrediction,
    score_maps,
    score_volumes,
    widenings,
)
from perturb_mpm.tune.summary import METHODS, maps_table, means, volumes_table, write_scores
from perturb_mpm.tune.tuning import Tuned, TuningOptions, tune

__all__ = [
    "cases_of_cohort",
    "cases_of_model",
    "cases_with_probabilities",
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
    "widenings",
    "write_scores",
]
