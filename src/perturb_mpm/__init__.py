"""Dense CRF segmentation of medical images, and how uncertain it is."""

from perturb_mpm.engines import Compute, Solver, prepare
from perturb_mpm.inference import ConvergenceWarning, MeanField, mean_field
from perturb_mpm.learning import Learned, learn
from perturb_mpm.model import (
    BilateralKernel,
    DenseCRF,
    FeatureKernel,
    Grid,
    SpatialKernel,
    unary_from_labels,
    unary_from_logits,
    unary_from_probabilities,
)
from perturb_mpm.posterior import Posterior, Precision, samples_needed
from perturb_mpm.progress import Progress
from perturb_mpm.sampling import Sampler, Sampling, sample
from perturb_mpm.version import version

__version__ = version()

__all__ = [
    "DenseCRF",
    "Grid",
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
    "Sampling",
    "Sampler",
    "Compute",
    "Posterior",
    "Precision",
    "samples_needed",
    "prepare",
    "Solver",
    "learn",
    "Learned",
    "Progress",
    "__version__",
]


def __dir__() -> list[str]:
    """Show the public names alone."""
    return sorted(__all__)
