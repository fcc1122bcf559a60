"""What the paper and its readers compare Perturb-and-MPM with.

Each takes ``(crf, samples, seed)`` and returns a ``Posterior`` where it draws samples; what it is
good for, and up to which size, stands in its own words.
"""

from perturb_mpm.comparators.contours import contours
from perturb_mpm.comparators.enumeration import Enumeration, exact
from perturb_mpm.comparators.gibbs import Chains, gibbs, run_chains
from perturb_mpm.comparators.grid_crf import GridCRF
from perturb_mpm.comparators.grid_cut import graph_cut, perturb_and_map_grid
from perturb_mpm.comparators.independent import independent, unary_only
from perturb_mpm.comparators.min_marginals import MinMarginals, min_marginals
from perturb_mpm.comparators.perturb_and_map import full_perturbation, perturb_and_map

__all__ = [
    "Enumeration",
    "exact",
    "full_perturbation",
    "perturb_and_map",
    "gibbs",
    "run_chains",
    "Chains",
    "independent",
    "unary_only",
    "GridCRF",
    "graph_cut",
    "perturb_and_map_grid",
    "min_marginals",
    "MinMarginals",
    "contours",
]
