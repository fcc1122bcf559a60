"""Smooth noise for the engine: its nodes, and how the voxels see them.

The nodes are those of ``noise/nodes.py``, drawn for many samples at once on the device.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from perturb_mpm.engines.gpu.perturb_kernel import SmoothNoise, philox_twin
from perturb_mpm.engines.lattice import NodeTables
from perturb_mpm.model import Grid
from perturb_mpm.noise import (
    NodeLattice,
    Perturbation,
    key_words,
    length_lattices,
    white_share,
)

NUMBERS_AT_ONCE = 2**26


class SmoothDrawer:
    """The smooth noise of one perturbation; see ``perturb_kernel.SmoothNoise`` for the tables."""

    def __init__(
        self, perturbation: Perturbation, grid: Grid, n_labels: int, device: torch.device
    ) -> None:
        self.perturbation = perturbation
        self._n_labels = n_labels
        self._device = device
        self._axes = grid.ndim
        self._lattices = length_lattices(perturbation.lengths, grid, n_labels)
        self._tables = tables = NodeTables.of(self._lattices, grid)
        self._firsts = torch.from_numpy(tables.firsts).to(device)
        self._weights = torch.from_numpy(tables.weights).to(device)
        self._steps = torch.from_numpy(tables.steps).to(device)

    def draw(self, samples: NDArray[np.int64]) -> SmoothNoise:
        """Draw the normals of all labels of some samples on their nodes."""
        shape = (max(1, self._tables.nodes), len(samples), self._n_labels)
        nodes = torch.zeros(shape, dtype=torch.float32, device=self._device)  # (R, B, L)
        numbers = torch.from_numpy(np.asarray(samples, dtype=np.int64)).to(self._device)
        for lattice, start in zip(self._lattices, self._tables.starts):
            cells = torch.from_numpy(lattice.cells).to(self._device)
            step = max(1, NUMBERS_AT_ONCE // (cells.numel() * (self._n_labels + 4)))
            for first in range(0, len(samples), step):
                drawn = self._drawn(lattice, cells, numbers[first : first + step]).flatten(2)
                stop = int(start) + drawn.shape[2]
                nodes[int(start) : stop, first : first + step].copy_(drawn.permute(2, 0, 1))
        tables = (self._firsts, self._weights, self._steps)
        white = white_share(self.perturbation.lengths) if self.perturbation.correlated else None
        return SmoothNoise(nodes.flatten(1), *tables, self._tables.shape, self._axes, white)

    def _drawn(
        self, lattice: NodeLattice, cells: torch.Tensor, samples: torch.Tensor
    ) -> torch.Tensor:
        """Return the smooth noise of every label on the nodes, (b, L, *nodes)."""
        antithetic, count = self.perturbation.antithetic, self._n_labels
        drawn = samples & ~1 if antithetic else samples
        sign = (1 - 2 * (samples & 1)).double() if antithetic else torch.ones_like(drawn).double()
        words = self._bits(drawn, cells.reshape(-1), count + count % 2, lattice.stream)
        white = lattice.scale * sign[:, None, None] * _normal(words)[:, :count]
        nodes = white.reshape(len(samples), count, *cells.shape)
        for k, axis in enumerate(lattice.axes):
            taps = axis.taps.tolist()
            nodes = sum(
                (tap * nodes.narrow(2 + k, j, axis.nodes) for j, tap in enumerate(taps)),
                start=torch.zeros((), dtype=torch.float64, device=self._device),
            )
        return nodes

    def _bits(
        self, samples: torch.Tensor, cells: torch.Tensor, count: int, stream: int
    ) -> torch.Tensor:
        """Return 32 random bits each, (b, count, cells), as ``noise.gumbel.bits`` does."""
        low, high = (int(word) for word in key_words(self.perturbation.seed))
        blocks = torch.arange(-(-count // 4), device=cells.device)[:, None]
        counter = torch.broadcast_tensors(
            cells & 0xFFFFFFFF, samples[:, None, None], blocks, (cells >> 32) | (stream << 16)
        )
        words = torch.stack(philox_twin(counter, (low, high)), 2)  # (b, blocks, 4, cells)
        return words.flatten(1, 2)[:, :count]


def _normal(words: torch.Tensor) -> torch.Tensor:
    """Turn an even number of rows of random bits, (b, rows, cells), into normal ones."""
    u = (words.double() + 0.5) * 2.0**-32
    radius = torch.sqrt(-2 * torch.log(u[:, 0::2]))
    angle = 2 * math.pi * u[:, 1::2]
    return torch.stack([radius * torch.cos(angle), radius * torch.sin(angle)], 2).flatten(1, 2)
