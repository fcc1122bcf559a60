"""Dense CRF segmentation of medical images, and how uncertain it is."""

import importlib
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from perturb_mpm.files import Case, read_case
    from perturb_mpm.run import Run, RunSettings, build_crf, load_run, measure, run_case

__version__ = version()

# Of the application, loaded when they are asked for: the library works on arrays alone.
_LATER = {
    "read_case": "files",
    "Case": "files",
    "build_crf": "run",
    "run_case": "run",
    "load_run": "run",
    "Run": "run",
    "RunSettings": "run",
    "measure": "run",
}

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
    "read_case",
    "Case",
    "build_crf",
    "run_case",
    "load_run",
    "Run",
    "RunSettings",
    "measure",
    "__version__",
]


def __getattr__(name: str) -> object:
    """Load what belongs to the application when it is first used."""
    if name not in _LATER:
        raise AttributeError(f"module 'perturb_mpm' has no attribute {name!r}")
    return getattr(importlib.import_module(f"perturb_mpm.{_LATER[name]}"), name)


def __dir__() -> list[str]:
    """Show the public names alone."""
    return sorted(__all__)
