"""Counting label maps, batch by batch, in whole numbers: the order does not matter."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.grid import Grid


def count_votes(labels: NDArray[np.uint8], counts: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Add label maps (B, N) to ``counts`` (L, N); return their sizes in voxels, (B, L)."""
    sizes = np.empty((len(labels), len(counts)), dtype=np.int64)
    for l in range(len(counts)):
        given = labels == l  # (B, N)
        counts[l] += given.sum(axis=0, dtype=np.uint32)
        sizes[:, l] = np.count_nonzero(given, axis=1)
    return sizes


class Tally:
    """The votes of each voxel, the size of each label in each sample, and what else is summed."""

    def __init__(self, grid: Grid, n_labels: int, *, conditional: bool) -> None:
        self.counts: NDArray[np.uint32] = np.zeros((n_labels, grid.voxels), dtype=np.uint32)
        self.conditional: NDArray[np.int64] | None = None
        if conditional:
            self.conditional = np.zeros((n_labels, grid.voxels), dtype=np.int64)
        self._sizes: list[NDArray[np.int64]] = []  # each (B, L)
        self._switched: list[NDArray[np.float64]] = []  # each (B,)

    @property
    def samples(self) -> int:
        """The number of samples counted."""
        return sum(len(sizes) for sizes in self._sizes)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """The number of voxels of each label in each sample, (S, L)."""
        return np.concatenate(self._sizes)

    @property
    def switched(self) -> NDArray[np.float64]:
        """The share of the voxels whose label the last update changed, (S,)."""
        return np.concatenate(self._switched)

    def add(self, labels: NDArray[np.uint8], switched: NDArray[np.float64]) -> None:
        """Count the label maps of a batch, (B, N)."""
        self.add_counted(count_votes(labels, self.counts), switched)

    def add_counted(self, sizes: NDArray[np.int64], switched: NDArray[np.float64]) -> None:
        """Note the label sizes (B, L) of a batch that is in ``counts`` already."""
        self._sizes.append(sizes)
        self._switched.append(switched)

    def add_conditional(self, units: NDArray[np.int64]) -> None:
        """Add a batch's conditional marginals, (L, N), in units of 2⁻³⁰."""
        if self.conditional is not None:
            self.conditional += units
