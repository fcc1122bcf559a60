"""A picture of each measure's definition, drawn by the functions that measure.

Grey is the sample, dashed its label map, hatched another structure: it reads without colours.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import binary_erosion, distance_transform_edt

from perturb_mpm.measures import LabelMap, MeasuredPatient, find_measures
from perturb_mpm.model import Grid

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Mask = NDArray[np.bool_]
_ROWS, _COLUMNS = 28, 40
_TITLES = (
    "volume {volume:.2f} ml: voxels × their size",
    "diameter {diameter:.1f} mm: longest distance",
    "bidirectional {bidirectional:.0f} mm²: × the longest across",
    "area {area:.0f} mm²: crossings (dots) of lines",
    "sphericity {sphericity:.2f}: area of a ball (dotted) / own",
    "components {components:.0f}: pieces that do not touch",
    "distance {distance:vessel:.1f} mm to a vessel",
    "contact {contact:organ:.0f} mm² with an organ",
    "overlap {overlap:organ:.3f} ml with an organ",
    "margin {margin:.1f} mm: the label map grown (dotted)",
    "Dice {dice:.2f}: twice the shared part over both",
    "surface Dice {surface_dice:.2f}: border but × (over 1 mm)",
    "HD95 {hd95:.1f} mm: 95 % of borders are nearer",
    "D95 {d95:.0f} Gy, V20 {v20:.2f}: dose (dotted, Gy) inside",
    "mean {mean:T1:.0f}, sd {sd:T1:.0f}, p10 {p10:T1:.0f}, p90 {p90:T1:.0f} inside",
)


def draw() -> Figure:
    """Return fifteen pictures of one made-up structure in a slice of 1 mm voxels."""
    from lab.figures import BLUE, new_figure

    y, x = np.indices((_ROWS, _COLUMNS))
    lesion = ((x - 15) / 11) ** 2 + ((y - 14 + 0.3 * (x - 15)) / 6) ** 2 < 1
    satellite = (x - 31) ** 2 + (y - 20) ** 2 < 8
    mapped = ((x - 14) / 9) ** 2 + ((y - 14 + 0.3 * (x - 14)) / 6) ** 2 < 1
    vessel = np.abs(x - 33 + 0.2 * (y - 14)) < 2
    organ = (y < 9) & (x > 6) & (x < 30)
    dose = 30 - 0.9 * np.hypot(x - 10, y - 15)
    image = 100 - 2.0 * np.hypot(x - 18, y - 14) + 5 * np.sin(x) * np.cos(2 * y)
    numbers = measure_slice(lesion, mapped, {"vessel": vessel, "organ": organ}, dose, image)
    pieces = measure_slice(lesion | satellite, mapped, {}, dose, image)
    numbers["components"] = pieces["components"]
    figure = new_figure(15, 7.4)
    panels = [figure.add_subplot(3, 5, k + 1) for k in range(len(_TITLES))]
    for axes, title in zip(panels, _TITLES):
        axes.imshow(lesion, cmap="Greys", vmin=0, vmax=3, origin="lower")
        axes.set_title(_fill(title, numbers), fontsize=8.5)
        axes.set(xticks=[], yticks=[])
    panels[0].vlines(np.arange(_COLUMNS) - 0.5, 0, _ROWS - 1, color="white", linewidth=0.7)
    panels[0].hlines(np.arange(_ROWS) - 0.5, 0, _COLUMNS - 1, color="white", linewidth=0.7)
    _segment(panels[1], *_longest(lesion))
    for ends in (_longest(lesion), _longest(lesion, across=True)):
        _segment(panels[2], *ends)
    _draw_crossings(panels[3], lesion)
    turn, radius = np.linspace(0, 2 * np.pi, 100), math.cbrt(750 * numbers["volume"] / math.pi)
    panels[4].plot(15 + radius * np.cos(turn), 14 + radius * np.sin(turn), ":", color="black")
    panels[5].imshow(lesion | satellite, cmap="Greys", vmin=0, vmax=3, origin="lower")
    _hatch(panels[6], vessel)
    _segment(panels[6], *_nearest(lesion, vessel))
    for axes in (panels[7], panels[8]):
        _hatch(axes, organ)
    panels[8].imshow(np.where(lesion & organ, 1.0, np.nan), cmap="Blues", vmin=0, origin="lower")
    for row, column in np.argwhere(lesion & ~organ & np.roll(organ, 1, axis=0)):
        panels[7].plot((column - 0.5, column + 0.5), (row - 0.5,) * 2, color=BLUE, linewidth=3)
    for axes in panels[9:13]:
        axes.contour(mapped, [0.5], colors="black", linestyles="dashed")
    grown = distance_transform_edt(~mapped) <= numbers["margin"] + 1e-6
    panels[9].contour(grown, [0.5], colors="black", linestyles="dotted")
    _hatch(panels[10], lesion & mapped)
    outlines = [mask & ~binary_erosion(mask) for mask in (lesion, mapped)]
    far = outlines[0] & (distance_transform_edt(~outlines[1]) > 1)
    rows, columns = np.nonzero(far)
    panels[11].scatter(columns, rows, color=BLUE, marker="x", s=22)
    away = np.where(outlines[0], distance_transform_edt(~outlines[1]), 0)
    at = np.array(np.unravel_index(np.abs(away - numbers["hd95"]).argmin(), away.shape))
    _segment(panels[12], at, _nearest(_only(at, lesion.shape), outlines[1])[1])
    lines = panels[13].contour(dose, [10, 15, 20, 25], colors="black", linestyles="dotted")
    panels[13].clabel(lines, fontsize=8)
    panels[14].clear()
    panels[14].hist(image[lesion], bins=24, color="0.77")
    for name, dash in (("p10", ":"), ("mean", "-"), ("p90", ":")):
        panels[14].axvline(numbers[f"{name}:T1"], color=BLUE, linestyle=dash, linewidth=2)
    panels[14].set_title(_fill(_TITLES[14], numbers), fontsize=8.5)
    panels[14].set(yticks=[], box_aspect=_ROWS / _COLUMNS)
    return figure


def _only(at: NDArray[np.int64], shape: tuple[int, ...]) -> Mask:
    found = np.zeros(shape, dtype=np.bool_)
    found[tuple(at)] = True
    return found


def measure_slice(
    lesion: Mask,
    mapped: Mask,
    masks: dict[str, Mask],
    dose: NDArray[np.float64],
    image: NDArray[np.float64],
) -> dict[str, float]:
    """Return measures of one slice as a sample of a patient whose label map is another."""
    patient = MeasuredPatient(
        Grid((*lesion.shape, 1), spacing=1.0),
        {"lesion": (1,)},
        mapped.astype(np.uint8)[..., np.newaxis],
        images={"T1": image[..., np.newaxis]},
        masks={name: mask[..., np.newaxis] for name, mask in masks.items()},
        dose_gy=dose[..., np.newaxis],
    )
    structure = LabelMap(patient, lesion.astype(np.uint8).ravel()).structure("lesion")
    words = ["volume", "area", "diameter", "bidirectional", "sphericity", "components", "margin"]
    words += ["dice", "surface_dice", "hd95", "d95", "v20"]
    words += [f"{kind}:T1" for kind in ("mean", "sd", "p10", "p90")]
    words += [f"{kind}:{name}" for name in masks for kind in ("distance", "contact", "overlap")]
    return {each.name: each(structure) for each in find_measures(words, patient)}


def _fill(title: str, numbers: dict[str, float]) -> str:
    """Return a title with its numbers; their names may have a colon."""
    for name, value in numbers.items():
        before, found, after = title.partition(f"{{{name}:.")
        if found:
            form, _, rest = after.partition("}")
            title = f"{before}{format(value, '.' + form)}{rest}"
    return title


def _segment(axes: Axes, one: NDArray[np.int64], other: NDArray[np.int64]) -> None:
    from lab.figures import BLUE

    axes.plot(*np.stack([one, other]).T[::-1], color=BLUE, linewidth=2, marker="o", markersize=4)


def _longest(mask: Mask, *, across: bool = False) -> NDArray[np.int64]:
    """Return the ends of the longest distance within a mask, or of the longest across it."""
    points = np.argwhere(mask)
    gap = points[:, None] - points[None]
    apart = np.linalg.norm(gap, axis=2)
    if across:
        one, other = _longest(mask)
        along = (other - one) / np.linalg.norm(other - one)
        apart = np.where(np.abs(gap @ along) < 0.5, apart, 0)
    found: NDArray[np.int64] = points[list(np.unravel_index(int(apart.argmax()), apart.shape))]
    return found


def _nearest(one: Mask, other: Mask) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the nearest voxels of two masks."""
    first, second = np.argwhere(one), np.argwhere(other)
    squares = np.square(first[:, None] - second[None]).sum(axis=2)
    start, end = np.unravel_index(int(squares.argmin()), squares.shape)
    return first[start], second[end]


def _hatch(axes: Axes, mask: Mask) -> None:
    axes.contourf(mask, [0.5, 1.5], colors="none", hatches=["////"])
    axes.contour(mask, [0.5], colors="black", linewidths=0.8)


def _draw_crossings(axes: Axes, mask: Mask) -> None:
    """Draw some lines along rows and columns, and where they enter and leave."""
    for k in range(2, _COLUMNS, 4):
        for axis, size in enumerate(mask.shape):
            if k >= mask.shape[1 - axis]:
                continue
            line = np.take(mask, k, axis=1 - axis)
            cuts = np.flatnonzero(line[1:] != line[:-1]) + 0.5
            spots, whole = np.full(len(cuts), k), ((0, size - 1), (k, k))
            ends, dots = (whole, (cuts, spots)) if axis else (whole[::-1], (spots, cuts))
            axes.plot(*ends, color="0.4", linewidth=0.6)
            axes.plot(*dots, "o", color="black", markersize=3)
