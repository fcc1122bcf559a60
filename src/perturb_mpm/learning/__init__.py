"""Learning the parameters of a CRF, and of the random fields beside its noise, from labelled cases.

The CRF is learned by gradients through its mean-field iterations (Krähenbühl & Koltun 2013), the
fields by scores of the volumes they predict.
"""

from perturb_mpm.learning.fields import (
    NO_FIELDS,
    FieldScore,
    FieldSetting,
    LearnedFields,
    Regions,
    best_setting,
    draw_votes,
    interval,
    learn_fields,
    log_volume,
    score_votes,
)
from perturb_mpm.learning.learner import ALL_PHASES, Learned, Step, filter_maker, learn, learn_from
from perturb_mpm.learning.objectives import ObjectiveName, hard_iou
from perturb_mpm.learning.parameters import KernelChange, Parameters, Phase
from perturb_mpm.learning.problem import Problem, make_problem

__all__ = [
    "ALL_PHASES",
    "best_setting",
    "draw_votes",
    "FieldScore",
    "FieldSetting",
    "filter_maker",
    "hard_iou",
    "interval",
    "KernelChange",
    "learn",
    "learn_fields",
    "learn_from",
    "Learned",
    "LearnedFields",
    "log_volume",
    "make_problem",
    "NO_FIELDS",
    "ObjectiveName",
    "Parameters",
    "Phase",
    "Problem",
    "Regions",
    "score_votes",
    "Step",
]
