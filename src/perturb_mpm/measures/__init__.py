"""Whatever one would measure on a truth, measured on every sample: its spread is its uncertainty.

A ``Measure`` is a function of one ``Structure`` of one sampled label map; ``Measurer`` takes
samples as they are drawn, and ``Measurements`` are the numbers of all of them.
"""

from perturb_mpm.measures.lesions import (
    COVERED,
    LEAST_ML,
    LEAST_SHARE,
    LesionCandidates,
    LesionFinder,
    Lesions,
    SampledLesion,
)
from perturb_mpm.measures.measure import (
    DEFAULT_MEASURES,
    MEASURES,
    Compute,
    Measure,
    define_measure,
    find_measures,
)
from perturb_mpm.measures.measurements import (
    OWN_ERRORS,
    Column,
    CubeLaw,
    Extremes,
    Measurements,
    Measurer,
    MeasureRow,
    Priority,
    PriorityFinder,
    PriorityPatch,
    Rule,
    greedy_order,
)
from perturb_mpm.measures.structure import LabelMap, MeasuredPatient, Structure

__all__ = [
    "define_measure",
    "Measure",
    "find_measures",
    "MEASURES",
    "DEFAULT_MEASURES",
    "Compute",
    "Structure",
    "LabelMap",
    "MeasuredPatient",
    "Measurer",
    "Measurements",
    "Column",
    "Rule",
    "MeasureRow",
    "Extremes",
    "SampledLesion",
    "Lesions",
    "LesionCandidates",
    "LesionFinder",
    "COVERED",
    "LEAST_ML",
    "LEAST_SHARE",
    "CubeLaw",
    "OWN_ERRORS",
    "Priority",
    "PriorityFinder",
    "PriorityPatch",
    "greedy_order",
]
