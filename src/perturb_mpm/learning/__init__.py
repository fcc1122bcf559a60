"""Learning the parameters of a CRF, from labelled cases or from image and grid alone.

Labelled cases teach by gradients through the mean-field iterations (Krähenbühl & Koltun 2013).
"""

from perturb_mpm.learning.evidence import (
    SKILL,
    ImageEvidence,
    Unfamiliar,
    ask_image_and_grid,
    case_properties,
    familiar_ranges,
    find_unfamiliar,
    grid_temperature,
    image_evidence,
    spare_soft_borders,
)
from perturb_mpm.learning.learner import Learned, filter_maker, learn, learn_from
from perturb_mpm.learning.objectives import ObjectiveName
from perturb_mpm.learning.unrolled import Phase, Problem, make_problem

__all__ = [
    "ask_image_and_grid",
    "case_properties",
    "familiar_ranges",
    "find_unfamiliar",
    "filter_maker",
    "grid_temperature",
    "image_evidence",
    "ImageEvidence",
    "learn",
    "learn_from",
    "Learned",
    "make_problem",
    "ObjectiveName",
    "Phase",
    "Problem",
    "SKILL",
    "spare_soft_borders",
    "Unfamiliar",
]
