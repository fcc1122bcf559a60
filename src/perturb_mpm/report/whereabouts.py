"""Where a place lies, in words: at which border of which label, on which side of the patient."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.report.data import ReportData
from perturb_mpm.report.planes import FRONT, RIGHT, TOP, grid_axes

_SIDES = {RIGHT: ("left", "right"), FRONT: ("back", "front"), TOP: ("lower", "upper")}
_ORDER = (TOP, FRONT, RIGHT)  # in which two sides are said: "upper left"
_ONE_SIDED = 0.3  # of half of a label's width: how far off its middle a place is on one side
_SECOND_SIDE = 0.7  # of the first: from here on two sides are said

Voxels = NDArray[np.int64]  # (n, 3) indices


class Whereabouts:
    """Says where places of one patient lie. Sides are the patient's."""

    def __init__(self, data: ReportData) -> None:
        self.data = data
        self._sizes = np.bincount(data.labels.ravel(), minlength=len(data.label_names))
        self._parts = cache(self._connected)

    def of(self, voxels: Voxels, pair: tuple[int, int], centre: tuple[int, int, int]) -> str:
        """Return where voxels lie, such as "front border of oedema".

        ``pair`` are the labels that compete there. Where the file does not say how the patient
        lies, the voxel ``centre`` is said in place of a side.
        """
        names, labels = self.data.label_names, self.data.labels
        near = "" if self.data.oriented else f" near voxel {', '.join(map(str, centre))}"
        around = _around(voxels, labels.shape)
        here = [label for label in pair if (labels[*around.T] == label).any()]
        if len(here) == 2:
            owner = min((label for label in pair if label), key=lambda each: self._sizes[each])
            side = self._side(voxels, self._part(around, owner))
            if side:
                return f"{side} border of {names[owner]}"
            return f"border of {names[owner]}{near or ', all around'}"
        if here and here[0]:
            side = self._side(voxels, self._part(around, here[0]))
            return f"{side} part of {names[here[0]]}" if side else f"inside {names[here[0]]}{near}"
        for other in pair:
            if other and self._sizes[other]:
                side = self._side(voxels, np.argwhere(labels == other))
                apart = f"apart from {names[other]}"
                return f"{apart}, on its {side} side" if side else f"{apart}{near}"
        side = self._side(voxels, np.argwhere(self.data.mask))
        return f"{side} part of the image" if side else f"middle of the image{near}"

    def _side(self, voxels: Voxels, of: Voxels) -> str:
        """Return on which side of some voxels others lie: "front", "upper left", or nothing."""
        if not self.data.oriented or not len(of):
            return ""
        turn = self.data.affine[:3, :3].T
        weights = self.data.entropy[*voxels.T].astype(np.float64) + 1e-9
        points = of @ turn  # (m, 3) mm, but for the origin
        low, high = np.percentile(points, [2.5, 97.5], axis=0)
        half = np.maximum((high - low) / 2, np.abs(turn).max(axis=0) / 2)  # (3,) mm
        middle = np.average(voxels, axis=0, weights=weights) @ turn
        off = (middle - points.mean(axis=0)) / half
        for world, axis in enumerate(grid_axes(self.data.affine)):
            if self.data.labels.shape[axis] == 1:  # of a flat image
                off[world] = 0.0
        first, second, _ = np.argsort(-np.abs(off), kind="stable")
        if abs(off[first]) < _ONE_SIDED:
            return ""
        said = {int(first)}
        if abs(off[second]) >= _SECOND_SIDE * abs(off[first]):
            said.add(int(second))
        return " ".join(_SIDES[axis][int(off[axis] > 0)] for axis in _ORDER if axis in said)

    def _part(self, around: Voxels, label: int) -> Voxels:
        """Return the connected part of a label that most of these voxels belong to."""
        parts = self._parts(label)
        counts = np.bincount(parts[*around.T])
        counts[0] = 0
        return np.argwhere(parts == counts.argmax())

    def _connected(self, label: int) -> NDArray[np.int32]:
        from scipy.ndimage import label as connected

        parts: NDArray[np.int32]
        parts, _ = connected(self.data.labels == label, structure=np.ones((3, 3, 3)))
        return parts


def _around(voxels: Voxels, shape: tuple[int, ...]) -> Voxels:
    """Return voxels and their neighbours, each of them once."""
    from scipy.ndimage import binary_dilation

    corner = voxels.min(axis=0) - 1
    here = np.zeros(tuple(np.ptp(voxels, axis=0) + 3), dtype=bool)
    here[tuple((voxels - corner).T)] = True
    grown = np.argwhere(binary_dilation(here, structure=np.ones((3, 3, 3)))) + corner
    inside: Voxels = grown[((grown >= 0) & (grown < shape)).all(axis=1)]
    return inside
