"""Settings of ``run`` learned from labelled cases, and what they are worth on cases left out."""

from perturb_mpm.tune.cases import cases_of_model, cases_with_probabilities
from perturb_mpm.tune.scores import CaseScores, MapScore, VolumePrediction
from perturb_mpm.tune.summary import means, table_rows, write_scores
from perturb_mpm.tune.tuning import Tuned, TuningOptions, tune

__all__ = [
    "cases_of_model",
    "cases_with_probabilities",
    "CaseScores",
    "MapScore",
    "means",
    "table_rows",
    "tune",
    "Tuned",
    "TuningOptions",
    "VolumePrediction",
    "write_scores",
]
