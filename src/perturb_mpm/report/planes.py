"""Axial, coronal and sagittal slices as a radiologist looks at them, whatever the voxel order.

Scanner coordinates are those of NIfTI: mm that grow to the patient's right, front and top. Slices
follow the grid of the image: an oblique scan is shown along its own axes, which is said beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.model import bounding_box

RIGHT, FRONT, TOP = 0, 1, 2  # axes of scanner coordinates

Voxel = tuple[int, int, int]
Box = tuple[slice, slice, slice]

_LETTERS = (("L", "R"), ("P", "A"), ("I", "S"))  # towards less and towards more of each axis
_SECOND_LETTER_FROM = math.sin(math.radians(20.0))


@dataclass(frozen=True)
class Plane:
    """How slices across one axis of the grid are turned into pictures."""

    name: str
    across: int  # the axis of the grid that a slice is cut across
    rows: int  # the axis that runs down the picture
    columns: int  # the axis that runs to the right
    flip_rows: bool
    flip_columns: bool
    looks_along: int  # the scanner axis on which the slice has its position
    left: str  # which side of the patient each edge of the picture shows
    right: str
    top: str
    bottom: str

    def cut(self, volume: NDArray[Any], index: int, box: Box) -> NDArray[Any]:
        """Return the part of a slice that lies in ``box``, (rows, columns) of a picture."""
        where: list[slice | int] = list(box)
        where[self.across] = index
        picture = volume[tuple(where)]
        if self.rows > self.columns:
            picture = picture.T
        return picture[:: -1 if self.flip_rows else 1, :: -1 if self.flip_columns else 1]

    def sum_slices(self, volume: NDArray[Any]) -> NDArray[np.float64]:
        """Return the sum of each slice of a volume (X, Y, Z)."""
        others = tuple(axis for axis in range(3) if axis != self.across)
        sums: NDArray[np.float64] = volume.sum(axis=others, dtype=np.float64)
        return sums

    def slice_mm(self, affine: NDArray[np.float64], index: int) -> float:
        """Return where a slice lies, in scanner coordinates, mm."""
        return float(affine[self.looks_along, self.across] * index + affine[self.looks_along, 3])

    def position(self, voxel: Voxel, box: Box) -> tuple[float, float]:
        """Return how far down and to the right a voxel's middle lies, from 0 to 1."""
        down = _share(voxel[self.rows], box[self.rows], flipped=self.flip_rows)
        return down, _share(voxel[self.columns], box[self.columns], flipped=self.flip_columns)


def radiological_planes(affine: NDArray[np.float64]) -> tuple[Plane, Plane, Plane]:
    """Return axial, coronal and sagittal planes for an affine (4, 4).

    The patient's right is on the left of axial and coronal pictures, the front on top of axial
    and on the left of sagittal ones, and the top of the head is on top.
    """
    axes = grid_axes(affine)
    return (
        _plane("axial", TOP, FRONT, RIGHT, axes, affine),
        _plane("coronal", FRONT, TOP, RIGHT, axes, affine),
        _plane("sagittal", RIGHT, TOP, FRONT, axes, affine),
    )


def grid_axes(affine: NDArray[np.float64]) -> tuple[int, int, int]:
    """Return the axis of the grid that runs most nearly along each scanner axis."""
    from nibabel.orientations import io_orientation

    right, front, top = np.argsort(io_orientation(affine)[:, 0])
    return int(right), int(front), int(top)


def tilt_degrees(affine: NDArray[np.float64]) -> float:
    """Return the largest angle between an axis of the grid and its scanner axis."""
    directions = np.abs(_directions(affine))
    cosines = [directions[world, axis] for world, axis in enumerate(grid_axes(affine))]
    return math.degrees(math.acos(min(1.0, *cosines)))


def to_mm(affine: NDArray[np.float64], voxel: Voxel) -> tuple[float, float, float]:
    """Return the scanner coordinates of a voxel's middle."""
    x, y, z = affine[:3, :3] @ np.asarray(voxel, dtype=float) + affine[:3, 3]
    return float(x), float(y), float(z)


def in_words(axis: int, mm: float, digits: int = 0) -> str:
    """Return a coordinate with the patient's side instead of a sign, such as ``L 23``."""
    size = math.floor(abs(mm) * 10**digits + 0.5) / 10**digits
    return f"{_LETTERS[axis][mm >= 0 or size == 0]} {size:.{digits}f}"


def _plane(
    name: str,
    looks_along: int,
    down: int,
    right: int,
    axes: tuple[int, int, int],
    affine: NDArray[np.float64],
) -> Plane:
    """Return a plane whose rows and columns run opposite to the scanner axes ``down``, ``right``.

    Pictures start at the patient's right, front and top, where coordinates are largest.
    """
    directions = _directions(affine)
    rows, columns = directions[:, axes[down]], directions[:, axes[right]]  # (3,), unit vectors
    flip_rows, flip_columns = bool(rows[down] > 0), bool(columns[right] > 0)
    downwards, rightwards = (-rows if flip_rows else rows), (-columns if flip_columns else columns)
    return Plane(
        name=name,
        across=axes[looks_along],
        rows=axes[down],
        columns=axes[right],
        flip_rows=flip_rows,
        flip_columns=flip_columns,
        looks_along=looks_along,
        left=_side(-rightwards),
        right=_side(rightwards),
        top=_side(-downwards),
        bottom=_side(downwards),
    )


def _side(direction: NDArray[np.float64]) -> str:
    """Return the side of the patient that a unit vector points to, two letters where oblique."""
    order = np.argsort(-np.abs(direction), kind="stable")
    strong = [axis for axis in order if abs(direction[axis]) > _SECOND_LETTER_FROM]
    return "".join(_LETTERS[axis][int(direction[axis] > 0)] for axis in strong)


def _directions(affine: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the unit vectors along the grid's axes, one a column."""
    edges = affine[:3, :3]
    return edges / np.linalg.norm(edges, axis=0)


def _share(index: int, span: slice, *, flipped: bool) -> float:
    share: float = (index - span.start + 0.5) / (span.stop - span.start)
    return 1.0 - share if flipped else share


def box_around(mask: NDArray[np.bool_], margins: Sequence[int], every: int = 1) -> Box:
    """Return the box of a mask with a margin in voxels along each axis, in steps of ``every``.

    Where the mask is empty it is the box of the whole volume.
    """
    inside = bounding_box(mask if mask.any() else np.ones_like(mask))
    x, y, z = (
        slice(max(0, each.start - margin), min(size, each.stop + margin), every)
        for each, size, margin in zip(inside, mask.shape, margins, strict=True)
    )
    return x, y, z
