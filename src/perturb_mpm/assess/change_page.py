"""The page of a change: the answer first, both scans side by side, where it changed, numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.report import (
    EntropyScale,
    Picture,
    colour_bar,
    data_uri,
    entropy_overlay,
    error_overlay,
    field_of_view,
    grey_png,
    grey_window,
    in_window,
    label_styles,
    page_environment,
    radiological_planes,
    slice_picture,
    to_mm,
)
from perturb_mpm.run import measured_patient

if TYPE_CHECKING:
    from perturb_mpm.assess.change import ChangeRow, RunChange
    from perturb_mpm.run import Run

GENERATOR = '<meta name="generator" content="perturb-mpm change">'
NOTHING = "–"
_SCALE = EntropyScale("inferno", 1.0)


@dataclass(frozen=True)
class ShownSlice:
    """One slice with its caption."""

    picture: Picture
    caption: str
    oriented: bool


def render_change(change: RunChange) -> str:
    """Return the page as HTML; the same change gives the same text."""
    answer, _, rest = change.answer.partition(". ")
    return (
        page_environment("perturb_mpm.assess")
        .get_template("change.html")
        .render(
            title=f"{change.before.title} → {change.after.title}",
            generator=GENERATOR,
            answer=f"{answer}." if rest else answer,
            rest=rest,
            warnings=change.warnings,
            slices=_both_scans(change),
            maps=_maps(change),
            structure=change.rows[0].structure,
            colour_bar=colour_bar(_SCALE),
            styles=label_styles(("", change.rows[0].structure)),
            rows=[_cells(row) for row in change.rows],
            limits=list(dict.fromkeys(row.limits for row in change.rows if row.limits)),
            bases=list(dict.fromkeys(row.rests_on for row in change.rows)),
            correlation=change.question.correlation,
            samples=change.rows[0].samples,
        )
    )


def _cells(row: ChangeRow) -> list[str]:
    """Return the texts of one row of the table."""
    unit = row.unit.replace("mm2", "mm²")
    name = f"{row.measure} ({unit})" if unit else row.measure
    cells = [row.structure, name, _number(row.before), _number(row.after)]
    if row.sampled is None:
        return [*cells, *[NOTHING] * 7]
    each, classes = row.sampled, row.sampled.classes or {}
    relative = each.relative
    return [
        *cells,
        f"{_number(each.difference.lower)} to {_number(each.difference.upper)}",
        NOTHING
        if math.isnan(relative.median) or not row.before
        else f"{_number(100 * relative.lower)} to {_number(100 * relative.upper)} %",
        _percent(each.grew),
        *(_percent(classes.get(name)) for name in ("progression", "stable", "response")),
        _number(each.smallest),
    ]


def _number(value: float) -> str:
    if math.isnan(value):
        return NOTHING
    text = f"{abs(value):.3g}" if abs(value) < 1000 else f"{abs(value):.0f}"
    return f"−{text}" if value < 0 else text


def probability_text(share: float) -> str:
    """Return a probability in per cent; one that is not quite 0 or 1 is not said to be."""
    if 0 < share < 0.005 or 0.995 < share < 1:
        return "below 1 %" if share < 0.5 else "above 99 %"
    return f"{100 * share:.0f} %"


def _percent(share: float | None) -> str:
    return NOTHING if share is None or math.isnan(share) else probability_text(share)


def _both_scans(change: RunChange) -> list[ShownSlice]:
    """Return an axial slice of each scan; on one grid it is the same slice."""
    name = change.rows[0].structure
    runs = (change.before, change.after)
    if change.new:
        sizes = _slice_sums(change.after, change.new[name] + change.vanished[name])
        indices = [int(sizes.argmax())] * 2
    else:
        indices = [int(_slice_sums(run, _structure(run, name)).argmax()) for run in runs]
    both = _all_labels(change) if change.new else None
    slices = []
    for run, index, words in zip(runs, indices, ("before", "after")):
        shown = _labelled(run) if both is None else both
        picture = _picture(run, name, index, shown, None, f"{words}, outline of {name}")
        slices.append(ShownSlice(picture, words, run.case.geometry.has_orientation))
    return slices


def _maps(change: RunChange) -> list[ShownSlice]:
    """Return where the structure is new, on the later scan, and vanished, on the earlier one."""
    if not change.new:
        return []
    name = change.rows[0].structure
    shown = _all_labels(change)
    sizes = _slice_sums(change.after, change.new[name] + change.vanished[name])
    index = int(sizes.argmax())
    return [
        ShownSlice(
            _picture(run, name, index, shown, maps[name], f"probability: {words}"),
            words,
            run.case.geometry.has_orientation,
        )
        for words, maps, run in (
            ("new", change.new, change.after),
            ("vanished", change.vanished, change.before),
        )
    ]


def _structure(run: Run, name: str) -> NDArray[np.bool_]:
    members = measured_patient(run).structures[name]
    return np.isin(run.labels, members) & run.case.mask


def _labelled(run: Run) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = (run.labels > 0) & run.case.mask
    return found


def _all_labels(change: RunChange) -> NDArray[np.bool_]:
    """Return what has a label in either scan: both are shown in one field of view."""
    return _labelled(change.before) | _labelled(change.after)


def _slice_sums(run: Run, volume: NDArray[np.generic]) -> NDArray[np.float64]:
    """Return the sum of every axial slice."""
    across = radiological_planes(run.case.geometry.affine)[0].across
    others = tuple(axis for axis in range(3) if axis != across)
    sums: NDArray[np.float64] = volume.astype(np.float64).sum(axis=others)
    return sums


def _picture(
    run: Run,
    name: str,
    index: int,
    shown: NDArray[np.bool_],
    overlay: NDArray[np.float32] | None,
    description: str,
) -> Picture:
    case = run.case
    plane = radiological_planes(case.geometry.affine)[0]
    spacing: Sequence[float] = case.geometry.spacing
    steps = (spacing[0], spacing[1], spacing[2])
    box = field_of_view(shown, case.mask, steps)
    image = next(iter(case.images.values()))
    greys = in_window(plane.cut(image, index, box), grey_window(image[case.mask]))
    voxel = [0, 0, 0]
    voxel[plane.across] = index
    position = to_mm(case.geometry.affine, (voxel[0], voxel[1], voxel[2]))[plane.looks_along]
    labels = plane.cut(_structure(run, name).astype(np.uint8), index, box)
    colours = (
        error_overlay(np.zeros(labels.shape, dtype=np.bool_))
        if overlay is None
        else entropy_overlay(plane.cut(overlay, index, box), _SCALE)
    )
    picture = slice_picture(
        plane,
        position,
        steps,
        greys=[(next(iter(case.images)), data_uri(grey_png(greys)))],
        overlay=colours,
        labels=labels,
        styles=label_styles(("", name)),
        description=description,
    )
    return replace(picture, opaque=True)
