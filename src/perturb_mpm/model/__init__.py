"""The model: grid, unary energies, kernels and the dense CRF."""

from perturb_mpm.model.crf import (
    EXACT_VOXELS,
    DenseCRF,
    PairwiseTerm,
    digest,
    fingerprint,
    unary_from_labels,
    unary_from_logits,
    unary_from_probabilities,
)
from perturb_mpm.model.grid import Grid, bounding_box
from perturb_mpm.model.kernels import (
    BilateralKernel,
    FeatureKernel,
    Inside,
    Kernel,
    Normalization,
    Sigma,
    SpatialKernel,
)

__all__ = [
    "BilateralKernel",
    "bounding_box",
    "DenseCRF",
    "digest",
    "EXACT_VOXELS",
    "FeatureKernel",
    "fingerprint",
    "Grid",
    "Inside",
    "Kernel",
    "Normalization",
    "PairwiseTerm",
    "Sigma",
    "SpatialKernel",
    "unary_from_labels",
    "unary_from_logits",
    "unary_from_probabilities",
]
