"""Perturb-and-MAP on tiny problems (Papandreou & Yuille, ICCV 2011), its MAP by enumeration."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.comparators.common import Collector, Samples, batches, generator
from perturb_mpm.comparators.couplings import Model, problem
from perturb_mpm.comparators.states import StateTable
from perturb_mpm.noise import gumbel
from perturb_mpm.posterior import Posterior

# What a run visits at most, labellings × samples: some minutes for either perturbation.
LARGEST_WORK = 10**11
LARGEST_DRAWS = 10**10

_CHUNK = 2**20


def perturb_and_map(crf: Model, samples: Samples, seed: int) -> Posterior:
    """Draw samples by order-1 perturbation: the labelling of least E(x) − Σ_i γ_i(x_i).

    γ is the very noise that ``pm.sample`` perturbs the unary energies with, so the two can be
    compared sample by sample under one seed. Without coupling the samples are exact; with coupling
    they are not samples of P. At most 2·10⁷ labellings, and 10¹¹ labellings × samples.
    """
    run = Collector("perturb_and_map", samples, seed)
    table = StateTable(crf)
    _check_work(table.states, len(run.samples), LARGEST_WORK)
    draws = _order_one(crf, table, run.samples, run.seed)
    return run.collect(crf.grid, crf.n_labels, draws, problem(crf))


def full_perturbation(crf: Model, samples: Samples, seed: int) -> Posterior:
    """Draw samples by full perturbation: the labelling of least E(x) − γ(x), one Gumbel for each x.

    These are exact samples of P (Proposition 3 of Papandreou & Yuille). With γ = −log e, e
    exponential, the least E − γ is the least e·exp(E), and that is what is looked for. Sample t
    depends on the seed and on t alone. At most 2·10⁷ labellings, and 10¹⁰ labellings × samples.
    """
    run = Collector("full_perturbation", samples, seed)
    table = StateTable(crf)
    _check_work(table.states, len(run.samples), LARGEST_DRAWS)
    draws = _full(table, run.samples, run.seed)
    return run.collect(crf.grid, crf.n_labels, draws, problem(crf))


def _order_one(
    crf: Model, table: StateTable, samples: range, seed: int
) -> Iterator[NDArray[np.uint8]]:
    for batch in batches(samples, table.states, _CHUNK):
        noise = gumbel(seed, batch, crf.grid.index, table.n_labels)  # (B, L, N)
        head, tail = table.sums(noise)  # (B, H), (B, T)
        perturbed = table.energies - head[:, :, np.newaxis]  # (B, H, T)
        perturbed -= tail[:, np.newaxis, :]
        yield table.labels(perturbed.reshape(len(batch), -1).argmin(axis=1))


def _full(table: StateTable, samples: range, seed: int) -> Iterator[NDArray[np.uint8]]:
    exponents = np.minimum(table.energies - table.energies.min(), 700.0)  # exp stays finite
    slowness = np.exp(exponents).ravel()  # (L^N,): exp(E), up to a factor
    race = np.empty_like(slowness)
    for batch in batches(samples, 1, _CHUNK // table.voxels):
        first = np.empty(len(batch), dtype=np.int64)
        for position, index in enumerate(batch):
            generator("full_perturbation", seed, index).standard_exponential(out=race)
            race *= slowness
            first[position] = race.argmin()
        yield table.labels(first)


def _check_work(states: int, samples: int, most: int) -> None:
    if states * samples > most:
        raise ValueError(
            f"samples must be at most {most // states} for a crf with {states} labellings, "
            f"got {samples}: use fewer samples or a smaller mask"
        )
