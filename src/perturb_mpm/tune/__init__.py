"""Settings of ``run`` learned from labelled cases, and what they are worth on cases left out."""

from perturb_mpm.tune.cases import (
    TunedPairs,
    classify_cases,
    learn_correlation,
    read_cohort_cases,
    read_labelled_cases,
    write_pairs,
)
from perturb_mpm.tune.coupling import Candidate, find_candidates
from perturb_mpm.tune.intervals import predict_baselines
from perturb_mpm.tune.problem import (
    ALONE,
    FIXED,
    GRID,
    LEARNED,
    METHODS,
    NEAR_MM,
    RESIDUAL,
    SAMPLED,
    TEMPERED,
    CaseScores,
    LabelledProblem,
    MapScore,
    PredictedMeasure,
    nan_mean,
    score_maps,
    score_volumes,
)
from perturb_mpm.tune.study import Folds, Study, TuningOptions, prepare_study
from perturb_mpm.tune.summary import Tuned, intervals_table, maps_table, means, write_scores
from perturb_mpm.tune.tuning import learn, learn_settings, tune

__all__ = [
    "ALONE",
    "Candidate",
    "CaseScores",
    "classify_cases",
    "find_candidates",
    "FIXED",
    "Folds",
    "GRID",
    "intervals_table",
    "LabelledProblem",
    "learn",
    "LEARNED",
    "learn_correlation",
    "learn_settings",
    "maps_table",
    "MapScore",
    "means",
    "METHODS",
    "nan_mean",
    "NEAR_MM",
    "predict_baselines",
    "PredictedMeasure",
    "prepare_study",
    "read_cohort_cases",
    "read_labelled_cases",
    "RESIDUAL",
    "SAMPLED",
    "score_maps",
    "score_volumes",
    "Study",
    "TEMPERED",
    "tune",
    "Tuned",
    "TunedPairs",
    "TuningOptions",
    "write_pairs",
    "write_scores",
]
