"""Where labels compete: uncertain voxels grouped into locations, and what to call each.

A location is one border or area between the same two labels. Every border is uncertain as far as a
network blurs it: that much is plain, and one location, however many pieces it falls into. Places
where the doubt is thicker or reaches farther, and those apart from any border, are locations of
their own.

The score of a location: with w the volume expected to be wrong in it, W that of all uncertain
voxels and V the volume of the structure that would change, w / W + min(1, w / (V + V₀)). It is high
where much of the error is, and where much of a structure is expected to change. Places beyond the
plain borders come first, as far as they are ``NOTEWORTHY``, then plain borders, then specks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.model import bounding_box
from perturb_mpm.posterior import UNCERTAIN, UNDECIDED
from perturb_mpm.report.data import ReportData
from perturb_mpm.report.planes import FRONT, RIGHT, TOP, Voxel, grid_axes, to_mm

GAP_MM = 6.0
"""Pieces between the same two labels that are no farther apart are one location."""

PLAIN_REACH = 2.0
"""How far a plain border reaches, in median distances of its uncertain voxels from the line
between the labels: all of them where the border is equally thick everywhere. Also how many times
the usual radius a ball has that fits into the doubt where it is thick."""

SPECK_ML = 0.5
"""V₀ of the score: a structure smaller than this does not make a few voxels important."""

NOTEWORTHY = 0.05
"""The score from which on a place comes before plain borders: as where it holds 5 % of all expected
error, or is expected to change 5 % of its structure, or half of both."""

_FAR_MM = 20.0  # around uncertain voxels: how far off a border between their labels is looked for
_AROUND_MM = 4.0
_COMPETING = 0.75  # of the strongest competition in the location: where one may jump to
_SIDES = {RIGHT: ("left", "right"), FRONT: ("back", "front"), TOP: ("lower", "upper")}
_ORDER = (TOP, FRONT, RIGHT)  # in which two sides are named: "upper left"
_ONE_SIDED = 0.3  # of half of a label's width: how far off its middle a location has a side
_SECOND_SIDE = 0.7  # of the first: from here on two sides are named

Voxels = NDArray[np.int64]  # (n, 3) indices
LocationKind = Literal["border", "thick", "apart"]


@dataclass(frozen=True)
class UncertainLocation:
    """One location where two labels compete."""

    rank: int  # from 1, what to look at first
    kind: LocationKind  # a plain border, doubt far from its border, or apart from any
    where: str  # in words, such as "front border of oedema"
    labels: tuple[str, str]  # the two that compete, the more probable first
    shares: tuple[float, float]  # their mean probabilities
    volume_ml: float
    wrong_ml: float  # expected by the probabilities
    changed: str  # the structure that changes if the second label is right here
    change_ml: float  # by how much
    change_share: float  # of its volume; infinite where the label map has none of it
    reach_mm: float  # of a border: how far it reaches; else the largest distance from one
    mean_entropy_bits: float
    centre_mm: tuple[float, float, float]  # scanner coordinates, to the right, front and top
    centre_voxel: tuple[int, int, int]  # where to look: exactly these two labels compete there
    voxels: int


def uncertain_locations(data: ReportData, limit: int = 10) -> list[UncertainLocation]:
    """Return the locations where most is uncertain, at most ``limit``.

    Every uncertain voxel belongs to the two labels that are most probable in it. Voxels of the same
    two labels that are connected, or no farther apart than ``GAP_MM``, are one location; those of a
    plain border are kept apart from those beyond it. The expected error of voxels is the sum of one
    minus their largest probability; the score by which locations are ranked is above.
    """
    uncertain, _ = uncertain_voxels(data)
    voxels = np.argwhere(uncertain)  # (n, 3)
    shares = data.marginals[:, *voxels.T]  # (L, n)
    wrong = 1.0 - shares.max(axis=0, initial=0).astype(np.float64)  # (n,)
    leading = np.argsort(-shares, axis=0, kind="stable")[:2]
    pairs = np.sort(leading, axis=0)  # (2, n) the two most probable labels, the smaller first
    groups = pairs[0] * len(data.label_names) + pairs[1]  # (n,)
    totals = {int(group): float(wrong[groups == group].sum()) for group in np.unique(groups)}
    surroundings = _Surroundings(data, sum(totals.values()))
    most = {  # the order of a pair of labels if all its voxels were one place
        group: _order(surroundings.score(total, divmod(group, len(data.label_names))), "apart")
        for group, total in totals.items()
    }
    parts: list[_Part] = []
    for group in sorted(totals, key=lambda each: (most[each], each)):
        if len(parts) >= limit and parts[limit - 1].order < min(most[group], (1, most[group][1])):
            break  # nothing of this pair, or of any after it, is among the first
        members = groups == group
        pair = divmod(group, len(data.label_names))
        parts += surroundings.split(voxels[members], wrong[members], pair)
        parts.sort(key=lambda each: (each.order, each.voxels[0].tolist()))
    return [surroundings.describe(rank, part) for rank, part in enumerate(parts[:limit], start=1)]


@dataclass(frozen=True, eq=False)
class _Part:
    """Voxels that are one location."""

    voxels: Voxels
    pair: tuple[int, int]  # the labels that compete, the smaller first
    kind: LocationKind
    reach_mm: float
    wrong: float  # voxels expected to be wrong
    order: tuple[int, float]  # what comes first has the least


def _order(score: float, kind: LocationKind) -> tuple[int, float]:
    """Return what locations are sorted by: noteworthy places, plain borders, specks."""
    return 1 if kind == "border" else 0 if score >= NOTEWORTHY else 2, -score


def uncertain_voxels(data: ReportData) -> tuple[NDArray[np.bool_], str]:
    """Return which voxels count as uncertain, and the rule in words.

    Where no voxel is certainly uncertain, as with few samples, those that are undecided count.
    """
    uncertain = data.uncertainty == UNCERTAIN
    if not uncertain.any():
        undecided = (data.uncertainty == UNDECIDED) & (data.entropy > 0)
        if undecided.any():
            return undecided, "undecided at this number of samples"
    return uncertain, "uncertain"


def _connect(voxels: Voxels, spacing: tuple[float, float, float]) -> Iterator[NDArray[np.bool_]]:
    """Yield which voxels belong together, (n,) each: connected but for small gaps."""
    from scipy.ndimage import label

    corner = voxels.min(axis=0)
    here = np.zeros(tuple(np.ptp(voxels, axis=0) + 1), dtype=bool)
    here[tuple((voxels - corner).T)] = True
    near = _grow(here, GAP_MM / 2, spacing)
    pieces, count = label(near, structure=np.ones((3, 3, 3)))
    owner = _at(pieces, voxels - corner)
    for piece in range(1, count + 1):
        yield owner == piece


def _grow(
    where: NDArray[np.bool_], radius: float, spacing: tuple[float, float, float]
) -> NDArray[np.bool_]:
    """Return what is at most ``radius`` mm from some voxel of a volume (X, Y, Z).

    For a few millimetres this takes a small part of the time of all voxels' distances.
    """
    *across, along = (math.floor(radius / step) for step in spacing)
    grown = where.copy()
    longer = where.copy()  # by ``reach`` voxels along the last axis, both ways
    offsets = np.mgrid[tuple(slice(-most, most + 1) for most in across)].reshape(2, -1).T
    squares = ((offsets * spacing[:2]) ** 2).sum(axis=1)
    for reach in range(along + 1):
        if reach:
            longer[..., reach:] |= where[..., :-reach]
            longer[..., :-reach] |= where[..., reach:]
        end, next_end = ((each * spacing[2]) ** 2 for each in (reach, reach + 1))
        inside = np.sqrt(squares + end) <= radius
        inside &= (np.sqrt(squares + next_end) > radius) | (reach == along)
        for offset in offsets[inside]:
            to = tuple(slice(max(d, 0), min(d, 0) or None) for d in offset)
            of = tuple(slice(max(-d, 0), min(-d, 0) or None) for d in offset)
            grown[to] |= longer[of]
    return grown


def _distances(
    voxels: Voxels, others: Voxels, spacing: tuple[float, float, float], most: float = math.inf
) -> NDArray[np.float64]:
    """Return how far voxels (n, 3) are from the nearest of others, in mm, (n,).

    Infinite where that is more than ``most``, or there are no others.
    """
    from scipy.spatial import cKDTree

    away = np.full(len(voxels), np.inf)
    if len(others):
        tree = cKDTree(others * spacing, balanced_tree=False, compact_nodes=False)
        bound = most * (1 + 1e-9)  # which the tree excludes
        _, nearest = tree.query(voxels * spacing, distance_upper_bound=bound)
        found = np.flatnonzero(nearest < len(others))
        steps = (voxels[found] - others[nearest[found]]) * spacing
        away[found] = np.sqrt((steps**2).sum(axis=1))
    return away


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
    return volume[tuple(voxels.T)]


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

    def __init__(self, data: ReportData, wrong: float) -> None:
        self.data = data
        self._wrong = wrong  # of all uncertain voxels
        found = data.labels > 0
        self._box = bounding_box(found) if found.any() else (slice(0, 1),) * 3
        self._corner = np.array([span.start for span in self._box])
        self._labelled = data.labels[self._box]  # which holds all of the foreground
        self._sizes = np.bincount(self._labelled.ravel(), minlength=len(data.label_names))
        self._parts = cache(self._label_parts)
        self._extent = cache(self._measure_extent)

    def score(self, wrong: float, pair: tuple[int, int]) -> float:
        """Return how early voxels come whose expected error is ``wrong`` voxels."""
        if not wrong:
            return 0.0
        speck = SPECK_ML * 1000.0 / math.prod(self.data.spacing)  # voxels
        change = wrong / (float(self._sizes[self._owner(pair)]) + speck)
        return wrong / self._wrong + min(1.0, change)

    def split(
        self, voxels: Voxels, wrong: NDArray[np.float64], pair: tuple[int, int]
    ) -> Iterator[_Part]:
        """Yield the locations of voxels (n, 3) where the same two labels compete."""
        away = self._border_distances(voxels, pair)  # (n,) mm
        near = away[np.isfinite(away)]
        reach = PLAIN_REACH * float(np.median(near)) if len(near) else 0.0
        reach = max(reach, math.hypot(*self.data.spacing))  # no border is thinner than a voxel
        plain = (away <= reach) & ~self._thick(voxels, away == 0)
        beside = _beside(voxels, plain)
        for some in (plain, ~plain):
            members = np.flatnonzero(some)
            if not len(members):
                continue
            for piece in _connect(voxels[members], self.data.spacing):
                here = members[piece]
                count = float(wrong[here].sum())
                kind: LocationKind = "border"
                if some is not plain:
                    kind = "thick" if beside[here].any() else "apart"
                far = reach if some is plain else float(away[here].max())
                order = _order(self.score(count, pair), kind)
                yield _Part(voxels[here], pair, kind, far, count, order)

    def _thick(self, voxels: Voxels, at_border: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return where a ball fits into these voxels (n, 3) that is too large for a plain border.

        The usual radius is the median of the balls around voxels of the border itself (n,).
        """
        thick = np.zeros(len(voxels), dtype=bool)
        if not at_border.any():
            return thick
        # A flat image has no thickness along its third axis.
        edges = np.array([int(size > 1) for size in self.data.labels.shape])
        corner = voxels.min(axis=0) - edges
        here = np.zeros(tuple(np.ptp(voxels, axis=0) + 1 + 2 * edges), dtype=bool)
        here[tuple((voxels - corner).T)] = True
        around = np.argwhere(_add_neighbours(here) & ~here) + corner
        radii = _distances(voxels, around, self.data.spacing)
        limit = PLAIN_REACH * float(np.median(radii[at_border]))
        middle = voxels[radii > limit]
        near: NDArray[np.bool_] = _distances(voxels, middle, self.data.spacing, limit) <= limit
        return near

    def _border_distances(self, voxels: Voxels, pair: tuple[int, int]) -> NDArray[np.float64]:
        """Return how far voxels are from the border between two labels, in mm.

        Voxels on both sides of it have a distance of 0; infinite where there is no border.
        """
        margins = np.ceil(_FAR_MM / np.array(self.data.spacing)).astype(int)
        corner = np.maximum(voxels.min(axis=0) - margins, 0)
        stop = voxels.max(axis=0) + margins + 1
        labels = self.data.labels[tuple(map(slice, corner, stop))]
        one, other = (labels == each for each in pair)
        border = np.zeros(labels.shape, dtype=np.bool_)
        for before, after in _neighbours(labels.ndim):
            meet = (one[before] & other[after]) | (other[before] & one[after])
            border[before] |= meet
            border[after] |= meet
        return _distances(voxels, np.argwhere(border) + corner, self.data.spacing)

    def _change(self, voxels: Voxels, pair: tuple[int, int]) -> tuple[int, int, float]:
        """Return which label changes if the other is right, by how many voxels and what share."""
        owner = self._owner(pair)
        inside = int((_at(self.data.labels, voxels) == owner).sum())
        outside = len(voxels) - inside
        change = outside if outside >= inside else -inside
        size = int(self._sizes[owner])
        return owner, change, abs(change) / size if size else math.inf

    def _owner(self, pair: tuple[int, int]) -> int:
        """Return the structure that a border belongs to: the smaller that is not background."""
        return min((each for each in pair if each), key=lambda each: self._sizes[each])

    def describe(self, rank: int, part: _Part) -> UncertainLocation:
        """Return what is known of a location."""
        data, voxels = self.data, part.voxels
        voxel_ml = math.prod(data.spacing) / 1000.0
        shares = data.marginals[:, *voxels.T]  # (L, n)
        means = shares.mean(axis=1, dtype=np.float64)  # (L,)
        first, second = sorted(part.pair, key=lambda each: (-means[each], each))
        centre = _most_uncertain_voxel(voxels, np.minimum(shares[first], shares[second]), data)
        changed, change, share = self._change(voxels, part.pair)
        return UncertainLocation(
            rank=rank,
            kind=part.kind,
            where=self._where(part, (first, second), centre),
            labels=(data.label_names[first], data.label_names[second]),
            shares=(float(means[first]), float(means[second])),
            volume_ml=len(voxels) * voxel_ml,
            wrong_ml=part.wrong * voxel_ml,
            changed=data.label_names[changed],
            change_ml=change * voxel_ml,
            change_share=share,
            reach_mm=part.reach_mm,
            mean_entropy_bits=float(_at(data.entropy, voxels).mean(dtype=np.float64)),
            centre_mm=to_mm(data.affine, centre),
            centre_voxel=centre,
            voxels=len(voxels),
        )

    def _where(self, part: _Part, pair: tuple[int, int], centre: Voxel) -> str:
        """Return where voxels lie, such as "front border of oedema".

        Where the file does not say how the patient lies, the voxel ``centre`` is named instead of
        a side.
        """
        voxels = part.voxels
        names, labels = self.data.label_names, self.data.labels
        near = "" if self.data.oriented else f" near voxel {', '.join(map(str, centre))}"
        if part.kind == "thick":
            owner = self._owner(pair)
            beyond = "into" if self._change(voxels, pair)[1] < 0 else "beyond"
            side = self._side(voxels, self._extent(owner))
            border = f"{side} border" if side else "border"
            return f"{border} of {names[owner]}, up to {part.reach_mm:.0f} mm {beyond} it{near}"
        around = _around(voxels, labels.shape)
        here = [label for label in pair if (labels[*around.T] == label).any()]
        if len(here) == 2:
            owner = self._owner(pair)
            side = self._side(voxels, self._extent(owner, self._part(around, owner)))
            if side:
                return f"{side} border of {names[owner]}"
            return f"border of {names[owner]}{near or ', all around'}"
        if here and here[0]:
            side = self._side(voxels, self._extent(here[0], self._part(around, here[0])))
            return f"{side} part of {names[here[0]]}" if side else f"inside {names[here[0]]}{near}"
        for other in pair:
            if other and self._sizes[other]:
                side = self._side(voxels, self._extent(other))
                apart = f"apart from {names[other]}"
                return f"{apart}, on its {side} side" if side else f"{apart}{near}"
        side = self._side(voxels, self._extent())
        return f"{side} part of the image" if side else f"middle of the image{near}"

    def _side(self, voxels: Voxels, extent: _Extent | None) -> str:
        """Return on which side of a region voxels lie: "front", "upper left", or nothing."""
        if extent is None:
            return ""
        weights = self.data.entropy[*voxels.T].astype(np.float64) + 1e-9
        middle = np.average(voxels, axis=0, weights=weights) @ self._turn
        off = (middle - extent.middle) / extent.half
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

    @property
    def _turn(self) -> NDArray[np.float64]:
        return self.data.affine[:3, :3].T

    def _measure_extent(self, label: int | None = None, part: int | None = None) -> _Extent | None:
        """Return where a label lies, or one part of it; without a label, where the mask does.

        Nothing where it is empty, or the file does not say how the patient lies.
        """
        if not self.data.oriented:
            return None
        if label is None:
            region = np.argwhere(self.data.mask)
        elif part is None:
            region = np.argwhere(self._labelled == label) + self._corner
        else:
            region = np.argwhere(self._parts(label) == part) + self._corner
        if not len(region):
            return None
        points = region @ self._turn  # (m, 3) mm, but for the origin
        low, high = np.percentile(points, [2.5, 97.5], axis=0)
        half = np.maximum((high - low) / 2, np.abs(self._turn).max(axis=0) / 2)
        return _Extent(points.mean(axis=0), half)

    def _part(self, around: Voxels, label: int) -> int:
        """Return the number of the part of a label that most of these voxels belong to."""
        parts = self._parts(label)
        here = around - self._corner
        here = here[((here >= 0) & (here < parts.shape)).all(axis=1)]
        counts = np.bincount(_at(parts, here))
        counts[0] = 0
        return int(counts.argmax())

    def _label_parts(self, label: int) -> NDArray[np.int32]:
        """Return the numbers of a label's connected parts in the box of all labels."""
        from scipy.ndimage import label as connected

        parts: NDArray[np.int32]
        parts, _ = connected(self._labelled == label, structure=np.ones((3, 3, 3)))
        return parts


@dataclass(frozen=True)
class _Extent:
    """Where a region lies, in mm but for the origin."""

    middle: NDArray[np.float64]  # (3,)
    half: NDArray[np.float64]  # (3,) of its width, without what sticks out


def _beside(voxels: Voxels, some: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which voxels (n, 3) are some of them (n,), or neighbours of such."""
    corner = voxels.min(axis=0)
    here = np.zeros(tuple(np.ptp(voxels, axis=0) + 1), dtype=bool)
    here[tuple((voxels[some] - corner).T)] = True
    return _at(_add_neighbours(here, corners=True), voxels - corner)


def _around(voxels: Voxels, shape: tuple[int, ...]) -> Voxels:
    """Return voxels and their neighbours, each of them once."""
    corner = voxels.min(axis=0) - 1
    here = np.zeros(tuple(np.ptp(voxels, axis=0) + 3), dtype=bool)
    here[tuple((voxels - corner).T)] = True
    grown = np.argwhere(_add_neighbours(here, corners=True)) + corner
    return grown[((grown >= 0) & (grown < shape)).all(axis=1)]


def _add_neighbours(where: NDArray[np.bool_], *, corners: bool = False) -> NDArray[np.bool_]:
    """Return voxels with those that share a face with one of them; with ``corners``, a corner."""
    grown = where.copy()
    for before, after in _neighbours(where.ndim):
        start = grown.copy() if corners else where
        grown[before] |= start[after]
        grown[after] |= start[before]
    return grown


def _neighbours(axes: int) -> Iterator[tuple[tuple[slice, ...], tuple[slice, ...]]]:
    """Yield, along each axis, all voxels but the last and all but the first."""
    for axis in range(axes):
        ahead = (slice(None),) * axis
        yield (*ahead, slice(None, -1)), (*ahead, slice(1, None))
