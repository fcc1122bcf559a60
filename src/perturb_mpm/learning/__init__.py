"""Learning the parameters of a CRF from labelled cases.

They are learned by gradients through the mean-field iterations (Krähenbühl & Koltun 2013).
"""

from perturb_mpm.learning.learner import ALL_PHASES, Learned, Step, filter_maker, learn, learn_from
from perturb_mpm.learning.objectives import ObjectiveName, hard_iou
from perturb_mpm.learning.parameters import KernelChange, Parameters, Phase
from perturb_mpm.learning.problem import Problem, make_problem

__all__ = [
    "ALL_PHASES",
    "filter_maker",
    "hard_iou",
    "KernelChange",
    "learn",
    "learn_from",
    "Learned",
    "make_problem",
    "ObjectiveName",
    "Parameters",
    "Phase",
    "Problem",
    "Step",
]
