"""The segmenter: features of multi-sequence MRI, a decision forest, calibrated probabilities.

It is built after Meier et al. (2014), whose features and forest are described in words only; it is
not a reproduction of theirs.
"""

from perturb_mpm.segmenter.calibration import Calibration, fit_calibration
from perturb_mpm.segmenter.cases import (
    CaseFiles,
    cases_of_brats,
    common_sequences,
    find_cases,
    training_cases,
)
from perturb_mpm.segmenter.ensemble import (
    Ensemble,
    EnsembleSettings,
    Forest,
    ShownVoxels,
    show_voxels,
    train_ensemble,
)
from perturb_mpm.segmenter.feature_store import (
    DrawSettings,
    FeatureStore,
    Labelled,
    TrainingCase,
    feature_table,
)
from perturb_mpm.segmenter.features import FAMILIES, family_names
from perturb_mpm.segmenter.forest import RandomForest
from perturb_mpm.segmenter.model import SegmenterModel, probabilities_from_model, require_scheme
from perturb_mpm.segmenter.preprocessing import (
    STANDARD,
    Prepared,
    prepare,
    select_sequences,
    standard_name,
)
from perturb_mpm.segmenter.training import (
    TrainingReport,
    held_out_answers,
    prior_ratio,
    train_segmenter,
    training_settings,
)

__all__ = [
    "Calibration",
    "CaseFiles",
    "cases_of_brats",
    "common_sequences",
    "DrawSettings",
    "Ensemble",
    "EnsembleSettings",
    "FAMILIES",
    "family_names",
    "feature_table",
    "FeatureStore",
    "find_cases",
    "fit_calibration",
    "Forest",
    "held_out_answers",
    "Labelled",
    "prepare",
    "Prepared",
    "prior_ratio",
    "probabilities_from_model",
    "RandomForest",
    "require_scheme",
    "SegmenterModel",
    "select_sequences",
    "show_voxels",
    "ShownVoxels",
    "STANDARD",
    "standard_name",
    "train_ensemble",
    "train_segmenter",
    "training_cases",
    "training_settings",
    "TrainingCase",
    "TrainingReport",
]
