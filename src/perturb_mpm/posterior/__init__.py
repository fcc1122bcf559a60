"""The result of sampling, its file, and what can be said of it."""

from perturb_mpm.posterior.bounds import (
    Precision,
    anytime_halfwidth,
    anytime_interval,
    clopper_pearson,
    entropy_bound,
    hoeffding,
    plug_in_bias,
    samples_needed,
    total_variation_bound,
)
from perturb_mpm.posterior.decision import (
    CERTAIN,
    UNCERTAIN,
    UNDECIDED,
    Regions,
    check_nested,
    choose_regions,
    decide_labels,
    marginal_entropy,
)
from perturb_mpm.posterior.posterior import Estimator, MarginalKind, Posterior
from perturb_mpm.posterior.votes import Tally, copy_json, count_type

__all__ = [
    "Posterior",
    "Estimator",
    "MarginalKind",
    "Regions",
    "check_nested",
    "choose_regions",
    "decide_labels",
    "Precision",
    "anytime_interval",
    "anytime_halfwidth",
    "samples_needed",
    "hoeffding",
    "clopper_pearson",
    "total_variation_bound",
    "entropy_bound",
    "plug_in_bias",
    "CERTAIN",
    "UNDECIDED",
    "UNCERTAIN",
    "marginal_entropy",
    "Tally",
    "count_type",
    "copy_json",
]
