"""A picture of each measure's definition, drawn by the functions that measure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.measures import LabelMap, MeasuredPatient, find_measures
from perturb_mpm.model import Grid

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SIZE = 40


def draw() -> Figure:
    """Return six pictures of one made-up structure in a slice of 1 mm voxels."""
    from scipy.ndimage import distance_transform_edt

    from lab.figures import BLUE, GREEN, ORANGE, new_figure

    y, x = np.indices((_SIZE, _SIZE))
    lesion = ((x - 17) / 11) ** 2 + ((y - 20 + 0.3 * (x - 17)) / 6) ** 2 < 1
    mapped = ((x - 16) / 9) ** 2 + ((y - 20 + 0.3 * (x - 16)) / 6) ** 2 < 1
    vessel = np.abs(x - 33 + 0.2 * (y - 20)) < 2
    numbers = _measure(lesion, mapped, vessel)
    figure = new_figure(9, 6.4)
    panels = [figure.add_subplot(2, 3, k + 1) for k in range(6)]

    _show(panels[0], lesion, f"volume {numbers['volume']:.2f} ml: voxels times their volume")
    _show(panels[1], lesion, f"diameter {numbers['diameter']:.1f} mm, bidirectional product")
    _draw_diameters(panels[1], lesion)
    _show(panels[2], lesion, f"area {numbers['area']:.0f} mm²: lines that cross the border")
    for k in range(4, _SIZE, 6):
        for line in (((0, _SIZE - 1), (k, k)), ((k, k), (0, _SIZE - 1))):
            panels[2].plot(*line, color=GREEN, linewidth=0.6)
        panels[2].axline((k, 0), slope=1, color=GREEN, linewidth=0.6)
        panels[2].axline((k, _SIZE - 1), slope=-1, color=GREEN, linewidth=0.6)
    _show(panels[3], lesion, f"distance {numbers['distance:vessel']:.1f} mm to a vessel")
    panels[3].contour(vessel, [0.5], colors=ORANGE)
    away = np.where(lesion, distance_transform_edt(~vessel), np.inf)
    start = np.unravel_index(int(away.argmin()), away.shape)
    ends = np.argwhere(vessel)
    end = ends[np.square(ends - start).sum(axis=1).argmin()]
    panels[3].plot((start[1], end[1]), (start[0], end[0]), color=BLUE, linewidth=2)
    _show(panels[4], lesion, f"margin {numbers['margin']:.1f} mm beyond the label map")
    panels[4].contour(mapped, [0.5], colors=ORANGE)
    grown = distance_transform_edt(~mapped) <= numbers["margin"] + 1e-6
    panels[4].contour(grown, [0.5], colors=ORANGE, linestyles="dashed")
    _show(panels[5], lesion & mapped, f"Dice {numbers['dice']:.2f} with the label map")
    panels[5].contour(mapped, [0.5], colors=ORANGE)
    panels[5].contour(lesion, [0.5], colors=BLUE)
    return figure


def _measure(
    lesion: NDArray[np.bool_], mapped: NDArray[np.bool_], vessel: NDArray[np.bool_]
) -> dict[str, float]:
    """Return measures of one slice as a sample of a patient whose label map is another."""
    patient = MeasuredPatient(
        Grid((_SIZE, _SIZE, 1), spacing=1.0),
        {"lesion": (1,)},
        mapped.astype(np.uint8)[..., np.newaxis],
        masks={"vessel": vessel[..., np.newaxis]},
    )
    structure = LabelMap(patient, lesion.astype(np.uint8).ravel()).structure("lesion")
    words = ("volume", "area", "diameter", "distance:vessel", "margin", "dice")
    return {each.name: each(structure) for each in find_measures(words, patient)}


def _show(axes: Axes, mask: NDArray[np.bool_], title: str) -> None:
    axes.imshow(mask, cmap="Greys", vmin=0, vmax=3, origin="lower")
    axes.set_title(title, fontsize=8)
    axes.set_xticks([])
    axes.set_yticks([])


def _draw_diameters(axes: Axes, mask: NDArray[np.bool_]) -> None:
    """Draw the longest distance, and the longest across it."""
    from lab.figures import BLUE, ORANGE

    points = np.argwhere(mask).astype(float)
    apart = np.linalg.norm(points[:, None] - points[None], axis=2)
    one, other = np.unravel_index(int(apart.argmax()), apart.shape)
    axes.plot(*points[[one, other]].T[::-1], color=BLUE, linewidth=2)
    along = (points[other] - points[one]) / apart.max()
    gap = points[:, None] - points[None]
    across = np.where(np.abs(gap @ along) < 0.5, apart, 0)
    one, other = np.unravel_index(int(across.argmax()), across.shape)
    axes.plot(*points[[one, other]].T[::-1], color=ORANGE, linewidth=2)
