"""One measured error, and the estimates it is measured on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.reproduce.synthetic import Setting, errors, smoothed


class Row(NamedTuple):
    """The errors of one estimate of the marginals of one problem."""

    experiment: str
    """"curves", "comparators", "map" or "single voxel"."""
    voxels: int
    labels: int
    weight: float
    sigma_voxels: float | None
    self_term: bool
    estimator: str
    samples: int | None
    """None for what is not sampled."""
    draw: int
    total_variation: float
    log_probability_error_nats: float


@dataclass(frozen=True)
class Measure:
    """Makes the rows of one binary problem, whose exact marginals of label 1 are known."""

    experiment: str
    setting: Setting
    draw: int
    truth: NDArray[np.float64]  # (N,)

    def estimate(self, name: str, estimate: NDArray[np.float64], samples: int | None) -> Row:
        """Return the row of an estimate of P(x_i = 1), (N,)."""
        return self._row(name, samples, *errors(estimate, self.truth))

    def estimates(
        self, name: str, estimates: NDArray[np.float64], sizes: Sequence[int]
    ) -> Iterator[Row]:
        """Return the rows of estimates (C, N) from the first S samples, one for each S."""
        for estimate, samples in zip(estimates, sizes):
            yield self.estimate(name, estimate, samples)

    def counts(self, name: str, counts: NDArray[np.integer], sizes: Sequence[int]) -> Iterator[Row]:
        """Return the rows of votes for label 1, (C, N), among the first S samples.

        The total variation is that of k / S; logarithms are taken of (k + ½) / (S + 1).
        """
        for votes, samples in zip(counts.astype(np.int64), sizes):
            variation, _ = errors(votes / samples, self.truth)
            _, logarithmic = errors(smoothed(votes, samples), self.truth)
            yield self._row(name, samples, variation, logarithmic)

    def _row(self, name: str, samples: int | None, variation: float, logarithmic: float) -> Row:
        setting = self.setting
        return Row(
            self.experiment,
            self.truth.size,
            2,
            setting.weight,
            setting.sigma,
            setting.self_term,
            name,
            samples,
            self.draw,
            variation,
            logarithmic,
        )
