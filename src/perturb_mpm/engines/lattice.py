"""What the CPU and the GPU engine share: one lattice, one order of voxels, one grouping of kernels.

Neither engine imports the other. Here stands, in NumPy alone, whatever makes their results equal.

**Blur.** The permutohedral lattice blurs a little more than the Gaussian it stands for. Features
scaled by a few percent make up for it; how many depends on how densely the voxels fill the lattice.
An engine tries ``CALIBRATION_SCALES`` on a compact part of the image, where that costs little: the
run of ``CALIBRATION_VOXELS`` voxels with most foreground, compared with rows of the exact kernel.

**Keys.** Vertices have 64-bit keys; voxels and vertices lie along a Morton curve.

**Groups.** Kernels with a Potts compatibility form one group, with their weights; every other
compatibility is a group of its own. With y the messages of a group (labels 1 … L−1, what label 0
has is left of the row sum R), the pairwise energy of label l against label 0's is

    Σ_{l'≥1} A[l, l'] y_l' + c[l] R
    c[l] = μ[l, 0] − μ[0, 0],   A[l, l'] = μ[l, l'] − μ[0, l'] − c[l]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from perturb_mpm import checks
from perturb_mpm.model import Grid, PairwiseTerm

if TYPE_CHECKING:
    import torch

Integers = TypeVar("Integers", NDArray[np.int64], "torch.Tensor")
"""Both libraries write the same arithmetic: what takes these runs on either device."""

CALIBRATION_SCALES = (1.0, 1.015, 1.03, 1.045, 1.06, 1.08)
CALIBRATION_VOXELS = 60_000
CALIBRATION_ROWS = 128


@dataclass(frozen=True)
class Blur:
    """How the lattice is blurred: the same taps along every direction, directions fused or not.

    ``taps`` are the weights at 0, ±1, ±2 … steps; ``fused`` directions are blurred in one pass
    whose taps are found by their keys, so that a missing vertex between two present ones does not
    cut them apart. A missing vertex is added when at least the share ``dilation`` of its neighbours
    is there (0: never). ``scale`` multiplies the features: more than 1 makes the kernel narrower.
    """

    taps: tuple[float, ...] = (1.0, 0.5)
    fused: int = 1
    dilation: float = 0.0
    scale: float = 1.0

    @property
    def variance(self) -> float:
        """The variance of the splat, the blur and the slice of the published lattice is 2/3."""
        spread = sum(2 * k * k * w for k, w in enumerate(self.taps))
        return 1 / 6 + spread / (self.taps[0] + 2 * sum(self.taps[1:]))

    def tap(self, step: int) -> float:
        """Return the weight of a tap, 0 beyond the last."""
        return self.taps[abs(step)] if abs(step) < len(self.taps) else 0.0

    def fewest_neighbours(self, dimensions: int) -> int:
        """Return how many of its 2(d + 1) neighbours a missing vertex needs to be added."""
        return math.ceil(2 * (dimensions + 1) * self.dilation)

    def feature_scales(self, dimensions: int) -> NDArray[np.float32]:
        """Return what each feature is multiplied by, (d,): the whole filter has unit variance."""
        # Rounded where the published algorithm rounds, to find the very same vertices.
        wanted = float(np.float32(math.sqrt(self.variance) * (dimensions + 1) * self.scale))
        each = [wanted / math.sqrt((j + 2) * (j + 1)) for j in range(dimensions)]
        return np.array(each, dtype=np.float32)

    def passes(
        self, directions: NDArray[np.int64]
    ) -> list[tuple[NDArray[np.int64], NDArray[np.float64]]]:
        """Return the key steps of the taps of each pass, and their weights.

        ``directions`` are the key steps along the d + 1 directions of the lattice.
        """
        reach = range(-len(self.taps) + 1, len(self.taps))
        passes = []
        for first in range(0, len(directions), self.fused):
            steps, weights = np.zeros(1, dtype=np.int64), np.ones(1)
            # Arrays of one key, not numbers: hashed keys wrap around, and arrays do so in silence.
            for direction in directions[first : first + self.fused, np.newaxis]:
                steps = np.concatenate([steps + k * direction for k in reach])
                weights = np.concatenate([weights * self.tap(k) for k in reach])
            passes.append((steps, weights))
        return passes

    def responses(self, dimensions: int) -> NDArray[np.float64]:
        """Return what a vertex gets of another of its simplex, 0 … d steps apart, (d + 1,).

        The steps lie along different directions, and since all d + 1 directions together lead back
        to where they started, the vertices lie as well d + 1 − distance steps apart the other way.
        """
        reach = len(self.taps) - 1
        return np.array(
            [
                sum(
                    self.tap(turn + 1) ** distance * self.tap(turn) ** (dimensions + 1 - distance)
                    for turn in range(-reach - 1, reach + 1)
                )
                for distance in range(dimensions + 1)
            ]
        )


BLURS = {
    "plain": Blur(),
    "calibrated": Blur(fused=2, dilation=3 / 8),
    "accurate": Blur(taps=(1.5, 1.0, 0.25), dilation=1 / 8),
}
"""The blur of each accuracy that works on a lattice."""


def published_gain(dimensions: int) -> float:
    """Return what the published filter multiplies the lattice's output by."""
    return 1 / (1 + 2.0**-dimensions)


@cache
def calibration_rows(count: int) -> NDArray[np.int64]:
    """Return which of ``count`` voxels a lattice is compared with the exact kernel at."""
    rows = min(CALIBRATION_ROWS, count)
    return checks.read_only(np.random.default_rng(0).choice(count, size=rows, replace=False))


MARGIN = 8
"""Keys left free for the neighbours of the outermost vertices."""

LARGEST_BOX = 2**62
HASH_SEED = 20170615
CURVE_BITS = 63


@dataclass(frozen=True)
class KeyCode:
    """How vertex coordinates c (d,) become a 64-bit key, strides·c, of one of several copies.

    The key is a mixed-radix number where the lattices' boxes fit in 62 bits, so that different
    vertices always have different keys. For larger boxes (many channels) ``sizes`` is None, the
    strides are random odd numbers, and two of a million vertices collide with a probability
    below 1e-7.
    """

    strides: NDArray[np.int64]  # (d,)
    copy_stride: int
    lowest: int  # the smallest key of the first copy
    sizes: tuple[int, ...] | None

    @property
    def directions(self) -> NDArray[np.int64]:
        """The key step along each of the d + 1 directions, (d + 1,)."""
        return np.append(self.strides, -self.strides.sum())

    def curve(self, keys: Integers) -> Integers:
        """Return the position of each vertex on a Morton curve through the lattice, (V,)."""
        if self.sizes is None:
            return keys * 0
        rest, coordinates = keys - self.lowest, []
        for size in self.sizes:
            coordinates.append(rest % size)
            rest = rest // size
        return morton_code(coordinates, self.sizes)


def key_code(
    low: NDArray[np.float64], high: NDArray[np.float64], scales: NDArray[np.float32]
) -> KeyCode:
    """Return the code for features between ``low`` and ``high`` (d,) on copies of the lattice.

    ``scales`` (S, d) are what each of the S copies multiplies the features by.
    """
    copies, d = scales.shape
    steps = np.triu(np.ones((d + 1, d), dtype=np.float32))
    steps[np.arange(1, d + 1), np.arange(d)] = -np.arange(1, d + 1)
    elevation = (steps * scales[:, np.newaxis]).astype(np.float64)  # (S, d + 1, d): x = elevation·f
    coordinates = (elevation[:, d:] - elevation[:, :d]) / (d + 1)  # (S, d, d): c = coordinates·f
    extremes = np.stack([coordinates * low, coordinates * high])
    least = (np.floor(extremes.min(axis=0).sum(axis=2)) - MARGIN).min(axis=0)
    most = (np.ceil(extremes.max(axis=0).sum(axis=2)) + MARGIN).max(axis=0)
    sizes = tuple(int(s) for s in most - least + 1)
    if math.prod(sizes) * copies >= LARGEST_BOX:
        rng = np.random.default_rng(HASH_SEED)
        odd = 2 * np.asarray(rng.integers(-(2**61), 2**61, size=(d + 1,))) + 1
        return KeyCode(odd[:d], int(odd[d]), 0, None)
    strides = [math.prod(sizes[:j]) for j in range(d)]
    lowest = sum(int(c) * stride for c, stride in zip(least, strides, strict=True))
    return KeyCode(np.array(strides, dtype=np.int64), math.prod(sizes), lowest, sizes)


def morton_code(coordinates: Sequence[Integers], sizes: Sequence[int]) -> Integers:
    """Return positions on a Morton curve, (M,), of d whole coordinates (M,) below these sizes.

    Where there are more than 63 bits in all, the upper ones of every coordinate are left out.
    """
    d = len(coordinates)
    code = coordinates[0] * 0
    for axis, (along, size) in enumerate(zip(coordinates, sizes, strict=True)):
        for bit in range(min((size - 1).bit_length(), CURVE_BITS // d)):
            code |= ((along >> bit) & 1) << (bit * d + axis)
    return code


def morton_order(grid: Grid) -> NDArray[np.int64]:
    """Return the voxels inside the mask along a Morton curve, (N,).

    Voxels that are close in the image stay close in memory, and with them the lattice vertices
    they touch.
    """
    if grid.ndim == 1:
        return np.arange(grid.voxels)
    codes = np.zeros(grid.voxels, dtype=np.int64)
    for axis, along in enumerate(np.unravel_index(grid.index, grid.shape)):
        only = [np.arange(grid.shape[axis]) * (axis == other) for other in range(grid.ndim)]
        codes |= morton_code(only, grid.shape)[along]
    return np.argsort(codes, kind="stable")


LARGEST_HALF = 6e4
DECISIVE = 30.0  # nats: e⁻³⁰ is nothing beside 1 in float32


@dataclass(frozen=True)
class KernelGroup:
    """Kernels of one compatibility."""

    members: list[int]  # the kernels
    weights: list[float]  # what multiplies each
    compatibility: NDArray[np.float64]  # (L, L)
    is_potts: bool


def group_kernels(terms: Sequence[PairwiseTerm], n_labels: int) -> list[KernelGroup]:
    """Return at least one group, without kernels where the CRF has none."""
    potts = [(m, t.potts_weight) for m, t in enumerate(terms) if t.potts_weight is not None]
    groups = [
        KernelGroup([m], [1.0], term.compatibility, is_potts=False)
        for m, term in enumerate(terms)
        if term.potts_weight is None
    ]
    if potts or not groups:
        members, weights = [m for m, _ in potts], [w for _, w in potts]
        groups.insert(0, KernelGroup(members, weights, 1 - np.eye(n_labels), is_potts=True))
    return groups


def against_first_label(
    groups: Sequence[KernelGroup],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return A (G, L − 1, L − 1) and c (G, L − 1) of the groups' compatibilities."""
    mu = np.array([group.compatibility for group in groups])  # (G, L, L)
    offsets = mu[:, 1:, 0] - mu[:, :1, 0]
    matrices = mu[:, 1:, 1:] - mu[:, :1, 1:] - offsets[:, :, np.newaxis]
    return matrices, offsets


def energy_ceiling(strongest_message: float) -> float:
    """Return how far above a voxel's lowest energy another one still makes a difference.

    ``strongest_message`` bounds how far the kernels can move the log-odds of two labels.
    """
    return min(strongest_message * 2 + DECISIVE, LARGEST_HALF)
