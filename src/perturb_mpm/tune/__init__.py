"""Settings of ``run`` tuned on labelled cases, and cross-validated."""

from perturb_mpm.tune.cases import cases_of_model, cases_with_probabilities
from perturb_mpm.tune.tuning import Tuned, TuningOptions, tune, write_convergence

__all__ = [
    "cases_of_model",
    "cases_with_probabilities",
    "tune",
    "Tuned",
    "TuningOptions",
    "write_convergence",
]
