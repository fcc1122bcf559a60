"""How far an edit is felt."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.grid import Grid
from perturb_mpm.kernels import BilateralKernel, Kernel, SpatialKernel

# Beyond so many sigmas of the widest kernel, where it is below 0.04 % of its height, voxels keep
# what the run gave them.
REACH_SIGMAS = 4.0


def reach_mm(kernels: Sequence[Kernel]) -> float:
    """Return how far from an edit maps may change, in mm; infinite where that is not known."""
    return REACH_SIGMAS * max((_widest_mm(kernel) for kernel in kernels), default=0.0)


def within_reach(edited: NDArray[np.bool_], grid: Grid, reach: float) -> NDArray[np.bool_]:
    """Return which voxels of the mask lie within ``reach`` mm of an edited one; all (N,)."""
    from scipy.ndimage import distance_transform_edt

    if not edited.any():
        return edited
    far = ~grid.scatter(edited, ~np.True_)  # (*spatial)
    near: NDArray[np.bool_] = distance_transform_edt(far, sampling=grid.spacing) <= reach
    return grid.gather(near)


def _widest_mm(kernel: Kernel) -> float:
    if isinstance(kernel, SpatialKernel):
        return float(np.max(kernel.sigma))
    if isinstance(kernel, BilateralKernel):
        return float(np.max(kernel.sigma_space))
    return math.inf
