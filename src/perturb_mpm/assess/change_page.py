"""The page of a change: the answer first, both scans side by side, where it changed, numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

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
    slices, maps = _draw_slices(change)
    return (
        page_environment("perturb_mpm.assess")
        .get_template("change.html")
        .render(
            title=f"{change.before.title} → {change.after.title}",
            generator=GENERATOR,
            answer=f"{answer}." if rest else answer,
            rest=rest,
            warnings=change.warnings,
            slices=slices,
            maps=maps,
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


def _draw_slices(change: RunChange) -> tuple[list[ShownSlice], list[ShownSlice]]:
    """Return an axial slice of each scan, and where the structure of the first row changed.

    On one grid all show the same slice in one field of view, of what has a label in either scan: it
    is new on the later scan, and vanished on the earlier one.
    """
    name, runs = change.rows[0].structure, (change.before, change.after)
    shown = [(run.labels > 0) & run.case.mask for run in runs]
    sizes = [_structure(run, name) for run in runs]
    if change.new:
        shown = [shown[0] | shown[1]] * 2
        sizes = [change.new[name] + change.vanished[name]] * 2
    before, after = (_Cut(*each) for each in zip(runs, (name, name), shown, sizes))
    scans = [before.draw("before"), after.draw("after")]
    if not change.new:
        return scans, []
    return scans, [
        after.draw("new", change.new[name]),
        before.draw("vanished", change.vanished[name]),
    ]


def _structure(run: Run, name: str) -> NDArray[Any]:
    members = measured_patient(run).structures[name]
    return np.isin(run.labels, members) & run.case.mask


@dataclass(frozen=True, eq=False)
class _Cut:
    """The axial slice of a run in which ``sizes`` (X, Y, Z) are largest, around what is shown."""

    run: Run
    structure: str
    shown: NDArray[np.bool_]  # (X, Y, Z)
    sizes: NDArray[Any]

    def draw(self, caption: str, overlay: NDArray[np.float32] | None = None) -> ShownSlice:
        """Return the slice with the outline of the structure, and probabilities laid over it."""
        case, name = self.run.case, self.structure
        geometry = case.geometry
        plane = radiological_planes(geometry.affine)[0]
        index = int(plane.sum_slices(self.sizes).argmax())
        box = field_of_view(self.shown, case.mask, geometry.spacing)
        image_name, image = next(iter(case.images.items()))
        greys = in_window(plane.cut(image, index, box), grey_window(image[case.mask]))
        labels = plane.cut(_structure(self.run, name).astype(np.uint8), index, box)
        if overlay is None:
            words = f"{caption}, outline of {name}"
            colours = error_overlay(np.zeros(labels.shape, dtype=np.bool_))
        else:
            words = f"probability: {caption}"
            colours = entropy_overlay(plane.cut(overlay, index, box), _SCALE)
        picture = slice_picture(
            plane,
            plane.slice_mm(geometry.affine, index),
            geometry.spacing,
            greys=[(image_name, data_uri(grey_png(greys)))],
            overlay=colours,
            labels=labels,
            styles=label_styles(("", name)),
            description=words,
        )
        return ShownSlice(replace(picture, opaque=True), caption, geometry.has_orientation)
