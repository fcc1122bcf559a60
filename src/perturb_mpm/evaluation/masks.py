"""How well two masks agree: their overlap, and distances between their surfaces in mm.

The surface of a mask is its voxels with a neighbour (by face) outside, and distances are between
centres of voxels. ``area_surface_dice`` alone has surface elements between the voxels, weighted by
their area, as Nikolov et al. 2021 have them.

Everywhere: two empty masks agree fully (overlap 1, distance 0); where one is empty, the overlap is
0 and the distance infinite.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perturb_mpm import checks
from perturb_mpm.model import bounding_box
from perturb_mpm.posterior import Regions

_CORNERS = tuple(itertools.product((0, 1), repeat=3))
_Edge = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class Confusion:
    """Voxels in both masks, in the first only, in the second only, in neither."""

    both: int
    first_only: int
    second_only: int
    neither: int

    @property
    def dice(self) -> float:
        """2|A∩B|/(|A| + |B|); 1 where both are empty."""
        return _ratio(2 * self.both, 2 * self.both + self.first_only + self.second_only)

    @property
    def iou(self) -> float:
        """|A∩B|/|A∪B|; 1 where both are empty."""
        return _ratio(self.both, self.both + self.first_only + self.second_only)

    @property
    def sensitivity(self) -> float:
        """The share of the second mask that is in the first; NaN where the second is empty."""
        return share_or_nan(self.both, self.both + self.second_only)

    @property
    def specificity(self) -> float:
        """The share outside the second mask that is outside the first; NaN where it fills all."""
        return share_or_nan(self.neither, self.neither + self.first_only)

    @property
    def precision(self) -> float:
        """The share of the first mask that is in the second; NaN where the first is empty."""
        return share_or_nan(self.both, self.both + self.first_only)


def confusion(first: ArrayLike, second: ArrayLike) -> Confusion:
    """Count the voxels of two masks of the same shape.

    Examples
    --------
    >>> from perturb_mpm.evaluation import confusion
    >>> first, second = np.array([[1, 1, 0, 0], [1, 0, 1, 0]], bool)
    >>> confusion(first, second)
    Confusion(both=1, first_only=1, second_only=1, neither=1)
    """
    a, b = mask_pair(first, second, ("first", "second"))
    both = int(np.count_nonzero(a & b))
    size_a, size_b = int(np.count_nonzero(a)), int(np.count_nonzero(b))
    return Confusion(both, size_a - both, size_b - both, a.size - size_a - size_b + both)


def dice(first: ArrayLike, second: ArrayLike) -> float:
    """Return 2|A∩B|/(|A| + |B|); 1 where both are empty.

    Examples
    --------
    >>> from perturb_mpm.evaluation import dice
    >>> first, second = np.array([[1, 1, 0, 0], [1, 0, 0, 0]], bool)
    >>> round(dice(first, second), 3)
    0.667
    """
    return confusion(first, second).dice


def region_dice(labels: ArrayLike, truth: ArrayLike, region: Sequence[int]) -> float:
    """Return the Dice of a set of labels in two label maps; NaN where the truth has none of it.

    Examples
    --------
    >>> from perturb_mpm.evaluation import region_dice
    >>> region_dice([0, 1, 2, 2], [0, 1, 1, 0], region=(1, 2))
    0.8
    """
    members = list(region)
    true = np.isin(truth, members)
    return dice(np.isin(labels, members), true) if true.any() else math.nan


def expected_dice(mask: NDArray[np.bool_], share: NDArray[np.floating]) -> float:
    """Return the Dice that probabilities m (N,) of a region expect of its mask S (N,).

    2 Σ_S m / (|S| + Σ m), 1 where both are empty.

    Examples
    --------
    >>> from perturb_mpm.evaluation import expected_dice
    >>> expected_dice(np.array([True, True, False]), np.array([1.0, 0.5, 0.5]))
    0.75
    """
    return _ratio(2 * float(share[mask].sum()), float(mask.sum() + share.sum()))


class SampleDice:
    """The Dice of a label map with each sample, for every region; samples come batch by batch.

    A sample is a plausible truth, so this is the law of the Dice that the truth would give.

    ``add`` is what ``Sampler.draw`` takes as ``keep``; ``+`` joins the same samples of two parts
    of a mask.

    Examples
    --------
    >>> from perturb_mpm.evaluation import SampleDice
    >>> agreement = SampleDice([0, 1, 1, 2], {"one": (1,), "all": (1, 2)})
    >>> agreement.add(range(2), [[0, 1, 1, 2], [0, 1, 0, 0]])
    >>> agreement.dice()["one"].round(3), agreement.dice()["all"]
    (array([1.   , 0.667]), array([1. , 0.5]))
    """

    def __init__(self, labels: ArrayLike, regions: Regions) -> None:
        """Take the label map inside the mask, (N,), and the labels of every region."""
        mapped = checks.whole(labels, "labels")
        if mapped.ndim != 1:
            raise ValueError(f"labels must be (voxels,), got shape {mapped.shape}")
        self._regions = {name: tuple(members) for name, members in regions.items()}
        most = max([int(mapped.max(initial=0)), *(max(m) for m in self._regions.values())]) + 1
        self._tables = np.zeros((len(self._regions), most), dtype=np.bool_)
        for table, members in zip(self._tables, self._regions.values(), strict=True):
            table[list(members)] = True
        # Which voxels the label map gives to each region: overlaps are counted in these alone.
        self._voxels = [np.flatnonzero(table[mapped]) for table in self._tables]
        self._voxel_count = len(mapped)
        self._drawn: list[NDArray[np.int64]] = []  # (2, B, R): overlap and size in each sample

    def add(self, part: Sequence[int], samples: ArrayLike) -> None:
        """Take the labels (B, N) of the samples ``part``."""
        drawn = np.asarray(samples)
        if drawn.shape != (len(part), self._voxel_count):
            raise ValueError(
                f"samples must be ({len(part)}, {self._voxel_count}), got shape {drawn.shape}"
            )
        counts = np.empty((2, len(drawn), len(self._tables)), dtype=np.int64)
        wanted = np.flatnonzero(self._tables.any(axis=0)).tolist()
        sizes = np.zeros(self._tables.shape[1], dtype=np.int64)
        for row, labels in enumerate(drawn):
            for label in wanted:  # a bincount would make every byte an index of eight first
                sizes[label] = np.count_nonzero(labels == label)
            for column, (table, voxels) in enumerate(zip(self._tables, self._voxels, strict=True)):
                counts[0, row, column] = np.count_nonzero(table[labels[voxels]])
                counts[1, row, column] = sizes[table].sum()
        self._drawn.append(counts)

    def __add__(self, other: SampleDice) -> SampleDice:
        """Return the same samples of two parts of the mask together."""
        if self._regions != other._regions:
            raise ValueError("both must have the same regions")
        whole = SampleDice(np.zeros(0, dtype=np.int64), self._regions)
        whole._voxels = [np.concatenate(pair) for pair in zip(self._voxels, other._voxels)]
        whole._drawn = [self._counts() + other._counts()]
        return whole

    def dice(self) -> Mapping[str, NDArray[np.float64]]:
        """Return the Dice of every sample, (S,), by region; 1 where both lack the region."""
        overlap, sizes = self._counts()
        mapped = np.array([len(each) for each in self._voxels])
        found = overlap_ratios(2 * overlap, mapped + sizes)  # (S, R)
        return dict(zip(self._regions, found.T, strict=True))

    def _counts(self) -> NDArray[np.int64]:
        """Return overlap and size of every region in every sample, (2, S, R)."""
        if not self._drawn:
            return np.zeros((2, 0, len(self._tables)), dtype=np.int64)
        return np.concatenate(self._drawn, axis=1)


def overlap_ratios(part: ArrayLike, whole: ArrayLike) -> NDArray[np.float64]:
    """Return part/whole, 1 where the whole is 0: two empty masks overlap fully."""
    below = np.asarray(whole)
    ratios = np.ones(below.shape)
    np.divide(part, below, out=ratios, where=below > 0)
    return ratios


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 1.0


def mask_pair(
    first: ArrayLike, second: ArrayLike, names: tuple[str, str]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return two masks after checking that both are booleans of one shape."""
    a, b = np.asarray(first), np.asarray(second)
    for array, name in zip((a, b), names):
        if array.dtype != np.bool_:
            raise TypeError(f"{name} must be an array of booleans, got dtype {array.dtype}")
    checks.same_shape(**dict(zip(names, (a, b))))
    return a, b


def share_or_nan(part: int, whole: int) -> float:
    """Return part/whole; NaN where the whole is 0."""
    return part / whole if whole else math.nan


@dataclass(frozen=True)
class SurfaceDistances:
    """How far each surface voxel of a mask is from the other mask's surface, in mm, both ways.

    Examples
    --------
    >>> from perturb_mpm.evaluation import surface_distances
    >>> first, second = np.array([[0, 1, 1, 0, 0], [0, 1, 1, 1, 0]], bool)
    >>> distances = surface_distances(first, second, spacing=2.0)
    >>> distances.hausdorff, distances.dice(tolerance_mm=1.0)
    (2.0, 0.5)
    """

    to_second: NDArray[np.float64]  # (A,) from the first mask's surface
    to_first: NDArray[np.float64]  # (B,) from the second mask's surface

    @property
    def hausdorff(self) -> float:
        """The largest distance."""
        return float(self._both_ways().max(initial=0.0))

    @property
    def hausdorff95(self) -> float:
        """The larger of both directions' 95th percentiles."""
        both = (self.to_second, self.to_first)
        return max((_percentile95(each) for each in both if each.size), default=0.0)

    @property
    def hausdorff95_pooled(self) -> float:
        """The 95th percentile of both directions' distances together."""
        distances = self._both_ways()
        return _percentile95(distances) if distances.size else 0.0

    @property
    def average(self) -> float:
        """The mean of both directions' distances together."""
        distances = self._both_ways()
        return float(distances.mean()) if distances.size else 0.0

    def dice(self, tolerance_mm: float) -> float:
        """Return the share of all surface voxels that are within the tolerance, 0 … 1."""
        distances = self._both_ways()
        return float((distances <= tolerance_mm).mean()) if distances.size else 1.0

    def _both_ways(self) -> NDArray[np.float64]:
        return np.concatenate([self.to_second, self.to_first])


def surface_distances(
    first: ArrayLike, second: ArrayLike, spacing: float | Sequence[float]
) -> SurfaceDistances:
    """Measure two masks of one shape; ``spacing`` is in mm, one number or one for each axis.

    Examples
    --------
    >>> from perturb_mpm.evaluation import surface_distances
    >>> first, second = np.array([[0, 1, 1, 0, 0], [0, 1, 1, 1, 0]], bool)
    >>> surface_distances(first, second, spacing=2.0).to_first
    array([0., 2.])
    """
    from scipy.ndimage import binary_erosion, distance_transform_edt

    a, b, step = _check_masks(first, second, spacing)
    if not a.any() or not b.any():
        lone = np.full(1 if a.any() or b.any() else 0, math.inf)
        return SurfaceDistances(lone, lone)
    box = bounding_box(a | b)
    outline_a, outline_b = (each[box] & ~binary_erosion(each[box]) for each in (a, b))
    to_b = distance_transform_edt(~outline_b, sampling=step)
    to_a = distance_transform_edt(~outline_a, sampling=step)
    return SurfaceDistances(to_b[outline_a], to_a[outline_b])


def area_surface_dice(
    first: ArrayLike, second: ArrayLike, spacing: float | Sequence[float], tolerance_mm: float = 1.0
) -> float:
    """Return the share of both surfaces' area within ``tolerance_mm`` of the other, 0 … 1.

    Masks have three axes. A surface element is where the eight voxels around a corner are not all
    alike; its area is that of the marching cubes between their centres (Nikolov et al. 2021).

    Examples
    --------
    >>> from perturb_mpm.evaluation import area_surface_dice
    >>> first, second = np.zeros((2, 8, 8, 8), bool)
    >>> first[2:6, 2:6, 2:6], second[2:6, 2:6, 3:7] = True, True
    >>> area_surface_dice(first, second, spacing=1.0, tolerance_mm=1.0)
    1.0
    """
    from scipy.ndimage import distance_transform_edt

    a, b, step = _check_masks(first, second, spacing)
    tolerance = checks.number(tolerance_mm, "tolerance_mm", minimum=0)
    if a.ndim != 3:
        raise ValueError(f"first must have three axes, got shape {a.shape}")
    if not a.any() or not b.any():
        return 0.0 if a.any() or b.any() else 1.0
    box = bounding_box(a | b)
    codes = [_corner_codes(np.pad(each[box], 1)) for each in (a, b)]
    borders = [(code > 0) & (code < 255) for code in codes]
    near = whole = 0.0
    areas = element_areas(tuple(float(size) for size in step))
    for own, other, code in ((0, 1, codes[0]), (1, 0, codes[1])):
        away = distance_transform_edt(~borders[other], sampling=step)[borders[own]]
        area = areas[code[borders[own]]]
        near += float(area[away <= tolerance].sum())
        whole += float(area.sum())
    return near / whole


@cache
def element_areas(spacing: tuple[float, float, float]) -> NDArray[np.float64]:
    """Return the area (mm²) of the surface between eight voxels by which are inside, (256,).

    The bits of an index are the voxels in C order, the first the highest. Where both ways to join
    a face are possible, the corners that are fewer stay apart. A polygon that is not flat is cut
    into the fan of triangles that has the largest area on cubes.
    """
    step = np.array(spacing)
    areas = np.zeros(256)
    for code in range(1, 255):
        inside = {corner for bit, corner in enumerate(_CORNERS) if code >> (7 - bit) & 1}
        fewer = inside if len(inside) <= 4 else set(_CORNERS) - inside
        for polygon in _polygons(fewer):
            on_cubes = [round(_fan_area(np.roll(polygon, -s, 0)), 9) for s in range(len(polygon))]
            start = int(np.argmax(on_cubes))
            areas[code] += _fan_area(np.roll(polygon, -start, 0) * step)
    return areas


def _polygons(inside: set[tuple[int, ...]]) -> list[NDArray[np.float64]]:
    """Return the closed lines (K, 3) around some corners of a cube, through midpoints of edges."""
    links: dict[_Edge, list[_Edge]] = {}
    for axis, side in itertools.product(range(3), (0, 1)):
        around = [np.insert((u, v), axis, side) for u, v in ((0, 0), (0, 1), (1, 1), (1, 0))]
        cycle = [tuple(int(c) for c in corner) for corner in around]
        edges = [(min(pair), max(pair)) for pair in zip(cycle, cycle[1:] + cycle[:1])]
        crossed = [edge for edge in edges if (edge[0] in inside) != (edge[1] in inside)]
        pairs = [crossed] if len(crossed) == 2 else []
        if len(crossed) == 4:
            pairs = [[e for e in edges if corner in e] for corner in cycle if corner in inside]
        for one, other in pairs:
            links.setdefault(one, []).append(other)
            links.setdefault(other, []).append(one)
    polygons = []
    while links:
        loop = [min(links)]
        while True:
            ahead = [edge for edge in links[loop[-1]] if edge not in loop]
            if not ahead:
                break
            loop.append(ahead[0])
        for edge in loop:
            del links[edge]
        polygons.append(np.array([np.mean(edge, axis=0) for edge in loop]))
    return polygons


def _fan_area(polygon: NDArray[np.float64]) -> float:
    """Return the area of the triangles between the first point (K, 3) and each pair of others."""
    spokes = polygon[1:] - polygon[0]
    return float(np.linalg.norm(np.cross(spokes[:-1], spokes[1:]), axis=1).sum() / 2)


def _corner_codes(mask: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return which of the eight voxels around each inner corner of a grid are inside."""
    codes = np.zeros(tuple(n - 1 for n in mask.shape), dtype=np.int64)
    for bit, corner in enumerate(_CORNERS):
        window = tuple(slice(c, n - 1 + c) for c, n in zip(corner, mask.shape))
        codes |= mask[window].astype(np.int64) << (7 - bit)
    return codes


def _check_masks(
    first: ArrayLike, second: ArrayLike, spacing: float | Sequence[float]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.float64]]:
    a, b = mask_pair(first, second, ("first", "second"))
    step = checks.one_each(checks.positive_numbers(spacing, "spacing"), "spacing", a.ndim, "axis")
    return a, b, step


def _percentile95(values: NDArray[np.float64]) -> float:
    return math.inf if np.isinf(values).any() else float(np.percentile(values, 95))
