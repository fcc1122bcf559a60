"""What the comparators share: which samples are asked for, and how label maps become a result."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.grid import Grid
from perturb_mpm.noise import checked_seed
from perturb_mpm.posterior import Posterior
from perturb_mpm.sampler import sample_range
from perturb_mpm.tally import Tally
from perturb_mpm.version import version

Samples = int | range

# Of the methods that do not use the noise of Perturb-and-MPM.
_STREAMS = {"exact": 0, "full_perturbation": 1, "contours": 2, "gibbs": 3}


def batches(samples: range, each: int, most: int) -> Iterator[range]:
    """Cut a range into parts whose samples, of size ``each``, hold at most ``most`` together."""
    step = max(1, most // each)
    for start in range(samples.start, samples.stop, step):
        yield range(start, min(start + step, samples.stop))


class Collector:
    """Counts label maps into a posterior, under the name of what made them."""

    def __init__(self, method: str, samples: Samples, seed: int, **options: float | str) -> None:
        self.samples = sample_range(samples)
        self.seed = checked_seed(seed)
        self._parameters = {"method": method, "seed": self.seed, **options, "version": version()}

    def collect(
        self, grid: Grid, n_labels: int, draws: Iterable[NDArray[np.uint8]], problem: str
    ) -> Posterior:
        """Return the posterior of all label maps, (B, N) at a time, inside the mask."""
        tally = Tally(grid, n_labels, conditional=False)
        for labels in draws:
            tally.add(labels, np.zeros(len(labels)))
        return Posterior(
            grid=grid,
            counts=tally.counts,
            sample_index=np.array(self.samples),
            volumes=tally.sizes * math.prod(grid.spacing),
            problem=problem,
            parameters=self._parameters,
        )


def generator(method: str, seed: int, number: int = 0) -> np.random.Generator:
    """Return random numbers that belong to a method, a seed and the number of a sample or chain."""
    return np.random.default_rng([seed & 0xFFFFFFFF, seed >> 32, _STREAMS[method], number])
