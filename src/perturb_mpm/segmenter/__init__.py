"""The segmenter: features of multi-sequence MRI, boosted trees, calibrated probabilities.

Its features are built after the description in words of Meier et al. (2014); it is not a
reproduction of their forest.
"""

from perturb_mpm.segmenter.boosting import MOST_ROUNDS, Boosting
from perturb_mpm.segmenter.calibration import Calibration, fit_calibration
from perturb_mpm.segmenter.ensemble import (
    MOST_FOLDS,
    Ensemble,
    EnsembleSettings,
    Forest,
    Grower,
    ShownVoxels,
    show_voxels,
    train_ensemble,
)
from perturb_mpm.segmenter.feature_store import (
    DrawSettings,
    FeatureStore,
    ReadScene,
    feature_table,
)
from perturb_mpm.segmenter.features import FAMILIES, family_names
from perturb_mpm.segmenter.masked_filters import limited_threads, threads_available
from perturb_mpm.segmenter.model import (
    SegmenterModel,
    case_from_model,
    probabilities_from_model,
    require_scheme,
)
from perturb_mpm.segmenter.preprocessing import (
    Prepared,
    prepare,
    prepare_images,
)
from perturb_mpm.segmenter.training import (
    TrainingReport,
    held_out_answers,
    prior_ratio,
    train_segmenter,
    training_cases,
)

__all__ = [
    "Boosting",
    "Calibration",
    "case_from_model",
    "DrawSettings",
    "Ensemble",
    "EnsembleSettings",
    "FAMILIES",
    "family_names",
    "feature_table",
    "FeatureStore",
    "fit_calibration",
    "Forest",
    "Grower",
    "held_out_answers",
    "limited_threads",
    "MOST_FOLDS",
    "MOST_ROUNDS",
    "prepare",
    "prepare_images",
    "Prepared",
    "prior_ratio",
    "probabilities_from_model",
    "ReadScene",
    "require_scheme",
    "SegmenterModel",
    "show_voxels",
    "ShownVoxels",
    "threads_available",
    "train_ensemble",
    "train_segmenter",
    "training_cases",
    "TrainingReport",
]
