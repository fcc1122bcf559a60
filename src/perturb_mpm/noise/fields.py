"""Smooth random fields in millimetres, as a pure function of (seed, sample, field, place, label).

Independent noise at every voxel averages out over a region, so that sampled volumes hardly differ.
Fields make whole neighbourhoods err together: Ũ = U − γ − Σ_k a_k g_k.

A field g has mean 0 and variance 1 at every voxel, and between two voxels at a distance of r mm the
correlation exp(−r² / 2ℓ²): 0.61 at one length ℓ, 0.14 at two, 0.01 at three. White noise on cells
is smoothed to nodes, a few for each length, and the voxels interpolate between the nodes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perturb_mpm import checks
from perturb_mpm.model import Grid
from perturb_mpm.noise.gumbel import INDEX_BITS, bits, checked_samples, checked_seed

SUPPORT = 3  # the nodes that a voxel sees along an axis

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


class NodeLattice:
    """The nodes around the voxels inside the mask, for all fields of one length."""

    def __init__(self, length_mm: float, grid: Grid, n_labels: int) -> None:
        self._grid = grid
        self._n_labels = n_labels
        self.members: list[tuple[int, float, Collection[int] | None]] = []
        self.axes = [
            axis_of(length_mm, spacing, int(along.min()), int(along.max()))
            for spacing, along in zip(grid.spacing, np.unravel_index(grid.index, grid.shape))
        ]
        self.shape = tuple(axis.nodes for axis in self.axes)
        names = np.zeros((), dtype=np.int64)
        for k, axis in enumerate(self.axes):
            along = axis.first_cell + np.arange(axis.nodes + 2 * _REACH) + 2 * _REACH
            names = names[..., np.newaxis] | (along << (k * (INDEX_BITS // grid.ndim)))
        self.cells = names  # (*cells): the index of each cell in the random numbers

    def add(self, stream: int, scale: float, labels: Collection[int] | None) -> None:
        """Add a field, drawn from a stream of random numbers, of these labels or of each."""
        self.members.append((stream, scale, labels))

    def draw(self, seed: int, sample: int, *, antithetic: bool) -> NDArray[np.float64]:
        """Return the sum over the fields of scale times field, on the nodes, (L, *nodes)."""
        drawn, sign = (sample & ~1, 1 - 2 * (sample & 1)) if antithetic else (sample, 1)
        cells = np.zeros((self._n_labels, *self.cells.shape))
        for stream, scale, labels in self.members:
            count = self._n_labels if labels is None else 1
            words = bits(seed, np.array([drawn]), self.cells.ravel(), count + count % 2, stream)
            white = sign * scale * normal(words[0])[:count].reshape(count, *self.cells.shape)
            cells[slice(None) if labels is None else list(labels)] += white
        nodes = cells
        for k, axis in enumerate(self.axes):
            nodes = _smoothed(nodes, 1 + k, axis)
        return nodes

    def at_voxels(self, nodes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Interpolate (*nodes) to the voxels inside the mask, (N,)."""
        box = nodes
        for k, axis in enumerate(self.axes):
            weights = axis.weights.reshape(-1, *(1,) * (box.ndim - 1 - k), SUPPORT)
            near = [weights[..., j] * box.take(axis.first + j, axis=k) for j in range(SUPPORT)]
            box = near[0] + near[1] + near[2]
        return box[self._places]

    @cached_property
    def _places(self) -> tuple[NDArray[np.int64], ...]:
        """Where each voxel inside the mask lies in the box around them, (N,) for each axis."""
        coordinates = np.unravel_index(self._grid.index, self._grid.shape)
        return tuple(along - axis.low for along, axis in zip(coordinates, self.axes))


def longest_axis(ndim: int) -> int:
    """Return how many voxels an axis may have for each of its cells to have a name."""
    return (1 << (INDEX_BITS // ndim)) - 4 * _REACH


def axis_of(length_mm: float, spacing: float, low: int, high: int) -> Axis:
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


def normal(words: NDArray[np.uint32]) -> NDArray[np.float64]:
    """Turn an even number of rows of random bits into independent normal rows (Box–Muller)."""
    u = (words.astype(np.float64) + 0.5) * 2.0**-32
    radius = np.sqrt(-2 * np.log(u[0::2]))
    angle = 2 * np.pi * u[1::2]
    values = np.empty_like(u)
    values[0::2] = radius * np.cos(angle)
    values[1::2] = radius * np.sin(angle)
    return values


def _square_root(length: float) -> NDArray[np.float64]:
    """Return the symmetric filter that makes white noise Gaussian-correlated, length in voxels."""
    lags = np.fft.fftfreq(_LAGS, 1 / _LAGS)
    power = np.fft.fft(np.exp(-(lags**2) / (2 * length**2))).real
    return np.fft.ifft(np.sqrt(np.maximum(power, 0))).real


def _smoothed(cells: NDArray[np.float64], k: int, axis: Axis) -> NDArray[np.float64]:
    """Weigh the cells along array axis k by the taps, wherever each tap has a cell."""
    total = np.zeros(())
    for j, tap in enumerate(axis.taps):
        window = (slice(None),) * k + (slice(j, j + axis.nodes),)
        total = total + tap * cells[window]
    return total


@dataclass(frozen=True)
class Field:
    """A smooth random field; ``scale`` times itself is subtracted from the unary energies.

    ``length_mm`` is ℓ, and ``math.inf`` makes one number for the whole image. With ``labels`` None
    every label has a field of its own. A collection of labels shares one field, and the others
    have none; shared by all labels it changes nothing.
    """

    length_mm: float
    scale: float
    labels: Collection[int] | None = None

    def __post_init__(self) -> None:
        length = self.length_mm
        if length != math.inf:
            length = checks.number(length, "length_mm of Field", positive=True)
        object.__setattr__(self, "length_mm", float(length))
        scale = checks.nats(self.scale, "scale of Field")
        object.__setattr__(self, "scale", scale)
        object.__setattr__(self, "labels", _checked_labels(self.labels))

    def check(self, grid: Grid, n_labels: int) -> None:
        """Raise where the field does not fit the image or its labels; nothing is drawn."""
        if self.labels is not None:
            checks.in_range(np.array(self.labels), "labels of Field", n_labels)
        longest = longest_axis(grid.ndim)
        if max(grid.shape) > longest:
            raise ValueError(
                f"fields must be on images of at most {longest} voxels along each of "
                f"{grid.ndim} axes, got shape {grid.shape}"
            )

    def describe(self) -> dict[str, object]:
        """Return what makes the field, as values that JSON can hold; infinity is "inf"."""
        return {
            "length_mm": "inf" if math.isinf(self.length_mm) else self.length_mm,
            "scale": self.scale,
            "labels": None if self.labels is None else list(self.labels),
        }


def sample_fields(
    fields: Sequence[Field],
    seed: int,
    samples: ArrayLike,
    grid: Grid,
    n_labels: int,
    *,
    antithetic: bool = False,
) -> Iterator[NDArray[np.float32]]:
    """Yield for each sample what the fields add up to, Σ_k a_k g_k inside the mask, (L, N).

    With ``antithetic`` sample 2t + 1 is the opposite of sample 2t.
    """
    seed = checked_seed(seed)
    chosen = checked_samples(samples)
    antithetic = checks.flag(antithetic, "antithetic")
    lattices = node_lattices(fields, grid, n_labels)

    def one(sample: int) -> NDArray[np.float32]:
        total = np.zeros((n_labels, grid.voxels), dtype=np.float32)
        for lattice in lattices:
            for label, nodes in enumerate(lattice.draw(seed, sample, antithetic=antithetic)):
                total[label] += lattice.at_voxels(nodes)
        return total

    return (one(sample) for sample in chosen.tolist())


def node_lattices(fields: Sequence[Field], grid: Grid, n_labels: int) -> list[NodeLattice]:
    """Return a lattice for each length among the fields of a scale above 0.

    Field k takes stream 1 + k of the random numbers, whatever the others are.
    """
    lattices: dict[float, NodeLattice] = {}
    for k, field in enumerate(fields):
        field.check(grid, n_labels)
        if field.scale > 0:
            if field.length_mm not in lattices:
                lattices[field.length_mm] = NodeLattice(field.length_mm, grid, n_labels)
            lattices[field.length_mm].add(1 + k, field.scale, field.labels)
    return list(lattices.values())


def _checked_labels(labels: object) -> tuple[int, ...] | None:
    if labels is None:
        return None
    if isinstance(labels, np.ndarray):
        labels = labels.tolist()
    if isinstance(labels, str) or not isinstance(labels, Iterable):
        raise TypeError(
            f"labels of Field must be None or a collection of labels, got {labels!r}: "
            "write labels=[label]"
        )
    each = {
        checks.integer(label, "labels of Field", minimum=0, maximum=checks.MOST_LABELS - 1)
        for label in labels
    }
    if not each:
        raise ValueError(
            "labels of Field must name at least one label, got none: "
            "labels=None gives every label a field of its own"
        )
    return tuple(sorted(each))
