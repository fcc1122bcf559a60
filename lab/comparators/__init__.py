"""What the paper and its readers compare Perturb-and-MPM with.

Each takes ``(crf, samples, seed)`` and returns a ``Posterior`` where it draws samples; what it is
good for, and up to which size, stands in its own words.
"""

from lab.comparators.common import GridCRF, independent, unary_only
from lab.comparators.contours import contours
from lab.comparators.displacement import displace_borders
from lab.comparators.distances import (
    hamming_loss,
    log_probability_error,
    smoothed_frequencies,
    total_variation,
    total_variation_map,
)
from lab.comparators.enumeration import (
    Enumeration,
    StateTable,
    exact,
    full_perturbation,
    perturb_and_map,
    perturbed_maps,
)
from lab.comparators.gibbs import Chains, gibbs, run_chains
from lab.comparators.grid_cut import MinMarginals, graph_cut, min_marginals, perturb_and_map_grid
from lab.comparators.grid_gibbs import gibbs_grid
from lab.comparators.integer_program import perturb_and_solve, solve_program

__all__ = [
    "Enumeration",
    "exact",
    "full_perturbation",
    "perturb_and_map",
    "perturbed_maps",
    "StateTable",
    "gibbs",
    "run_chains",
    "gibbs_grid",
    "perturb_and_solve",
    "solve_program",
    "Chains",
    "independent",
    "unary_only",
    "GridCRF",
    "graph_cut",
    "perturb_and_map_grid",
    "min_marginals",
    "MinMarginals",
    "contours",
    "displace_borders",
    "hamming_loss",
    "total_variation",
    "total_variation_map",
    "log_probability_error",
    "smoothed_frequencies",
]
