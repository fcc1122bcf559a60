"""Where labels compete: uncertain voxels grouped into locations, and what to call each.

A location is one border or area between the same two labels: a rim around a tumour is one
location, however many pieces it falls into.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.posterior import UNCERTAIN, UNDECIDED
from perturb_mpm.report.data import ReportData
from perturb_mpm.report.planes import FRONT, RIGHT, TOP, Voxel, grid_axes, to_mm

GAP_MM = 6.0
"""Pieces between the same two labels that are no farther apart are one location."""

_AROUND_MM = 4.0
_COMPETING = 0.75  # of the strongest competition in the location: where one may jump to
_SIDES = {RIGHT: ("left", "right"), FRONT: ("back", "front"), TOP: ("lower", "upper")}
_ORDER = (TOP, FRONT, RIGHT)  # in which two sides are named: "upper left"
_ONE_SIDED = 0.3  # of half of a label's width: how far off its middle a location has a side
_SECOND_SIDE = 0.7  # of the first: from here on two sides are named

Voxels = NDArray[np.int64]  # (n, 3) indices


@dataclass(frozen=True)
class UncertainLocation:
    """One location where two labels compete."""

    rank: int  # from 1, the most uncertain
    where: str  # in words, such as "front border of oedema"
    labels: tuple[str, str]  # the two that compete, the more probable first
    shares: tuple[float, float]  # their mean probabilities
    volume_ml: float
    wrong_ml: float  # expected by the probabilities
    mean_entropy_bits: float
    centre_mm: tuple[float, float, float]  # scanner coordinates, to the right, front and top
    centre_voxel: tuple[int, int, int]  # where to look: exactly these two labels compete there
    voxels: int


def uncertain_locations(data: ReportData, limit: int = 10) -> list[UncertainLocation]:
    """Return the locations where most is uncertain, at most ``limit``.

    Every uncertain voxel belongs to the two labels that are most probable in it. Voxels of the same
    two labels that are connected, or no farther apart than ``GAP_MM``, are one location. Locations
    are ranked by the volume expected to be wrong: the sum of one minus the largest probability.
    """
    uncertain, _ = uncertain_voxels(data)
    voxels = np.argwhere(uncertain)  # (n, 3)
    shares = data.marginals[:, *voxels.T]  # (L, n)
    wrong = 1.0 - shares.max(axis=0, initial=0).astype(np.float64)  # (n,)
    leading = np.argsort(-shares, axis=0, kind="stable")[:2]
    pairs = np.sort(leading, axis=0)  # (2, n) the two most probable labels, the smaller first
    groups = pairs[0] * len(data.label_names) + pairs[1]  # (n,)
    totals = {int(group): float(wrong[groups == group].sum()) for group in np.unique(groups)}
    parts: list[tuple[float, Voxels, tuple[int, int]]] = []  # voxels expected to be wrong first
    for group in sorted(totals, key=lambda each: (-totals[each], each)):
        sure = sorted((total for total, _, _ in parts), reverse=True)
        if len(sure) >= limit and sure[limit - 1] > totals[group]:
            break  # nothing of this pair, or of any after it, is among the first
        pair = divmod(group, len(data.label_names))
        members = np.flatnonzero(groups == group)
        parts += [
            (float(wrong[members[part]].sum()), voxels[members[part]], pair)
            for part in _connect(voxels[members], data.spacing)
        ]
    parts.sort(key=lambda each: (-each[0], each[1][0].tolist()))
    surroundings = _Surroundings(data)
    return [
        _describe(rank, part, pair, count, surroundings)
        for rank, (count, part, pair) in enumerate(parts[:limit], start=1)
    ]


def uncertain_voxels(data: ReportData) -> tuple[NDArray[np.bool_], str]:
    """Return which voxels count as uncertain, and the rule in words.

    Where no voxel is certainly uncertain, as with few samples, those that are undecided count.
    """
    uncertain = data.uncertainty == UNCERTAIN
    undecided = (data.uncertainty == UNDECIDED) & (data.entropy > 0)
    if not uncertain.any() and undecided.any():
        return undecided, "undecided at this number of samples"
    return uncertain, "uncertain"


def _connect(voxels: Voxels, spacing: tuple[float, float, float]) -> Iterator[NDArray[np.bool_]]:
    """Yield which voxels belong together, (n,) each: connected but for small gaps."""
    from scipy.ndimage import distance_transform_edt, label

    corner = voxels.min(axis=0)
    shape = tuple(np.ptp(voxels, axis=0) + 1)
    free = np.ones(shape, dtype=bool)
    free[tuple((voxels - corner).T)] = False
    near = ~free | (distance_transform_edt(free, sampling=spacing) <= GAP_MM / 2)
    pieces, count = label(near, structure=np.ones((3, 3, 3)))
    owner = _at(pieces, voxels - corner)
    for piece in range(1, count + 1):
        yield owner == piece


def _describe(
    rank: int, voxels: Voxels, pair: tuple[int, int], wrong: float, surroundings: _Surroundings
) -> UncertainLocation:
    data = surroundings.data
    voxel_ml = math.prod(data.spacing) / 1000.0
    shares = data.marginals[:, *voxels.T]  # (L, n)
    means = shares.mean(axis=1, dtype=np.float64)  # (L,)
    first, second = sorted(pair, key=lambda each: (-means[each], each))
    centre = _most_uncertain_voxel(voxels, np.minimum(shares[first], shares[second]), data)
    return UncertainLocation(
        rank=rank,
        where=surroundings.describe(voxels, (first, second), centre),
        labels=(data.label_names[first], data.label_names[second]),
        shares=(float(means[first]), float(means[second])),
        volume_ml=len(voxels) * voxel_ml,
        wrong_ml=wrong * voxel_ml,
        mean_entropy_bits=float(_at(data.entropy, voxels).mean(dtype=np.float64)),
        centre_mm=to_mm(data.affine, centre),
        centre_voxel=centre,
        voxels=len(voxels),
    )


def _most_uncertain_voxel(voxels: Voxels, weaker: NDArray[np.floating], data: ReportData) -> Voxel:
    """Return where most of a location's doubt is near, among voxels where both labels are strong.

    ``weaker`` (n,) is the probability of the weaker of both labels.
    """
    from scipy.ndimage import gaussian_filter

    corner = voxels.min(axis=0)
    here = np.zeros(tuple(np.ptp(voxels, axis=0) + 1), dtype=np.float32)
    here[tuple((voxels - corner).T)] = _at(data.entropy, voxels)
    around = gaussian_filter(here, [_AROUND_MM / step for step in data.spacing], mode="constant")
    strong = weaker >= _COMPETING * weaker.max()
    best = int(np.argmax(np.where(strong, _at(around, voxels - corner), -1.0)))
    i, j, k = (int(index) for index in voxels[best])
    return i, j, k


def _at(volume: NDArray[Any], voxels: Voxels) -> NDArray[Any]:
    values: NDArray[Any] = volume[tuple(voxels.T)]
    return values


def label_centre(data: ReportData) -> Voxel:
    """Return the labelled voxel nearest to the middle of all; of the mask where none is."""
    for where in (data.labels > 0, data.mask):
        voxels = np.argwhere(where)
        if len(voxels):
            away = np.linalg.norm((voxels - voxels.mean(axis=0)) * data.spacing, axis=1)
            i, j, k = voxels[np.argmin(away)]
            return int(i), int(j), int(k)
    i, j, k = (size // 2 for size in data.mask.shape)
    return i, j, k


class _Surroundings:
    """Says where voxels of one patient lie. Sides are the patient's."""

    def __init__(self, data: ReportData) -> None:
        self.data = data
        self._sizes = np.bincount(data.labels.ravel(), minlength=len(data.label_names))
        self._parts = cache(self._label_parts)

    def describe(self, voxels: Voxels, pair: tuple[int, int], centre: Voxel) -> str:
        """Return where voxels lie, such as "front border of oedema".

        ``pair`` are the labels that compete there. Where the file does not say how the patient
        lies, the voxel ``centre`` is named instead of a side.
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

    def _side(self, voxels: Voxels, region: Voxels) -> str:
        """Return on which side of a region voxels lie: "front", "upper left", or nothing."""
        if not self.data.oriented or not len(region):
            return ""
        turn = self.data.affine[:3, :3].T
        weights = self.data.entropy[*voxels.T].astype(np.float64) + 1e-9
        points = region @ turn  # (m, 3) mm, but for the origin
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
        named = {int(first)}
        if abs(off[second]) >= _SECOND_SIDE * abs(off[first]):
            named.add(int(second))
        return " ".join(_SIDES[axis][int(off[axis] > 0)] for axis in _ORDER if axis in named)

    def _part(self, around: Voxels, label: int) -> Voxels:
        """Return the connected part of a label that most of these voxels belong to."""
        parts = self._parts(label)
        counts = np.bincount(parts[*around.T])
        counts[0] = 0
        return np.argwhere(parts == counts.argmax())

    def _label_parts(self, label: int) -> NDArray[np.int32]:
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
