"""The paper's two clinical experiments, on made-up and on real patients, and real raters."""

from lab.clinical.biomarkers import BiomarkerResults, OperatedPatient, measure_biomarkers
from lab.clinical.quality import Quality, measure_quality
from lab.clinical.raters import RaterRow, compare_raters

__all__ = [
    "BiomarkerResults",
    "OperatedPatient",
    "Quality",
    "RaterRow",
    "compare_raters",
    "measure_biomarkers",
    "measure_quality",
]
