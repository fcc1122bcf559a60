"""One temperature for a whole CRF: the labels stay, the confidence becomes honest.

Overlap asks for the right labels only, and a CRF that is learned for it is far too sure of them.
Dividing all its energies by one number, unaries and kernels alike, hardly moves the labels. The
number is chosen for the likelihood of the true ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perturb_mpm.learning.objectives import LogLikelihood
from perturb_mpm.learning.optimise import Search
from perturb_mpm.learning.parameters import Parameters
from perturb_mpm.learning.problem import Problem

TEMPERATURES = (0.25, 16.0)
_TRIALS = 12


def likely_temperature(
    problems: Sequence[Problem], parameters: Parameters, iterations: int
) -> float:
    """Return the temperature of all energies under which the true labels are most likely."""
    from scipy.optimize import minimize_scalar

    search = Search(problems, LogLikelihood(), iterations, strength=0.0)
    found = minimize_scalar(
        lambda log: -search.value(parameters.tempered(float(np.exp(log)))),
        bounds=np.log(TEMPERATURES),
        method="bounded",
        options={"maxiter": _TRIALS, "xatol": 0.02},
    )
    return float(np.exp(found.x))
