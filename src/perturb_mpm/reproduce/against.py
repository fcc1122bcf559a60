"""Perturb-and-MPM beside what else draws samples of a CRF, at equal numbers of samples."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.comparators import (
    exact,
    full_perturbation,
    gibbs,
    independent,
    perturb_and_map,
    unary_only,
)
from perturb_mpm.convergence import ConvergenceWarning
from perturb_mpm.crf import DenseCRF
from perturb_mpm.posterior import Posterior
from perturb_mpm.reproduce import synthetic
from perturb_mpm.reproduce.binary import noise_seed, posed
from perturb_mpm.reproduce.rows import Row
from perturb_mpm.reproduce.synthetic import Setting

Sampler = Callable[[DenseCRF, range, int], Posterior]


def _samples_of_q(crf: DenseCRF, samples: range, seed: int) -> Posterior:
    with warnings.catch_warnings():
        # Ten updates of mean field are what is measured, converged or not.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return independent(crf, samples, seed, iterations=synthetic.ITERATIONS, engine="reference")


FROM_Q: dict[str, Sampler] = {"samples of Q": _samples_of_q}
OF_THE_MODEL: dict[str, Sampler] = {
    "Gibbs": gibbs,
    "order-1 Perturb-and-MAP": perturb_and_map,
    "full perturbation": full_perturbation,
    "exact samples": exact,
    "unary only": unary_only,
}


def compared(
    voxels: int, draw: int, setting: Setting, sizes: Sequence[int], seed: int
) -> list[Row]:
    """Measure every method; those that know no self term only where none is kept."""
    crf, _, measure = posed("comparators", voxels, draw, setting)
    noise = noise_seed(seed, draw)
    conditional = synthetic.conditional_marginals(crf, sizes, noise)
    printed = synthetic.votes(crf, sizes, noise, printed_sign=True)
    rows = [
        measure.estimate("mean field", synthetic.mean_field_marginals(crf), None),
        *measure.counts("votes", synthetic.votes(crf, sizes, noise), sizes),
        *measure.counts("votes, printed sign", printed, sizes),
        *measure.estimates("conditional", conditional, sizes),
    ]
    samplers = FROM_Q if setting.self_term else FROM_Q | OF_THE_MODEL
    for name, sampler in samplers.items():
        rows += measure.counts(name, _counts(sampler, crf, sizes, noise), sizes)
    return rows


def _counts(sampler: Sampler, crf: DenseCRF, sizes: Sequence[int], seed: int) -> NDArray[np.int64]:
    """Return how many of the first S samples give label 1, (C, N): ranges of samples add up."""
    parts = [
        sampler(crf, range(start, stop), seed).counts[1].ravel().astype(np.int64)
        for start, stop in pairwise([0, *sizes])
    ]
    return np.cumsum(parts, axis=0)
