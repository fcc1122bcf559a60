"""Smooth random fields for the engine: their nodes, and how the voxels see them.

The nodes are those of ``field_nodes.py``, drawn for many samples at once on the device.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from perturb_mpm.engines.gpu.layout import Layout
from perturb_mpm.engines.gpu.perturb_kernel import Fields, philox_twin
from perturb_mpm.model import Grid
from perturb_mpm.noise import (
    INDEX_BITS,
    SUPPORT,
    Axis,
    Field,
    Perturbation,
    key_words,
    node_lattices,
)

MOST_AXES = 4
NUMBERS_AT_ONCE = 2**26


class FieldDrawer:
    """The fields of one perturbation on one grid; see ``perturb_kernel.Fields`` for the tables."""

    def __init__(
        self, perturbation: Perturbation, grid: Grid, n_labels: int, device: torch.device
    ) -> None:
        self.perturbation = perturbation
        self._n_labels = n_labels
        self._device = device
        self._shape = (1,) * (MOST_AXES - grid.ndim) + grid.shape
        self._axes = grid.ndim
        lattices = node_lattices(perturbation.fields, grid, n_labels)
        self._lattices = [lattice.axes for lattice in lattices]
        self._members = _by_length(perturbation.fields)
        rows = [math.prod(lattice.shape) for lattice in lattices]
        self._starts = np.concatenate([[0], np.cumsum(rows)]).astype(np.int64)
        self._firsts, self._weights, self._steps = (
            torch.from_numpy(table).to(device) for table in self._make_tables()
        )

    @property
    def nodes(self) -> int:
        """The number of nodes of all fields."""
        return int(self._starts[-1])

    def draw(self, samples: NDArray[np.int64], layout: Layout) -> Fields:
        """Draw the fields of some samples on their nodes, each against label 0's."""
        labels, padded = layout.n_labels - 1, layout.padded
        nodes = torch.zeros(
            (max(1, self.nodes), layout.stride), dtype=torch.float32, device=self._device
        )
        shaped = nodes[:, : layout.width].unflatten(1, (-1, padded))  # (R, B, P)
        numbers = torch.from_numpy(np.asarray(samples, dtype=np.int64)).to(self._device)
        for axes, members, start in zip(self._lattices, self._members, self._starts):
            cells = _cell_names(axes, self._device)
            step = max(1, NUMBERS_AT_ONCE // (cells.numel() * (layout.n_labels + 4)))
            for first in range(0, len(samples), step):
                drawn = self._drawn(axes, members, cells, numbers[first : first + step])
                against_first = (drawn[:, 1:] - drawn[:, :1]).flatten(2)  # (b, L − 1, nodes)
                stop = int(start) + against_first.shape[2]
                block = shaped[int(start) : stop, first : first + step, :labels]
                block.copy_(against_first.permute(2, 0, 1))
        tables = (self._firsts, self._weights, self._steps)
        return Fields(nodes, *tables, self._shape, self._axes)

    def _drawn(
        self,
        axes: list[Axis],
        members: list[tuple[int, Field]],
        cells: torch.Tensor,
        samples: torch.Tensor,
    ) -> torch.Tensor:
        """Return the sum over the fields of scale times field on the nodes, (b, L, *nodes)."""
        antithetic = self.perturbation.antithetic
        drawn = samples & ~1 if antithetic else samples
        sign = (1 - 2 * (samples & 1)).double() if antithetic else torch.ones_like(drawn).double()
        shape = (len(samples), self._n_labels, *cells.shape)
        nodes = torch.zeros(shape, dtype=torch.float64, device=self._device)
        for stream, field in members:
            count = self._n_labels if field.labels is None else 1
            words = self._bits(drawn, cells.reshape(-1), count + count % 2, stream)
            white = field.scale * sign[:, None, None] * _normal(words)[:, :count]
            where = list(range(self._n_labels)) if field.labels is None else list(field.labels)
            nodes[:, where] += white.reshape(len(samples), count, *cells.shape)
        for k, axis in enumerate(axes):
            taps = axis.taps.tolist()
            nodes = sum(
                (tap * nodes.narrow(2 + k, j, axis.nodes) for j, tap in enumerate(taps)),
                start=torch.zeros((), dtype=torch.float64, device=self._device),
            )
        return nodes

    def _bits(
        self, samples: torch.Tensor, cells: torch.Tensor, count: int, stream: int
    ) -> torch.Tensor:
        """Return 32 random bits each, (b, count, cells), as ``noise.bits`` does."""
        low, high = (int(word) for word in key_words(self.perturbation.seed))
        blocks = torch.arange(-(-count // 4), device=cells.device)[:, None]
        counter = torch.broadcast_tensors(
            cells & 0xFFFFFFFF, samples[:, None, None], blocks, (cells >> 32) | (stream << 16)
        )
        words = torch.stack(philox_twin(counter, (low, high)), 2)  # (b, blocks, 4, cells)
        return words.flatten(1, 2)[:, :count]

    def _make_tables(self) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]:
        count, longest = len(self._lattices), max(self._shape)
        firsts = np.zeros((count, MOST_AXES, longest), dtype=np.int64)
        weights = np.zeros((count, MOST_AXES, longest, SUPPORT), dtype=np.float32)
        steps = np.zeros((count, MOST_AXES), dtype=np.int64)
        for f, axes in enumerate(self._lattices):
            padding = MOST_AXES - len(axes)
            weights[f, :padding, 0, 0] = 1
            firsts[f, 0, :] = self._starts[f]
            for k, axis in enumerate(axes):
                here = slice(axis.low, axis.low + len(axis.first))
                step = math.prod(other.nodes for other in axes[k + 1 :])
                firsts[f, padding + k, here] += step * axis.first
                weights[f, padding + k, here] = axis.weights
                steps[f, padding + k] = step
        return firsts, weights, steps


def _by_length(fields: tuple[Field, ...]) -> list[list[tuple[int, Field]]]:
    """Return the fields of each length with their streams, in the order of ``node_lattices``."""
    members: dict[float, list[tuple[int, Field]]] = {}
    for k, field in enumerate(fields):
        if field.scale > 0:
            members.setdefault(field.length_mm, []).append((1 + k, field))
    return list(members.values())


def _cell_names(axes: list[Axis], device: torch.device) -> torch.Tensor:
    """Return the index of each cell in the random numbers, (*cells)."""
    names = torch.zeros((), dtype=torch.int64, device=device)
    for k, axis in enumerate(axes):
        margin = len(axis.taps) - 1
        along = torch.arange(axis.nodes + margin, device=device) + axis.first_cell + margin
        names = names[..., None] | (along << (k * (INDEX_BITS // len(axes))))
    return names


def _normal(words: torch.Tensor) -> torch.Tensor:
    """Turn an even number of rows of random bits, (b, rows, cells), into normal ones."""
    u = (words.double() + 0.5) * 2.0**-32
    radius = torch.sqrt(-2 * torch.log(u[:, 0::2]))
    angle = 2 * math.pi * u[:, 1::2]
    return torch.stack([radius * torch.cos(angle), radius * torch.sin(angle)], 2).flatten(1, 2)
