"""Volumes cut and turned as browsers get them: axes to the right, to the front, to the top.

Axes are only swapped and mirrored, nothing is interpolated. In this order a voxel of NiiVue's
drawing is a voxel of the file, whatever the order of the user's files is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Box = tuple[slice, slice, slice]


@dataclass(frozen=True)
class Turning:
    """The way from a file's voxels to the browser's and back, by the file's affine (4, 4).

    Only what lies in ``box`` goes that way, voxel by voxel or in its steps.
    """

    file_affine: NDArray[np.float64]
    file_shape: tuple[int, ...]
    box: Box
    affine: NDArray[np.float64] = field(init=False)
    """Takes turned voxel indices to mm."""
    _axes: NDArray[np.float64] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        from nibabel.orientations import inv_ornt_aff, io_orientation

        cut = np.diag([*(span.step or 1 for span in self.box), 1.0])
        cut[:3, 3] = [span.start for span in self.box]
        shape = [len(range(*span.indices(n))) for span, n in zip(self.box, self.file_shape)]
        axes = io_orientation(self.file_affine)
        affine = self.file_affine @ cut @ inv_ornt_aff(axes, shape)
        object.__setattr__(self, "_axes", axes)
        object.__setattr__(self, "affine", affine)

    def turned(self, volume: NDArray[Any]) -> NDArray[Any]:
        """Return what lies in the box of (X, Y, Z) in the browser's order, a view."""
        from nibabel.orientations import apply_orientation

        turned: NDArray[Any] = apply_orientation(volume[self.box], self._axes)
        return turned

    def file_index(self) -> NDArray[np.int64]:
        """Return the C-order index in the file of each turned voxel, the first axis fastest."""
        own = np.arange(np.prod(self.file_shape), dtype=np.int64).reshape(self.file_shape)
        return self.turned(own).ravel(order="F")


def box_around(mask: NDArray[np.bool_], margin: int, every: int = 1) -> Box:
    """Return the box of the mask, ``margin`` voxels wider, in steps of ``every`` voxels."""
    spans = []
    for axis in range(3):
        others = tuple(other for other in range(3) if other != axis)
        inside = np.flatnonzero(mask.any(axis=others))
        start = max(int(inside[0]) - margin, 0)
        spans.append(slice(start, min(int(inside[-1]) + 1 + margin, mask.shape[axis]), every))
    return spans[0], spans[1], spans[2]
