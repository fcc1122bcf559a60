"""Where voxels are, in mm, and smooth random fields that do not depend on where they are asked."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]  # float32; the type is wider because mypy widens products

FIELD_OF_VIEW_MM = (160.0, 200.0, 168.0)  # left to right, back to front, down to up
CENTRE_MM = (0.0, -17.0, 5.0)  # the middle of the brain in the atlas's coordinates

_LATTICE_MM = 240.0
_SPLINE_SD = (151.0 / 315.0) ** 1.5  # of white noise under a cubic B-spline in three dimensions


@dataclass(frozen=True)
class PhantomGrid:
    """Voxel centres at the crossings of three axes.

    Examples
    --------
    >>> from perturb_mpm.phantom import PhantomGrid
    >>> PhantomGrid.over_the_brain((8.0, 8.0, 8.0)).shape
    (20, 25, 21)
    """

    axes: tuple[Array, Array, Array]  # mm, (X,), (Y,), (Z,)
    spacing: tuple[float, float, float]  # mm

    @classmethod
    def over_the_brain(cls, spacing: tuple[float, float, float]) -> PhantomGrid:
        """Return the grid of that spacing that covers the field of view."""
        sizes = [round(extent / step) for extent, step in zip(FIELD_OF_VIEW_MM, spacing)]
        x, y, z = (
            (middle + (np.arange(size) - (size - 1) / 2.0) * step).astype(np.float32)
            for middle, size, step in zip(CENTRE_MM, sizes, spacing)
        )
        return cls((x, y, z), spacing)

    @property
    def shape(self) -> tuple[int, int, int]:
        """The number of voxels along each axis."""
        x, y, z = self.axes
        return len(x), len(y), len(z)

    @property
    def voxel_ml(self) -> float:
        """The volume of one voxel."""
        return float(np.prod(self.spacing)) / 1000.0

    @property
    def affine(self) -> NDArray[np.float64]:
        """The (4, 4) matrix from voxel indices to mm."""
        matrix = np.diag([*self.spacing, 1.0])
        matrix[:3, 3] = [axis[0] for axis in self.axes]
        return matrix

    def points(self) -> Array:
        """Return where every voxel's centre lies, (3, X, Y, Z) mm."""
        return np.stack(np.meshgrid(*self.axes, indexing="ij"))


@dataclass(frozen=True)
class RandomSource:
    """Everything random about one patient: each quantity has a name and its own stream.

    Examples
    --------
    >>> from perturb_mpm.phantom import PhantomGrid, RandomSource
    >>> grid = PhantomGrid.over_the_brain((8.0, 8.0, 8.0))
    >>> RandomSource(seed=3).noise(grid, "folds", scale_mm=20.0).shape == grid.shape
    True
    """

    seed: int

    def rng(self, name: str) -> np.random.Generator:
        """Return the stream of that name, from its beginning."""
        return np.random.default_rng([self.seed, zlib.crc32(name.encode())])

    def noise(self, grid: PhantomGrid, name: str, scale_mm: float) -> Array:
        """Return unit-variance noise (X, Y, Z) that varies over ``scale_mm``.

        The random numbers sit on a lattice of their own, so that the field of a name is the same
        whichever grid asks for it.
        """
        nodes = int(np.ceil(_LATTICE_MM / scale_mm)) + 4
        lattice = self.rng(name).standard_normal((nodes, nodes, nodes), dtype=np.float32)
        first = [middle - scale_mm * (nodes - 1) / 2.0 for middle in CENTRE_MM]
        return spline(lattice, first, scale_mm, grid) / np.float32(_SPLINE_SD)


def spline(lattice: Array, first_mm: list[float], step_mm: float, grid: PhantomGrid) -> Array:
    """Return the cubic B-spline over ``lattice``, whose first node is at ``first_mm``.

    One axis after the other, four taps each: no matrix product, so that the sum has one order on
    every machine.
    """
    result = lattice
    for axis in range(3):
        position = (grid.axes[axis] - np.float32(first_mm[axis])) / np.float32(step_mm)
        node = np.floor(position).astype(np.intp)
        f = position - node
        weights = ((1 - f) ** 3, 3 * f**3 - 6 * f**2 + 4, 1 + 3 * f * (1 + f - f**2), f**3)
        shape = [-1 if each == axis else 1 for each in range(3)]
        last = result.shape[axis] - 1
        taps = [
            np.take(result, np.clip(node + offset, 0, last), axis=axis) for offset in (-1, 0, 1, 2)
        ]
        for tap, weight in zip(taps, weights):
            np.multiply(tap, (weight / np.float32(6.0)).reshape(shape), out=tap)
        result = taps[0]
        for tap in taps[1:]:
            result += tap
    return result


def soft_step(signed: Array, soft: float) -> Array:
    """Return 0 far below zero, 1 far above, with an edge about ``soft`` wide."""
    return np.float32(0.5) + np.float32(0.5) * np.tanh(signed / np.float32(soft))


def level_for_volume(
    score: Array, inside: NDArray[np.bool_], volume_ml: float, grid: PhantomGrid
) -> float:
    """Return the level that ``volume_ml`` of the voxels ``inside`` lie above."""
    values = score[inside]
    count = round(volume_ml / grid.voxel_ml)
    if count <= 0:
        return float(np.inf)
    if count >= values.size:
        return float(-np.inf)
    highest = np.partition(values, values.size - count - 1)
    above, below = highest[values.size - count :].min(), highest[values.size - count - 1]
    return float(0.5 * (float(above) + float(below)))
