"""Where the voxels find the nodes of smooth noise: tables that a compiled kernel looks up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.model import Grid
from perturb_mpm.noise import SUPPORT, NodeLattice

MOST_AXES = 4


@dataclass(frozen=True)
class NodeTables:
    """How the voxels of a grid see the nodes of F lattices, whose rows stand one after the other.

    Images of fewer than four axes have axes of length 1 before their own. For lattice f, axis a and
    coordinate x, ``firsts[f, a, x]`` is the first row (rows of several axes add up),
    ``weights[f, a, x]`` are those of SUPPORT nodes, and ``steps[f, a]`` are the rows from a node to
    the next.
    """

    starts: NDArray[np.int64]  # (F + 1,): where the rows of each lattice start, and their number
    shape: tuple[int, ...]  # MOST_AXES numbers
    firsts: NDArray[np.int64]  # (F, MOST_AXES, longest)
    weights: NDArray[np.float32]  # (F, MOST_AXES, longest, SUPPORT)
    steps: NDArray[np.int64]  # (F, MOST_AXES)

    @classmethod
    def of(cls, lattices: Sequence[NodeLattice], grid: Grid) -> NodeTables:
        """Make the tables of some lattices on a grid."""
        rows = [math.prod(lattice.shape) for lattice in lattices]
        starts = np.concatenate([[0], np.cumsum(rows)]).astype(np.int64)
        shape = (1,) * (MOST_AXES - grid.ndim) + grid.shape
        count, longest = len(lattices), max(shape)
        firsts = np.zeros((count, MOST_AXES, longest), dtype=np.int64)
        weights = np.zeros((count, MOST_AXES, longest, SUPPORT), dtype=np.float32)
        steps = np.zeros((count, MOST_AXES), dtype=np.int64)
        for f, lattice in enumerate(lattices):
            padding = MOST_AXES - len(lattice.axes)
            weights[f, :padding, 0, 0] = 1
            firsts[f, 0, :] = starts[f]
            for k, axis in enumerate(lattice.axes):
                here = slice(axis.low, axis.low + len(axis.first))
                step = math.prod(lattice.shape[k + 1 :])
                firsts[f, padding + k, here] += step * axis.first
                weights[f, padding + k, here] = axis.weights
                steps[f, padding + k] = step
        return cls(starts, shape, firsts, weights, steps)

    @property
    def nodes(self) -> int:
        """The number of nodes of all lattices."""
        return int(self.starts[-1])
