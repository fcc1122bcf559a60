"""Dense CRF segmentation of medical images, and how uncertain it is."""

from perturb_mpm.inference.solving import ConvergenceWarning, MeanField, mean_field
from perturb_mpm.learning.learner import Learned, learn
from perturb_mpm.model.crf import DenseCRF
from perturb_mpm.model.kernels import BilateralKernel, FeatureKernel, SpatialKernel
from perturb_mpm.model.unary import unary_from_labels, unary_from_logits, unary_from_probabilities
from perturb_mpm.noise.fields import Field
from perturb_mpm.posterior.bounds import samples_needed
from perturb_mpm.posterior.posterior import Posterior
from perturb_mpm.posterior.precision import Precision
from perturb_mpm.sampling.sampling import sample
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
