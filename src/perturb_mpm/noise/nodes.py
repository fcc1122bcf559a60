"""Smooth Gaussian noise in millimetres, as a pure function of (seed, sample, position, label).

It has mean 0 and variance 1 at every voxel, and between two voxels at a distance of r mm the
correlation exp(−r² / 2ℓ²): 0.61 at one length ℓ, 0.14 at two, 0.01 at three. White noise on cells
is smoothed to nodes, a few for each length, and the voxels interpolate between the nodes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.model import Grid
from perturb_mpm.noise.gumbel import INDEX_BITS, bits

SUPPORT = 3  # the nodes that a voxel sees along an axis
MOST_AXES = 4

_REACH = 3  # the cells that a node sees on each side
_NODES_PER_LENGTH = 1.5
_LAGS = 64  # correlations shorter than two voxels are nothing long before half of this
_WHITE = 0.1  # a length in voxels at which neighbours are independent, to 1e-21


@dataclass(frozen=True)
class Axis:
    """How the voxels low, low + 1, … along one axis see the nodes, and these the cells."""

    low: int
    first_cell: int  # counted from the image's first voxel: the margin before it is below 0
    nodes: int
    first: NDArray[np.int64]  # (n,), the first of the SUPPORT nodes of each voxel
    weights: NDArray[np.float64]  # (n, SUPPORT)
    taps: NDArray[np.float64]  # (2·_REACH + 1,)

    @property
    def with_all_voxels(self) -> Axis:
        """The axis with a node at every voxel, which sees that one alone."""
        count = len(self.first)
        alone = np.zeros((count, SUPPORT))
        alone[:, 0] = 1
        return replace(self, nodes=count, first=np.arange(count), weights=alone)


class NodeLattice:
    """The nodes around the voxels inside the mask, for smooth noise of one length.

    ``scale`` is the noise's standard deviation, ``stream`` that of the random numbers.
    """

    def __init__(
        self, length_mm: float, grid: Grid, n_labels: int, *, scale: float, stream: int
    ) -> None:
        self._grid = grid
        self._n_labels = n_labels
        self.scale = scale
        self.stream = stream
        self.axes = [
            make_axis(length_mm, spacing, int(along.min()), int(along.max()))
            for spacing, along in zip(grid.spacing, np.unravel_index(grid.index, grid.shape))
        ]
        self.shape = tuple(axis.nodes for axis in self.axes)
        names = np.zeros((), dtype=np.int64)
        for k, axis in enumerate(self.axes):
            along = axis.first_cell + np.arange(axis.nodes + 2 * _REACH) + 2 * _REACH
            names = names[..., np.newaxis] | (along << (k * (INDEX_BITS // grid.ndim)))
        self.cells = names  # (*cells): the index of each cell in the random numbers

    @property
    def voxels_per_node(self) -> float:
        """How coarse the nodes are, along the axis where it is least; 0 without a spline."""
        return min(
            len(axis.first) / axis.nodes if axis.weights[:, 0].any() else 0.0 for axis in self.axes
        )

    def draw(self, seed: int, sample: int, *, antithetic: bool) -> NDArray[np.float64]:
        """Return the smooth noise of every label on the nodes, (L, *nodes)."""
        drawn, sign = (sample & ~1, 1 - 2 * (sample & 1)) if antithetic else (sample, 1)
        count = self._n_labels
        samples, cells = np.array([drawn]), self.cells.ravel()
        words = bits(seed, samples, cells, count + count % 2, self.stream)
        white = sign * self.scale * normal(words[0], count)
        nodes = white.reshape(count, *self.cells.shape)
        for k, axis in enumerate(self.axes):
            nodes = _smooth_axis(nodes, 1 + k, axis)
        return nodes

    def at_voxels(self, nodes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Interpolate (*nodes) to the voxels inside the mask, (N,)."""
        box = nodes
        for k, axis in enumerate(self.axes):
            weights = axis.weights.reshape(-1, *(1,) * (box.ndim - 1 - k), SUPPORT)
            near = [weights[..., j] * box.take(axis.first + j, axis=k) for j in range(SUPPORT)]
            box = near[0] + near[1] + near[2]
        return box[self._nearest]

    @cached_property
    def _nearest(self) -> tuple[NDArray[np.int64], ...]:
        """Where each voxel inside the mask lies in the box around them, (N,) for each axis."""
        coordinates = np.unravel_index(self._grid.index, self._grid.shape)
        return tuple(along - axis.low for along, axis in zip(coordinates, self.axes))


def longest_axis(ndim: int) -> int:
    """Return how many voxels an axis may have for each of its cells to have a name."""
    return (1 << (INDEX_BITS // ndim)) - 4 * _REACH


def make_axis(length_mm: float, spacing: float, low: int, high: int) -> Axis:
    """Lay nodes along the voxels low … high of one axis."""
    voxels = np.arange(low, high + 1)
    reach = np.arange(-_REACH, _REACH + 1)
    nodes_per_voxel = _NODES_PER_LENGTH * spacing / length_mm
    weights = np.zeros((voxels.size, SUPPORT))
    weights[:, 1] = 1
    if math.isinf(length_mm):
        nearest = np.zeros_like(voxels)
        taps = (reach == 0).astype(np.float64)
    elif nodes_per_voxel > 1:
        nearest = voxels
        taps = _square_root(max(length_mm / spacing, _WHITE))[reach]
    else:
        position = voxels * nodes_per_voxel
        nearest = np.floor(position + 0.5).astype(np.int64)
        offset = position - nearest
        weights[:, 0] = (0.5 - offset) ** 2 / 2
        weights[:, 1] = 0.75 - offset**2
        weights[:, 2] = (0.5 + offset) ** 2 / 2
        # Variances add up: ℓ²/2 is the taps' and, a quarter in units of the nodes, the spline's.
        taps = np.exp(-(reach**2) / (_NODES_PER_LENGTH**2 - 0.5))
    seen = np.zeros((voxels.size, SUPPORT + 2 * _REACH))  # the weight of each cell
    for j in range(SUPPORT):
        seen[:, j : j + taps.size] += weights[:, j : j + 1] * taps
    weights /= np.sqrt((seen**2).sum(axis=1, keepdims=True))
    first = nearest - 1
    start = int(first[0])
    return Axis(low, start - _REACH, int(first[-1]) + SUPPORT - start, first - start, weights, taps)


def normal(words: NDArray[np.uint32], count: int) -> NDArray[np.float64]:
    """Turn ``count`` rows of random bits, or one more, into independent normals (Box–Muller)."""
    u = (words.astype(np.float64) + 0.5) * 2.0**-32
    radius = np.sqrt(-2 * np.log(u[0::2]))
    angle = 2 * np.pi * u[1::2]
    values = np.empty((count, *u.shape[1:]))
    values[0::2] = radius * np.cos(angle)
    values[1::2] = radius[: count // 2] * np.sin(angle[: count // 2])
    return values


def _square_root(length: float) -> NDArray[np.float64]:
    """Return the symmetric filter that makes white noise Gaussian-correlated, length in voxels."""
    lags = np.fft.fftfreq(_LAGS, 1 / _LAGS)
    power = np.fft.fft(np.exp(-(lags**2) / (2 * length**2))).real
    return np.fft.ifft(np.sqrt(np.maximum(power, 0))).real


def _smooth_axis(cells: NDArray[np.float64], k: int, axis: Axis) -> NDArray[np.float64]:
    """Weigh the cells along array axis k by the taps, wherever each tap has a cell."""
    total = np.zeros(())
    for j, tap in enumerate(axis.taps):
        window = (slice(None),) * k + (slice(j, j + axis.nodes),)
        total = total + tap * cells[window]
    return total


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
    def build(cls, lattices: Sequence[Sequence[Axis]], grid: Grid) -> NodeTables:
        """Make the tables of some lattices, given by their axes, on a grid."""
        shapes = [tuple(axis.nodes for axis in axes) for axes in lattices]
        rows = [math.prod(each) for each in shapes]
        starts = np.concatenate([[0], np.cumsum(rows)]).astype(np.int64)
        shape = (1,) * (MOST_AXES - grid.ndim) + grid.shape
        count, longest = len(lattices), max(shape)
        firsts = np.zeros((count, MOST_AXES, longest), dtype=np.int64)
        weights = np.zeros((count, MOST_AXES, longest, SUPPORT), dtype=np.float32)
        steps = np.zeros((count, MOST_AXES), dtype=np.int64)
        for f, axes in enumerate(lattices):
            padding = MOST_AXES - len(axes)
            weights[f, :padding, 0, 0] = 1
            firsts[f, 0, :] = starts[f]
            for k, axis in enumerate(axes):
                here = slice(axis.low, axis.low + len(axis.first))
                step = math.prod(shapes[f][k + 1 :])
                firsts[f, padding + k, here] += step * axis.first
                weights[f, padding + k, here] = axis.weights
                steps[f, padding + k] = step
        return cls(starts, shape, firsts, weights, steps)

    @property
    def nodes(self) -> int:
        """The number of nodes of all lattices."""
        return int(self.starts[-1])
