"""The segmenter: features of multi-sequence MRI, boosted trees or a forest, calibrated.

Its features are built after the description in words of Meier et al. (2014); it is not a
reproduction of their forest.
"""

from perturb_mpm.segmenter.calibration import Calibration
from perturb_mpm.segmenter.features import FAMILIES, family_names, feature_table
from perturb_mpm.segmenter.model import (
    MOST_FOLDS,
    Ensemble,
    SegmenterModel,
    case_from_model,
    require_scheme,
)
from perturb_mpm.segmenter.preprocessing import (
    Prepared,
    correct_bias,
    prepare,
    prepare_images,
    resample,
)
from perturb_mpm.segmenter.scene import limit_threads
from perturb_mpm.segmenter.training import (
    EnsembleSettings,
    FeatureStore,
    ReadScene,
    TrainingReport,
    TrainingVoxels,
    calibrate_ensemble,
    train_ensemble,
    train_segmenter,
    training_cases,
)
from perturb_mpm.segmenter.trees import MOST_ROUNDS, Boosting, RandomForest, Trees

__all__ = [
    "Boosting",
    "Calibration",
    "Ensemble",
    "EnsembleSettings",
    "FAMILIES",
    "FeatureStore",
    "MOST_FOLDS",
    "MOST_ROUNDS",
    "Prepared",
    "RandomForest",
    "ReadScene",
    "SegmenterModel",
    "TrainingReport",
    "TrainingVoxels",
    "Trees",
    "calibrate_ensemble",
    "case_from_model",
    "correct_bias",
    "family_names",
    "feature_table",
    "limit_threads",
    "prepare",
    "prepare_images",
    "require_scheme",
    "resample",
    "train_ensemble",
    "train_segmenter",
    "training_cases",
]
