"""Where labels compete: uncertain voxels grouped into places, and the slices through them.

A place is one border or area between the same two labels: a rim around a tumour is one place,
however many pieces it falls into.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.posterior import UNCERTAIN, UNDECIDED
from perturb_mpm.report.data import ReportData
from perturb_mpm.report.pictures import Picture, Studio, Voxel
from perturb_mpm.report.planes import to_mm
from perturb_mpm.report.whereabouts import Whereabouts

GAP_MM = 6.0
"""Pieces between the same two labels that are no farther apart are one place."""
MOST_SLICED = 3
"""How many places are shown in slices."""
THUMBNAIL_REACH_MM = 25.0

_AROUND_MM = 4.0
_COMPETING = 0.75  # of the strongest competition in the place: where one may jump to

Voxels = NDArray[np.int64]  # (n, 3) indices


@dataclass(frozen=True)
class UncertainPlace:
    """One place where two labels compete."""

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


def uncertain_places(data: ReportData, limit: int = 10) -> list[UncertainPlace]:
    """Return the places where most is uncertain, at most ``limit``.

    Every uncertain voxel belongs to the two labels that are most probable in it. Voxels of the same
    two labels that are connected, or no farther apart than ``GAP_MM``, are one place. Places are
    ranked by the volume that is expected to be wrong, one minus the largest probability summed up.
    """
    uncertain, _ = uncertain_voxels(data)
    voxels = np.argwhere(uncertain)  # (n, 3)
    shares = data.marginals[:, *voxels.T]  # (L, n)
    wrong = 1.0 - shares.max(axis=0, initial=0).astype(np.float64)  # (n,)
    pairs = _competing(shares)  # (2, n)
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
            for part in _connected(voxels[members], data.spacing)
        ]
    parts.sort(key=lambda each: (-each[0], each[1][0].tolist()))
    where = Whereabouts(data)
    return [
        _describe(rank, part, pair, count, where)
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


def _competing(shares: NDArray[np.floating]) -> NDArray[np.int64]:
    """Return the two most probable labels of each voxel, the smaller first: (L, n) to (2, n)."""
    leading = np.argsort(-shares, axis=0, kind="stable")[:2]
    pairs: NDArray[np.int64] = np.sort(leading, axis=0).astype(np.int64)
    return pairs


def _connected(voxels: Voxels, spacing: tuple[float, float, float]) -> Iterator[NDArray[np.bool_]]:
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
    rank: int, voxels: Voxels, pair: tuple[int, int], wrong: float, where: Whereabouts
) -> UncertainPlace:
    data = where.data
    voxel_ml = math.prod(data.spacing) / 1000.0
    shares = data.marginals[:, *voxels.T]  # (L, n)
    means = shares.mean(axis=1, dtype=np.float64)  # (L,)
    first, second = sorted(pair, key=lambda each: (-means[each], each))
    centre = _jump(voxels, np.minimum(shares[first], shares[second]), data)
    return UncertainPlace(
        rank=rank,
        where=where.of(voxels, (first, second), centre),
        labels=(data.label_names[first], data.label_names[second]),
        shares=(float(means[first]), float(means[second])),
        volume_ml=len(voxels) * voxel_ml,
        wrong_ml=wrong * voxel_ml,
        mean_entropy_bits=float(_at(data.entropy, voxels).mean(dtype=np.float64)),
        centre_mm=to_mm(data.affine, centre),
        centre_voxel=centre,
        voxels=len(voxels),
    )


def _jump(voxels: Voxels, weaker: NDArray[np.floating], data: ReportData) -> Voxel:
    """Return where most of a place's doubt is near, among voxels where both labels are strong.

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


@dataclass(frozen=True)
class PlaceSlices:
    """A place seen in every plane."""

    place: UncertainPlace | None  # None: nothing is uncertain; this is the middle of the labels
    pictures: tuple[Picture, ...]


def sliced(studio: Studio, places: list[UncertainPlace]) -> list[PlaceSlices]:
    """Return the first places in every plane, or the labels' middle where there is none."""
    if not places:
        return [PlaceSlices(None, _all_planes(studio, middle_of_labels(studio.data)))]
    return [
        PlaceSlices(each, _all_planes(studio, each.centre_voxel)) for each in places[:MOST_SLICED]
    ]


def thumbnails(studio: Studio, places: list[UncertainPlace]) -> list[Picture]:
    """Return a small picture around each place."""
    return [
        studio.entropy_picture(
            studio.planes[0], place.centre_voxel, sequences=1, reach_mm=THUMBNAIL_REACH_MM
        )
        for place in places
    ]


def middle_of_labels(data: ReportData) -> Voxel:
    """Return the labelled voxel nearest to the middle of all; of the mask where none is."""
    for where in (data.labels > 0, data.mask):
        voxels = np.argwhere(where)
        if len(voxels):
            away = np.linalg.norm((voxels - voxels.mean(axis=0)) * data.spacing, axis=1)
            i, j, k = voxels[np.argmin(away)]
            return int(i), int(j), int(k)
    i, j, k = (size // 2 for size in data.mask.shape)
    return i, j, k


def _all_planes(studio: Studio, voxel: Voxel) -> tuple[Picture, ...]:
    return tuple(studio.entropy_picture(plane, voxel) for plane in studio.planes)
