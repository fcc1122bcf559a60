"""Keys for the vertices of a lattice, and the Morton curve along which voxels and vertices lie."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.model import Grid

if TYPE_CHECKING:
    import torch

Integers = TypeVar("Integers", NDArray[np.int64], "torch.Tensor")
"""Both libraries write the same arithmetic: what takes these runs on either device."""

MARGIN = 8
"""Room in the keys for the neighbours of the outermost vertices."""

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
        """Return the place of each vertex on a Morton curve through the lattice, (V,)."""
        if self.sizes is None:
            return keys * 0
        rest, coordinates = keys - self.lowest, []
        for size in self.sizes:
            coordinates.append(rest % size)
            rest = rest // size
        place: Integers = morton_code(coordinates, self.sizes)
        return place


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
    """Return places on a Morton curve, (M,), of d whole coordinates (M,) below these sizes.

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
    codes = np.zeros(grid.voxels, dtype=np.int64)
    for axis, along in enumerate(np.unravel_index(grid.index, grid.shape)):
        only = [np.arange(grid.shape[axis]) * (axis == other) for other in range(grid.ndim)]
        codes |= morton_code(only, grid.shape)[along]
    order: NDArray[np.int64] = np.argsort(codes, kind="stable")
    return order
