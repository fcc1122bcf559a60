"""Where the samples disagree: uncertain regions ranked, and the slices to look at first."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.posterior import UNCERTAIN, UNDECIDED
from perturb_mpm.report.data import ReportData
from perturb_mpm.report.pictures import Picture, Studio, Voxel
from perturb_mpm.report.planes import to_mm

WIDEST_MM = 30.0
"""A connected component that is wider than this is divided: it is no single place to look at."""
MOST_PLACES = 3
APART_MM = 25.0
"""Places that are shown are at least this far apart."""
THUMBNAIL_REACH_MM = 22.0

Voxels = NDArray[np.int64]  # (n, 3) indices


@dataclass(frozen=True)
class UncertainRegion:
    """One place where the sampled segmentations disagree."""

    rank: int  # from 1, the most uncertain
    volume_ml: float
    mean_entropy_bits: float
    centre_mm: tuple[float, float, float]  # scanner coordinates, to the right, front and top
    centre_voxel: tuple[int, int, int]  # the voxel of the region that is nearest to its middle
    labels: tuple[tuple[str, float], ...]  # the two labels that compete, with their mean share
    voxels: int


def uncertain_regions(
    data: ReportData, limit: int = 20, widest_mm: float = WIDEST_MM
) -> list[UncertainRegion]:
    """Return the places where most is undecided, at most ``limit``.

    A region is a connected component of uncertain voxels (sharing a face, an edge or a corner).
    One that is wider than ``widest_mm``, such as a rim all around a tumour, is divided into parts
    around its most uncertain places. Regions are ranked by the sum of their entropy: large and
    very uncertain ones come first.
    """
    from scipy.ndimage import find_objects, label

    uncertain = uncertain_voxels(data)[0]
    components, count = label(uncertain, structure=np.ones((3, 3, 3)))
    parts: list[Voxels] = []
    if count:
        for number, box in enumerate(find_objects(components), start=1):
            corner = [span.start for span in box]
            voxels = np.argwhere(components[box] == number) + corner
            parts += _divided(voxels, data, widest_mm)
    totals = [float(_at(data.entropy, part).sum(dtype=np.float64)) for part in parts]
    order = sorted(range(len(parts)), key=lambda i: (-totals[i], parts[i][0].tolist()))
    return [_describe(rank, parts[i], data) for rank, i in enumerate(order[:limit], start=1)]


def uncertain_voxels(data: ReportData) -> tuple[NDArray[np.bool_], str]:
    """Return which voxels count as uncertain, and the rule in words.

    Where no voxel is certainly uncertain, as with few samples, those that are undecided count, and
    where there are none of these either, every voxel whose entropy is not 0.
    """
    uncertain = data.uncertainty == UNCERTAIN
    if uncertain.any():
        return uncertain, "uncertain"
    disagreeing = data.entropy > 0
    undecided = (data.uncertainty == UNDECIDED) & disagreeing
    if undecided.any():
        return undecided, "undecided at this number of samples"
    rule = "disagreed on by at least one sample" if data.by_samples else "less than wholly certain"
    return disagreeing, rule


def _divided(voxels: Voxels, data: ReportData, widest_mm: float) -> list[Voxels]:
    """Divide a component around seeds: the most uncertain voxel, then the farthest from seeds."""
    points = voxels @ data.affine[:3, :3].T  # (n, 3) mm, but for the origin
    if np.linalg.norm(np.ptp(points, axis=0)) <= widest_mm:
        return [voxels]
    distance = np.full(len(voxels), math.inf)  # to the nearest seed
    owner = np.zeros(len(voxels), dtype=np.int64)
    seed, seeds = int(np.argmax(_at(data.entropy, voxels))), 0
    while distance.max() > widest_mm / 2.0:
        away = np.linalg.norm(points - points[seed], axis=1)
        nearer = away < distance
        owner[nearer] = seeds
        distance[nearer] = away[nearer]
        seed, seeds = int(np.argmax(distance)), seeds + 1
    return [voxels[owner == number] for number in range(seeds)]


def _describe(rank: int, voxels: Voxels, data: ReportData) -> UncertainRegion:
    entropy = _at(data.entropy, voxels).astype(np.float64)
    middle = np.average(voxels, axis=0, weights=entropy if entropy.any() else None)
    away = np.linalg.norm((voxels - middle) @ data.affine[:3, :3].T, axis=1)
    i, j, k = (int(index) for index in voxels[np.argmin(away)])
    shares = data.marginals[:, *voxels.T].mean(axis=1, dtype=np.float64)  # (L,)
    leading = np.argsort(-shares, kind="stable")[:2]
    return UncertainRegion(
        rank=rank,
        volume_ml=len(voxels) * math.prod(data.spacing) / 1000.0,
        mean_entropy_bits=float(entropy.mean()),
        centre_mm=to_mm(data.affine, (i, j, k)),
        centre_voxel=(i, j, k),
        labels=tuple((data.label_names[l], float(shares[l])) for l in leading),
        voxels=len(voxels),
    )


def _at(volume: NDArray[Any], voxels: Voxels) -> NDArray[Any]:
    values: NDArray[Any] = volume[tuple(voxels.T)]
    return values


@dataclass(frozen=True)
class Place:
    """A point of the patient, seen in every plane."""

    region: UncertainRegion | None  # None: nothing is uncertain; this is the middle of the labels
    pictures: tuple[Picture, ...]


def places(studio: Studio, regions: list[UncertainRegion]) -> list[Place]:
    """Return a few regions in every plane, or the labels' middle where there is none."""
    if not regions:
        return [Place(None, _all_planes(studio, middle_of_labels(studio.data)))]
    return [Place(each, _all_planes(studio, each.centre_voxel)) for each in _spread_out(regions)]


def thumbnails(studio: Studio, regions: list[UncertainRegion]) -> list[Picture]:
    """Return a small picture around the centre of each region."""
    return [
        studio.entropy_picture(
            studio.planes[0], region.centre_voxel, sequences=1, reach_mm=THUMBNAIL_REACH_MM
        )
        for region in regions
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


def _spread_out(regions: list[UncertainRegion]) -> list[UncertainRegion]:
    """Return the first regions that are not close to one before them.

    The parts of one wide region follow each other in rank, and their slices look alike.
    """
    chosen: list[UncertainRegion] = []
    for region in regions:
        if all(math.dist(region.centre_mm, other.centre_mm) >= APART_MM for other in chosen):
            chosen.append(region)
    return chosen[:MOST_PLACES]


def _all_planes(studio: Studio, voxel: Voxel) -> tuple[Picture, ...]:
    return tuple(studio.entropy_picture(plane, voxel) for plane in studio.planes)
