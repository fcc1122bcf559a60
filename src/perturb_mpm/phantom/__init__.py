"""Patients with a glioblastoma, made from a seed: images whose truth is known.

They stand on the MNI152 tissue maps; ``data/NOTICE.md`` holds their copyright notice.
"""

from __future__ import annotations

from perturb_mpm.phantom.classifier import LABEL_NAMES, POSTOPERATIVE_LABEL_NAMES
from perturb_mpm.phantom.cohorts import ResectionPair, cohort, preoperative_cohort, resection_cohort
from perturb_mpm.phantom.patient import Phantom, glioblastoma, resected
from perturb_mpm.phantom.raters import RATERS, Rater, raters
from perturb_mpm.phantom.scanner import CHANNEL_NAMES
from perturb_mpm.phantom.space import FIELD_OF_VIEW_MM

__all__ = [
    "glioblastoma",
    "resected",
    "raters",
    "cohort",
    "preoperative_cohort",
    "resection_cohort",
    "Phantom",
    "ResectionPair",
    "Rater",
    "RATERS",
    "LABEL_NAMES",
    "POSTOPERATIVE_LABEL_NAMES",
    "CHANNEL_NAMES",
    "FIELD_OF_VIEW_MM",
]
