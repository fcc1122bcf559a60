"""Volumes turned to the order in which browsers get them: to the right, to the front, to the top.

Only axes are swapped and mirrored, nothing is interpolated. In this order a voxel of NiiVue's
drawing is a voxel of the file, whatever the order of the user's files is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Turning:
    """The way from a file's voxel order to the browser's and back, by the file's affine (4, 4)."""

    file_affine: NDArray[np.float64]
    file_shape: tuple[int, ...]
    affine: NDArray[np.float64] = field(init=False)
    """Takes turned voxel indices to mm."""
    _axes: NDArray[np.float64] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        from nibabel.orientations import inv_ornt_aff, io_orientation

        axes = io_orientation(self.file_affine)
        affine = self.file_affine @ inv_ornt_aff(axes, self.file_shape)
        object.__setattr__(self, "_axes", axes)
        object.__setattr__(self, "affine", affine)

    def turned(self, volume: NDArray[Any]) -> NDArray[Any]:
        """Return (X, Y, Z) in the browser's order, a view."""
        from nibabel.orientations import apply_orientation

        turned: NDArray[Any] = apply_orientation(volume, self._axes)
        return turned

    def file_index(self) -> NDArray[np.int64]:
        """Return the C-order index in the file of each turned voxel, the first axis fastest."""
        own = np.arange(np.prod(self.file_shape), dtype=np.int64).reshape(self.file_shape)
        return self.turned(own).ravel(order="F")
