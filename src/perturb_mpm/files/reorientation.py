"""The same grid with its axes in another order or direction: turned exactly, voxel by voxel."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.files.geometry import (
    TOLERANCE_MM,
    Geometry,
    axis_codes,
    displacement_mm,
)
from perturb_mpm.files.nifti import require_same_grid
from perturb_mpm.files.source import Source


def on_grid(
    voxels: NDArray[Any], source: Source, geometry: Geometry, grid_source: Source, grid: Geometry
) -> tuple[NDArray[Any], str | None]:
    """Return voxels (X, Y, Z, …) on another grid, and what was done to them.

    A file whose voxels lie on the same grid in another order is turned; nothing is interpolated.
    Any other grid is refused.
    """
    if displacement_mm(geometry.affine, grid.affine, grid.shape) <= TOLERANCE_MM:
        require_same_grid(source, geometry, grid_source, grid)
        return voxels, None
    turned = _turned(voxels, geometry, grid)
    if turned is None:
        require_same_grid(source, geometry, grid_source, grid)
        return voxels, None
    return turned, (
        f"{source.path.name} has its axes in another order or direction than "
        f"{grid_source.path.name} ({axis_codes(geometry)} and {axis_codes(grid)}) but the same "
        "grid: it was turned to fit, exactly"
    )


def _turned(voxels: NDArray[Any], geometry: Geometry, grid: Geometry) -> NDArray[Any] | None:
    """Return the voxels in the order of a grid, None where they do not lie on it."""
    from nibabel.orientations import (
        apply_orientation,
        inv_ornt_aff,
        io_orientation,
        ornt_transform,
    )

    own, wanted = io_orientation(geometry.affine), io_orientation(grid.affine)
    if np.isnan(own).any() or np.isnan(wanted).any():
        return None
    change = ornt_transform(own, wanted)
    turned: NDArray[Any] = apply_orientation(voxels, change)
    affine = geometry.affine @ inv_ornt_aff(change, geometry.shape)
    shape = cast("tuple[int, int, int]", turned.shape[:3])
    if shape != grid.shape or displacement_mm(affine, grid.affine, shape) > TOLERANCE_MM:
        return None
    return np.require(turned, requirements=["C", "W"])
