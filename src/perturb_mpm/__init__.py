"""Dense CRF segmentation of medical images, and how uncertain it is."""

from importlib.metadata import PackageNotFoundError, version

from perturb_mpm.convergence import ConvergenceWarning
from perturb_mpm.crf import DenseCRF
from perturb_mpm.inference import MeanField, mean_field
from perturb_mpm.kernels import BilateralKernel, FeatureKernel, SpatialKernel
from perturb_mpm.unary import unary_from_labels, unary_from_logits, unary_from_probabilities

try:
    __version__ = version("perturb-mpm")
except PackageNotFoundError:  # run from a checkout that is not installed
    __version__ = "0+unknown"

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
    "__version__",
]
