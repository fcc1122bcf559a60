"""Exact answers for tiny problems: every labelling is visited."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.comparators.common import Collector, Samples, generator
from perturb_mpm.comparators.couplings import Model, problem
from perturb_mpm.comparators.states import StateTable
from perturb_mpm.posterior import Posterior


class Enumeration:
    """P(x) = exp(−E(x)) / Z over all L^N labellings, at most 2·10⁷ of them.

    Every labelling's energy is kept, 8 bytes each. It has no self term, whatever the CRF says, as
    in ``DenseCRF.energy``.
    """

    log_z: float
    """The logarithm of Σ_x exp(−E(x)), in nats."""
    marginals: NDArray[np.float64]
    """P(x_i = l), (L, *spatial); outside the mask 1 for label 0."""
    labels: NDArray[np.uint8]
    """The labelling of least energy, the first of equals, (*spatial)."""
    energy: float
    """Its energy."""

    def __init__(self, crf: Model) -> None:
        self._table = table = StateTable(crf)
        best = int(table.energies.argmin())
        self.energy = float(table.energies.flat[best])
        self.labels = crf.grid.scatter(table.labels(np.array([best]))[0], 0)
        head = np.zeros(len(table.head))  # Σ_tail exp(−E), up to a factor
        tail = np.zeros(len(table.tail))
        for rows in table.rows():
            weights = np.exp(self.energy - table.energies[rows])  # (M, T)
            head[rows] = weights.sum(axis=1)
            tail += weights.sum(axis=0)
        self._head = head
        self.log_z = math.log(head.sum()) - self.energy
        shares = [
            np.bincount(labels, weights / head.sum(), minlength=table.n_labels)
            for states, weights in ((table.head, head), (table.tail, tail))
            for labels in states.T
        ]
        certain = np.arange(table.n_labels) == 0  # (L,), outside the mask
        self.marginals = crf.grid.scatter(np.stack(shares, axis=1), certain)

    def probability(self, labels: NDArray[np.integer]) -> NDArray[np.float64]:
        """Return P(x) of whole labellings given as the N labels inside the mask: (M, N) → (M,)."""
        number = np.zeros(len(labels), dtype=np.int64)
        for each in labels.T.astype(np.int64):  # (M,)
            number = number * self._table.n_labels + each
        return np.exp(-self.log_z - self._table.energies.ravel()[number])

    def draw(self, samples: range, seed: int) -> NDArray[np.uint8]:
        """Return independent samples of P, (S, N), by inverting its distribution function."""
        uniform = generator("exact", seed).random((samples.stop, 2))[samples.start :]
        cumulative = np.cumsum(self._head)
        heads = np.searchsorted(cumulative, uniform[:, 0] * cumulative[-1], side="right")
        numbers = np.empty(len(samples), dtype=np.int64)
        for head in np.unique(heads):
            here = np.flatnonzero(heads == head)
            row = np.cumsum(np.exp(self.energy - self._table.energies[head]))  # (T,)
            tails = np.searchsorted(row, uniform[here, 1] * row[-1], side="right")
            numbers[here] = head * len(row) + tails
        return self._table.labels(numbers)


def exact(crf: Model, samples: Samples, seed: int) -> Posterior:
    """Draw independent, exact samples of a CRF with at most 2·10⁷ labellings.

    Sample t depends on the seed and on t alone. ``Enumeration`` has the exact marginals, log Z and
    the most probable labelling.
    """
    run = Collector("exact", samples, seed)
    draws = [Enumeration(crf).draw(run.samples, run.seed)]
    return run.collect(crf.grid, crf.n_labels, draws, problem(crf))
