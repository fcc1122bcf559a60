"""Ground truth for tiny problems by explicit loops and enumeration, independent of every engine."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass
class Oracle:
    """Energies (L, N), kernels (N, N) whose diagonal does not count, each with its μ (L, L)."""

    energies: Array
    kernels: list[Array]
    compatibilities: list[Array]

    @property
    def voxels(self) -> int:
        return self.energies.shape[1]

    @property
    def n_labels(self) -> int:
        return self.energies.shape[0]

    def energy(self, x: NDArray[np.integer]) -> float:
        """E of one labelling (N,), pair by pair."""
        total = sum(self.energies[x[i], i] for i in range(self.voxels))
        for i in range(self.voxels):
            for j in range(i):
                total += self.coupling(i, j)[x[i], x[j]]
        return float(total)

    def coupling(self, i: int, j: int) -> Array:
        """Σ_m μ_m k_m(i, j), (L, L), with the mean of k(i, j) and k(j, i)."""
        return sum(
            mu * (k[i, j] + k[j, i]) / 2 for k, mu in zip(self.kernels, self.compatibilities)
        ) + np.zeros((self.n_labels, self.n_labels))

    def all_energies(self) -> Array:
        """E of every labelling: a table with one axis of length L for each voxel."""
        table = np.zeros((self.n_labels,) * self.voxels)
        for i in range(self.voxels):
            table += self.energies[:, i].reshape(self._along(i))
            for j in range(i):
                # Axis j comes before axis i in the table.
                table += self.coupling(j, i).reshape(self._along(i, j))
        return table

    def log_z(self) -> float:
        table = self.all_energies()
        lowest = table.min()
        return float(np.log(np.exp(lowest - table).sum()) - lowest)

    def exact_marginals(self) -> Array:
        """P(x_i = l), (L, N)."""
        p = np.exp(-self.log_z() - self.all_energies())
        axes = set(range(self.voxels))
        return np.stack([p.sum(axis=tuple(axes - {i})) for i in range(self.voxels)], axis=1)

    def pairwise(self, q: Array) -> Array:
        """Σ_m μ_m Σ_{j≠i} k_m(i, j) q_j, (L, N)."""
        total = np.zeros_like(q)
        for k, mu in zip(self.kernels, self.compatibilities):
            for i in range(self.voxels):
                for j in range(self.voxels):
                    if i != j:
                        total[:, i] += k[i, j] * (mu @ q[:, j])
        return total

    def free_energy(self, q: Array) -> float:
        return float(
            (q * self.energies).sum() + (q * np.log(q)).sum() + (q * self.pairwise(q)).sum() / 2
        )

    def _along(self, *axes: int) -> tuple[int, ...]:
        return tuple(self.n_labels if axis in axes else 1 for axis in range(self.voxels))


def gaussian(features: Array, normalization: str) -> Array:
    """The normalised kernel of (N, d) features, diagonal included, value by value."""
    n = len(features)
    k = np.empty((n, n))
    for i in range(n):
        for j in range(n):
            k[i, j] = math.exp(-sum((a - b) ** 2 for a, b in zip(features[i], features[j])) / 2)
    sums = [sum(k[i, j] for j in range(n)) for i in range(n)]
    out = np.empty((n, n))
    for i in range(n):
        for j in range(n):
            divisor = {
                "symmetric": math.sqrt(sums[i] * sums[j]),
                "before": sums[j],
                "after": sums[i],
                "none": 1.0,
            }[normalization]
            out[i, j] = k[i, j] / divisor
    return out


def softmax(logits: Array) -> Array:
    """exp(logits) normalised over the first axis."""
    q = np.exp(logits - logits.max(axis=0))
    return q / q.sum(axis=0)
