"""What a report shows of findings: lesions, samples from small to large, where a stroke pays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.measures import Extremes, Lesions, MeasureRow, Priority, SampledLesion
from perturb_mpm.report.data import ReportData
from perturb_mpm.report.pictures import Picture, Studio, outline_path
from perturb_mpm.report.planes import Plane, Voxel, to_mm

MOST_LESIONS = 20
_REACH_MM = 20.0


@dataclass(frozen=True, eq=False)
class Findings:
    """What samples were asked beyond volumes; what nobody asked for is empty."""

    measures: tuple[MeasureRow, ...] = ()
    rules: tuple[Mapping[str, Any], ...] = ()  # rule and probability, None where it is unknown
    lesions: Lesions | None = None
    priority: Priority | None = None
    extremes: Extremes | None = None


@dataclass(frozen=True)
class ShownLesion:
    """One row of the table of lesions."""

    lesion: SampledLesion
    picture: Picture
    centre_mm: tuple[float, float, float]
    voxel: Voxel
    verdict: str
    """What the label map says, and whether to believe it."""


@dataclass(frozen=True)
class SampledSlice:
    """A slice with the outline of a structure in each of several samples."""

    picture: Picture
    paths: tuple[str, ...]


def draw_findings(studio: Studio) -> dict[str, Any] | None:
    """Return rows and pictures of all that was found, None where nothing was asked for."""
    found = studio.data.findings
    if found is None or found == Findings():
        return None
    return {
        "measures": found.measures,
        "rules": found.rules,
        "lesions": None if found.lesions is None else _lesions(studio, found.lesions),
        "extremes": None if found.extremes is None else _extremes(studio, found.extremes),
        "priority": None if found.priority is None else _priority(studio, found.priority),
    }


def _lesions(studio: Studio, lesions: Lesions) -> dict[str, Any]:
    shown = list(_lesion_rows(studio, lesions))
    numbers = lesions.number_distribution
    likely = sorted(numbers, key=lambda number: (-numbers[number], number))[:4]
    return {
        "structure": lesions.structure,
        "least_ml": lesions.candidates.least_ml,
        "rows": shown,
        "more": len(lesions.probability) - len(shown),
        "numbers": [(number, numbers[number]) for number in sorted(likely)],
        "label_map": lesions.label_map.pieces,
    }


def _lesion_rows(studio: Studio, lesions: Lesions) -> Iterator[ShownLesion]:
    data, plane = studio.data, studio.planes[0]
    for lesion in lesions.by_doubt()[:MOST_LESIONS]:
        top = np.array(data.mask.shape) - 1
        x, y, z = np.clip(np.rint(lesion.centre_voxel), 0, top).astype(int).tolist()
        picture = studio.entropy_picture(plane, (x, y, z), sequences=1, reach_mm=_REACH_MM)
        mm = to_mm(data.affine, (x, y, z))
        yield ShownLesion(lesion, picture, mm, (x, y, z), _verdict(lesion))


def _verdict(lesion: SampledLesion) -> str:
    marked = lesion.label_map_ml > 0
    if lesion.probability >= 0.95:
        return "marked" if marked else "missed by the label map"
    if lesion.probability <= 0.05:
        return "marked, hardly there" if marked else "hardly there"
    return "marked, check" if marked else "not marked, check"


def _extremes(studio: Studio, extremes: Extremes) -> dict[str, Any]:
    data = studio.data
    members = _members(data, extremes.structure)
    inside = np.isin(extremes.labels, members)  # (K, X, Y, Z)
    voxel = _most_varied(inside)
    return {
        "structure": extremes.structure,
        "rows": [
            (f"{100 * level:g} %", ml, number)
            for level, ml, number in zip(extremes.levels, extremes.volumes_ml, extremes.numbers)
        ],
        "middle": len(extremes.levels) // 2,
        "slices": [_sampled_slice(studio, plane, voxel, inside) for plane in studio.planes],
    }


def _members(data: ReportData, name: str) -> tuple[int, ...]:
    if name in data.regions:
        return data.regions[name]
    if name in data.label_names:
        return (data.label_names.index(name),)
    return tuple(range(1, len(data.label_names)))


def _most_varied(inside: NDArray[np.bool_]) -> Voxel:
    """Return the voxel whose slices have most of what differs between samples (K, X, Y, Z)."""
    share = inside.mean(axis=0)
    varied = share * (1 - share) + 1e-3 * share
    at = [int(varied.sum(axis=tuple({0, 1, 2} - {axis})).argmax()) for axis in range(3)]
    return at[0], at[1], at[2]


def _sampled_slice(
    studio: Studio, plane: Plane, voxel: Voxel, inside: NDArray[np.bool_]
) -> SampledSlice:
    picture = studio.entropy_picture(plane, voxel, sequences=1)
    cuts = [plane.cut(each, voxel[plane.across], studio.box) for each in inside]
    paths = tuple(outline_path(each) for each in cuts)
    return SampledSlice(replace(picture, overlay=None, outlines=(), cross=None), paths)


def _priority(studio: Studio, priority: Priority) -> dict[str, Any]:
    plane, affine = studio.planes[0], studio.data.affine
    return {
        "measure": f"{priority.structure}.{priority.measure}",
        "rows": [
            (
                patch,
                to_mm(affine, patch.centre_voxel),
                studio.entropy_picture(plane, patch.centre_voxel, sequences=1, reach_mm=_REACH_MM),
            )
            for patch in priority.patch_list(5)
        ],
    }
