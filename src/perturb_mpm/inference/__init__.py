"""Mean field of one problem."""

from perturb_mpm.inference.solving import ConvergenceWarning, MeanField, mean_field

__all__ = [
    "ConvergenceWarning",
    "mean_field",
    "MeanField",
]
