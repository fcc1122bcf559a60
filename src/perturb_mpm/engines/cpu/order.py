"""The order in which the engine walks through the voxels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.model import Grid


def morton_order(grid: Grid) -> NDArray[np.int64]:
    """Return the voxels inside the mask along a Morton curve, (N,).

    Voxels that are close in the image stay close in memory, and with them the lattice vertices
    they touch.
    """
    code = np.zeros(grid.voxels, dtype=np.int64)
    coordinates = np.unravel_index(grid.index, grid.shape)
    bits = 63 // grid.ndim
    for axis, along in enumerate(coordinates):
        for bit in range(min(bits, int(along.max()).bit_length())):
            code |= ((along.astype(np.int64) >> bit) & 1) << (bit * grid.ndim + axis)
    return np.argsort(code, kind="stable")
