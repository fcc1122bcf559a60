"""The samples of a run, drawn again with some voxels held at a label."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perturb_mpm import checks
from perturb_mpm.crf import DenseCRF
from perturb_mpm.engines import Accuracy, Engine
from perturb_mpm.fields import Field
from perturb_mpm.posterior import Estimator, Posterior
from perturb_mpm.posterior_parts import FRACTION_BITS
from perturb_mpm.sampler import Sampler

# No noise and no message comes near it; engines cut it to what they can hold.
FORBIDDEN_NATS = 1e4
FREE = -1
"""Stands for a label where a voxel is not held."""

Progress = Callable[[float], object]
"""Called with the share that is done, 0 … 1."""


@dataclass(frozen=True)
class Sampling:
    """How a run drew its samples, as ``perturb_mpm.sample`` takes it."""

    samples: int
    seed: int
    iterations: int
    estimator: Estimator = "votes"
    noise_scale: float | None = None
    fields: tuple[Field, ...] = ()
    engine: Engine = "auto"
    accuracy: Accuracy = "calibrated"
    threads: int | None = None
    memory_budget: int | str | None = None


def with_held(crf: DenseCRF, held: NDArray[np.int16]) -> DenseCRF:
    """Return the CRF in which voxels can have their held label alone.

    ``held`` is (N,) in the order of the mask: a label, or FREE.
    """
    fixed = held != FREE
    energies = crf.energies.copy()  # (L, N)
    for label, row in enumerate(energies):
        row[fixed] = np.where(held[fixed] == label, 0.0, FORBIDDEN_NATS)
    other = copy.copy(crf)
    other.energies = checks.read_only(energies)
    return other


def draw(crf: DenseCRF, sampling: Sampling, progress: Progress) -> NDArray[np.float64]:
    """Sample a CRF as the run did; return its marginals inside the mask, (L, N)."""
    sampler = Sampler(
        crf,
        sampling.seed,
        iterations=sampling.iterations,
        estimator=sampling.estimator,
        noise_scale=sampling.noise_scale,
        fields=sampling.fields,
        engine=sampling.engine,
        accuracy=sampling.accuracy,
        threads=sampling.threads,
        memory_budget=sampling.memory_budget,
    )
    posterior = sampler.draw(sampling.samples, progress=lambda done, of: progress(done / of))
    return voxel_marginals(posterior)


def voxel_marginals(posterior: Posterior) -> NDArray[np.float64]:
    """Return the marginals by the posterior's estimator inside the mask, (L, N)."""
    if posterior.estimator == "conditional" and posterior.voxel_conditional is not None:
        units = posterior.voxel_conditional / float(1 << FRACTION_BITS)
        marginals: NDArray[np.float64] = units / units.sum(axis=0)
        return marginals
    votes: NDArray[np.float64] = posterior.voxel_counts / posterior.samples
    return votes
