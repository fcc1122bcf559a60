"""Dense CRF segmentation of medical images, and how uncertain it is."""

from perturb_mpm.inference import ConvergenceWarning, MeanField, mean_field
from perturb_mpm.learning import Learned, learn
from perturb_mpm.model import (
    BilateralKernel,
    DenseCRF,
    FeatureKernel,
    SpatialKernel,
    unary_from_labels,
    unary_from_logits,
    unary_from_probabilities,
)
from perturb_mpm.noise import Field
from perturb_mpm.posterior import Posterior, Precision, samples_needed
from perturb_mpm.sampling import sample
from perturb_mpm.version import version

__version__ = version()

__all__ = [
    "DenseCRF",
    "SpatialKernel",
    "BilateralKernel",
    "FeatureKernel",
    "unary_from_probabilities",
    "unary_from_labels",
    "unary_from_logits",
    "mean_field",
    "MeanField",
    "ConvergenceWarning",
    "sample",
    "Posterior",
    "Field",
    "Precision",
    "samples_needed",
    "learn",
    "Learned",
    "__version__",
]
