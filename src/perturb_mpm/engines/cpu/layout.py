"""What kernels take together: sparse matrices, messages, problems in tiles and working memory.

Numba compiles named tuples as it does their members. N counts voxels, L labels, B the problems of
a batch, T the voxels of a tile, R the lattice rows of all kernels.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

TILE_VALUES = 1024
"""T·B, the values of a label in a tile: enough for vector instructions, few enough for caches."""


class Taps(NamedTuple):
    """A sparse matrix by rows: row v holds ``columns[pointers[v]:pointers[v+1]]``."""

    pointers: NDArray[np.int64]  # (rows + 1,)
    columns: NDArray[np.int32]
    coefficients: NDArray[np.float32]

    @classmethod
    def of_table(cls, columns: NDArray[np.int32], coefficients: NDArray[np.float32]) -> Taps:
        """Return the matrix of as many entries, (N, p), in every row."""
        n, p = columns.shape
        pointers = np.arange(n + 1, dtype=np.int64) * p
        return cls(pointers, columns.reshape(-1), coefficients.reshape(-1))

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self.pointers) - 1


class Slices(NamedTuple):
    """The last stage of all kernels: P entries a voxel, group by group, into stacked rows."""

    columns: NDArray[np.int32]  # (N, P)
    coefficients: NDArray[np.float32]  # (N, P)
    ends: NDArray[np.int64]  # (G,): where each group's entries end
    totals: NDArray[np.float32]  # (G, N): row sums
    diagonals: NDArray[np.float32]  # (G, N): what a voxel must not send to itself


class Compatibilities(NamedTuple):
    """The compatibility of each group, reduced to differences against label 0."""

    potts: NDArray[np.bool_]  # (G,)
    matrices: NDArray[np.float32]  # (G, L−1, L−1): A of ``engines/lattice.py``
    offsets: NDArray[np.float32]  # (G, L−1): c
    firsts: NDArray[np.float32]  # (G, L): label 0's row of μ


class Blurred(NamedTuple):
    """What a voxel receives its messages from."""

    slices: Slices
    compatibilities: Compatibilities
    rows: NDArray[np.generic]  # (R, (L−1)·B): the vertices of all kernels after their blur


class NumberFormat(NamedTuple):
    """How a marginal is stored: times ``unit``, plus ``rounding``, then cut to a whole number.

    ``signed`` values are rounded to the nearest whole number instead; float32 is stored as it is.
    """

    unit: np.float32
    rounding: np.float32
    signed: bool


class TiledProblem(NamedTuple):
    """What is given of B problems at V voxels."""

    energies: NDArray[np.generic]  # (tiles, L−1, T·B), against label 0's
    base: NDArray[np.float32]  # (V, L−1), or empty
    before: NDArray[np.float32]  # (V, L−1, 1 or B), or empty: the reference of stored marginals
    after: NDArray[np.float32]  # the same for those that the update stores


class UpdateStep(NamedTuple):
    """How one update is made; labels follow only where it is ``watched``."""

    damping: np.float32
    sharpness: np.float32
    watched: bool


class Tile(NamedTuple):
    """Working memory of one tile: (L−1, T·B) or (T·B,), and the same memory by voxel."""

    logits: NDArray[np.float32]
    voxel_logits: NDArray[np.float32]  # (L−1, T, B)
    old: NDArray[np.float32]
    voxel_old: NDArray[np.float32]
    voxel_reference: NDArray[np.float32]  # (L−1, T, B)
    zero: NDArray[np.float32]  # of label 0
    voxel_zero: NDArray[np.float32]  # (T, B)
    highest: NDArray[np.float32]
    norm: NDArray[np.float32]
    voxel_norm: NDArray[np.float32]
    own: NDArray[np.float32]  # (T,)
    received: NDArray[np.float32]  # (T, (L−1)·B)
    voxel_received: NDArray[np.float32]  # (T, L−1, B)
    message: NDArray[np.float32]
    voxel_message: NDArray[np.float32]
    every: NDArray[np.float32]
    rest: NDArray[np.float32]
    voxel_rest: NDArray[np.float32]


class Watch(NamedTuple):
    """What a watched update finds: labels now and before, and three numbers of each value."""

    best: NDArray[np.int32]  # (T·B,)
    voxel_best: NDArray[np.int32]  # (T, B)
    was: NDArray[np.int32]
    voxel_was: NDArray[np.int32]
    moved: NDArray[np.float32]
    found: NDArray[np.float32]  # (3, T·B): largest change, in the foreground, labels changed
