"""Fill the engine's tiles with perturbed energies."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm import checks
from perturb_mpm.engines.cpu import noise_kernels as kernels
from perturb_mpm.engines.cpu.compile import announced
from perturb_mpm.engines.cpu.threads import Threads
from perturb_mpm.field_nodes import SUPPORT
from perturb_mpm.fields import node_lattices
from perturb_mpm.grid import Grid
from perturb_mpm.noise import key_words
from perturb_mpm.perturbation import Perturbation

MOST_AXES = 4


class Perturber:
    """One perturbation of one set of unaries (L, N), in the order of the engine.

    Fields reach the kernel as their values on nodes, all samples side by side, and the kernel
    interpolates: node rows (R, (L − 1)·B) of all fields one after the other, and for field f, axis
    a and coordinate x the first row ``firsts[f, a, x]`` (rows of several axes add up), the weights
    ``weights[f, a, x]`` of SUPPORT nodes, and the rows from one node to the next ``steps[f, a]``.
    """

    def __init__(
        self,
        perturbation: Perturbation,
        unaries: NDArray[np.floating],
        grid: Grid,
        order: NDArray[np.int64],
        threads: Threads,
    ) -> None:
        self.perturbation = perturbation
        # Read-only as the grid's index is, so that one compiled kernel serves every caller.
        self._unaries = checks.read_only(np.ascontiguousarray(unaries, dtype=np.float32).view())
        self._voxels = grid.index
        self._order = checks.read_only(order.view())
        self._threads = threads
        self._lattices = node_lattices(perturbation.fields, grid, len(unaries))
        rows = [math.prod(lattice.shape) for lattice in self._lattices]
        self._starts = np.concatenate([[0], np.cumsum(rows)]).astype(np.int64)
        self._shape = np.array((1,) * (MOST_AXES - grid.ndim) + grid.shape, dtype=np.int64)
        self._tables = self._make_tables()

    def nbytes(self, problems: int) -> int:
        """Return how much memory the fields of so many samples take."""
        return int(self._starts[-1]) * (len(self._unaries) - 1) * problems * 4

    def fill(self, energies: NDArray[Any], samples: NDArray[np.int64], ceiling: np.float32) -> None:
        """Set the tiles ``energies`` (tiles, L − 1, T·B) to the perturbed unaries of B samples.

        The result is that of ``load_problem`` for each of them.
        """
        with announced():
            self._threads.run(
                kernels.perturb,
                len(energies),
                self._unaries,
                self._order,
                self._voxels,
                energies,
                samples.astype(np.uint64),
                key_words(self.perturbation.seed).astype(np.uint64),
                np.float32(self.perturbation.scale),
                self.perturbation.antithetic,
                (self._shape, self._nodes(samples), *self._tables),
                ceiling,
            )

    def _nodes(self, samples: NDArray[np.int64]) -> NDArray[np.float32]:
        """Draw the fields on their nodes, each against label 0's, (R, (L − 1)·B)."""
        labels, problems = len(self._unaries) - 1, len(samples)
        nodes = np.empty((int(self._starts[-1]), labels, problems), dtype=np.float32)

        def draw(b: int) -> None:
            seed, antithetic = self.perturbation.seed, self.perturbation.antithetic
            for lattice, start in zip(self._lattices, self._starts):
                drawn = lattice.draw(seed, int(samples[b]), antithetic=antithetic)
                against_first = (drawn[1:] - drawn[0]).reshape(labels, -1)
                nodes[start : start + against_first.shape[1], :, b] = against_first.T

        if self._lattices:
            with ThreadPoolExecutor(self._threads.count) as pool:
                list(pool.map(draw, range(problems)))
        return nodes.reshape(-1, labels * problems)

    def _make_tables(self) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]:
        count, longest = len(self._lattices), int(self._shape.max())
        firsts = np.zeros((count, MOST_AXES, longest), dtype=np.int64)
        weights = np.zeros((count, MOST_AXES, longest, SUPPORT), dtype=np.float32)
        steps = np.zeros((count, MOST_AXES), dtype=np.int64)
        for f, lattice in enumerate(self._lattices):
            padding = MOST_AXES - len(lattice.axes)
            weights[f, :padding, 0, 0] = 1
            firsts[f, 0, :] = self._starts[f]
            for k, axis in enumerate(lattice.axes):
                here = slice(axis.low, axis.low + len(axis.first))
                step = math.prod(lattice.shape[k + 1 :])
                firsts[f, padding + k, here] += step * axis.first
                weights[f, padding + k, here] = axis.weights
                steps[f, padding + k] = step
        return firsts, weights, steps
