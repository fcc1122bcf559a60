"""The result of sampling, its file, and what can be said of it."""

from perturb_mpm.posterior.bounds import samples_needed
from perturb_mpm.posterior.distances import (
    log_probability_error,
    smoothed_frequencies,
    total_variation,
)
from perturb_mpm.posterior.posterior import Estimator, Posterior, Source
from perturb_mpm.posterior.precision import Precision
from perturb_mpm.posterior.uncertainty import CERTAIN, UNCERTAIN, UNDECIDED, entropy_of_marginals
from perturb_mpm.posterior.votes import (
    FRACTION_BITS,
    Tally,
    count_type,
    count_votes,
    fixed_point,
    plain,
)

__all__ = [
    "CERTAIN",
    "count_type",
    "count_votes",
    "entropy_of_marginals",
    "Estimator",
    "fixed_point",
    "FRACTION_BITS",
    "log_probability_error",
    "plain",
    "Posterior",
    "Precision",
    "samples_needed",
    "smoothed_frequencies",
    "Source",
    "Tally",
    "total_variation",
    "UNCERTAIN",
    "UNDECIDED",
]
