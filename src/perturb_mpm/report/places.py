"""Which slices a report opens with: those through the most uncertain places."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from perturb_mpm.report.data import ReportData
from perturb_mpm.report.pictures import Picture, Studio, Voxel
from perturb_mpm.report.regions import Region

SHOWN = 3
APART_MM = 25.0
THUMBNAIL_REACH_MM = 22.0


@dataclass(frozen=True)
class Place:
    """A point of the patient, seen in every plane."""

    region: Region | None  # None: nothing is uncertain, and this is the middle of the labels
    pictures: tuple[Picture, ...]


def places(studio: Studio, regions: list[Region]) -> list[Place]:
    """Return a few regions in every plane, or the labels' middle where there is none."""
    if not regions:
        return [Place(None, _all_planes(studio, middle_of_labels(studio.data)))]
    return [Place(each, _all_planes(studio, each.centre_voxel)) for each in _spread_out(regions)]


def thumbnails(studio: Studio, regions: list[Region]) -> list[Picture]:
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


def _spread_out(regions: list[Region]) -> list[Region]:
    """Return the first regions that are not close to one before them.

    The parts of one wide region follow each other in rank, and their slices look alike.
    """
    chosen: list[Region] = []
    for region in regions:
        if all(math.dist(region.centre_mm, other.centre_mm) >= APART_MM for other in chosen):
            chosen.append(region)
    return chosen[:SHOWN]


def _all_planes(studio: Studio, voxel: Voxel) -> tuple[Picture, ...]:
    return tuple(studio.entropy_picture(plane, voxel) for plane in studio.planes)
