"""Axial slices side by side, with outlines, a scale bar and a map of entropy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LineStyle = Literal["solid", "dashed", "dotted"]

_PANEL_INCHES = 3.2
_SCALE_BAR_MM = 30.0


@dataclass(frozen=True)
class Outline:
    """The border of a region, told apart by colour on screen and by line style in print."""

    name: str
    region: NDArray[np.bool_]  # (nx, ny)
    colour: str
    style: LineStyle


@dataclass(frozen=True)
class Panel:
    """One axial slice, axes pointing right and front, with the borders drawn on it.

    ``bits`` is the top of the colour scale where the slice is a map of entropy, and None where
    it is an image, shown in grey.
    """

    title: str
    slice: NDArray[np.floating]  # (nx, ny)
    outlines: Sequence[Outline] = ()
    bits: float | None = None


def draw_panels(file: IO[bytes], panels: Sequence[Panel], spacing: tuple[float, float]) -> None:
    """Write the panels to ``file`` as a PNG; ``spacing`` is that of the slice in mm."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    nx, ny = panels[0].slice.shape
    tall = _PANEL_INCHES * (ny * spacing[1]) / (nx * spacing[0])
    figure = Figure(figsize=(_PANEL_INCHES * len(panels) + 0.7, tall + 0.7), layout="constrained")
    FigureCanvasAgg(figure)
    axes: Sequence[Axes] = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, panel in zip(axes, panels):
        _draw(axis, panel, spacing)
    _mark_sides(axes[0])
    _mark_scale(axes[0], spacing)
    _add_legend(figure, panels)
    figure.savefig(file, format="png", dpi=130, metadata={"Software": None})


def _draw(axis: Axes, panel: Panel, spacing: tuple[float, float]) -> None:
    """Draw one panel; distances on its axes are in mm."""
    from matplotlib.patheffects import withStroke
    from matplotlib.ticker import MultipleLocator

    nx, ny = panel.slice.shape
    extent = (0.0, nx * spacing[0], 0.0, ny * spacing[1])
    top = panel.bits or np.percentile(panel.slice, 99.8)
    image = axis.imshow(
        panel.slice.T,
        origin="lower",
        extent=extent,
        cmap="gray" if panel.bits is None else "inferno",
        vmin=0.0,
        vmax=float(top),
        interpolation="nearest",
    )
    axis.set_title(panel.title, fontsize=10)
    axis.set_axis_off()
    if panel.bits is not None:
        bar = axis.figure.colorbar(image, ax=axis, shrink=0.8, pad=0.02, ticks=MultipleLocator(0.5))
        bar.set_label("entropy (bits)", fontsize=9)
    centres = [(np.arange(n) + 0.5) * step for n, step in zip((nx, ny), spacing)]
    for outline in panel.outlines:
        if outline.region.any():
            lines = axis.contour(
                *centres,
                outline.region.T.astype(float),
                levels=[0.5],
                colors=outline.colour,
                linestyles=outline.style,
                linewidths=1.4,
            )
            # A dark edge keeps a light line readable on bright tissue.
            lines.set(path_effects=[withStroke(linewidth=2.6, foreground="black")])


def _mark_sides(axis: Axes) -> None:
    """Say which side is which: the patient's left is on the left."""
    for place, name in ((0.03, "L"), (0.97, "R")):
        axis.text(
            place,
            0.97,
            name,
            transform=axis.transAxes,
            color="white",
            fontsize=9,
            ha="left" if name == "L" else "right",
            va="top",
        )


def _mark_scale(axis: Axes, spacing: tuple[float, float]) -> None:
    """Draw a bar of known length into the lower left corner."""
    x, y = 3.0 * spacing[0], 3.0 * spacing[1]
    axis.plot([x, x + _SCALE_BAR_MM], [y, y], color="white", linewidth=2.0)
    axis.text(x, y + 2.0, f"{_SCALE_BAR_MM:.0f} mm", color="white", fontsize=8, va="bottom")


def _add_legend(figure: Figure, panels: Sequence[Panel]) -> None:
    """Explain each kind of outline once, below the panels."""
    from matplotlib.lines import Line2D

    kinds = {outline.name: outline for panel in panels for outline in panel.outlines}
    handles = [
        Line2D([], [], color=kind.colour, linestyle=kind.style, linewidth=1.6, label=name)
        for name, kind in kinds.items()
    ]
    if handles:
        legend = figure.legend(
            handles=handles, loc="outside lower center", ncols=len(handles), fontsize=9
        )
        legend.get_frame().set(facecolor="0.25", edgecolor="none")
        for text in legend.get_texts():
            text.set_color("white")
