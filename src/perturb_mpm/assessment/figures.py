"""Plots of an evaluation as SVG: readable in black and white, the same bytes every time."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from perturb_mpm.assessment.measure import SPECIFICITIES, Measured

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STYLES = ("-", "--", ":", "-.", (0, (5, 1)), (0, (1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "x")
GREYS = ("#000000", "#444444", "#777777", "#999999", "#222222", "#555555")


def svg_of(draw: Callable[[Figure], object], width: float = 5.0, height: float = 4.0) -> str:
    """Return a figure as SVG text without a date, for a page."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.hashsalt": "perturb-mpm", "svg.fonttype": "none", "font.size": 10}):
        figure = Figure(figsize=(width, height), layout="constrained")
        draw(figure)
        stream = io.StringIO()
        figure.savefig(
            stream, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type"))
        )
    text = stream.getvalue()
    return text[text.index("<svg") :]


def reliability_plot(measured: Sequence[Measured]) -> str:
    """Return how often the most probable label is right, against its probability."""
    pooled = measured[0].reliability
    for each in measured[1:]:
        pooled = pooled.pooled(each.reliability)

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.plot([0, 1], [0, 1], color="#bbbbbb", linewidth=1)
        if len(measured) > 1:
            for each in measured:
                axes.plot(
                    each.reliability.confidence, each.reliability.accuracy, color="#cccccc", lw=0.8
                )
        filled = pooled.voxels > 0
        axes.plot(pooled.confidence[filled], pooled.accuracy[filled], "ko-", markersize=4)
        axes.set(
            xlabel="probability of the most probable label",
            ylabel="how often it is right",
            xlim=(0, 1.02),
            ylim=(0, 1.02),
            title=f"calibration error {pooled.expected_error:.3f}, all cases pooled",
        )

    return svg_of(draw)


def detection_plot(measured: Sequence[Measured]) -> str:
    """Return the mean share of errors found against the share of correct voxels left alone."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for place, region in enumerate(measured[0].sensitivity):
            curves = np.array([each.sensitivity[region] for each in measured])
            defined = curves[~np.isnan(curves).any(axis=1)]
            if len(defined):
                axes.plot(
                    SPECIFICITIES,
                    defined.mean(axis=0),
                    color=GREYS[place % len(GREYS)],
                    linestyle=STYLES[place % len(STYLES)],
                    marker=MARKERS[place % len(MARKERS)],
                    markevery=(2 * place, 20),
                    markersize=4,
                    label=region,
                )
        axes.plot([0, 1], [1, 0], color="#bbbbbb", linewidth=1)
        axes.set(
            xlabel="specificity: correct voxels called certain",
            ylabel="sensitivity: errors called uncertain",
            xlim=(-0.02, 1.02),
            ylim=(-0.02, 1.02),
        )
        if axes.lines[:-1]:
            axes.legend(loc="lower left", fontsize=9)

    return svg_of(draw)


def side_by_side(measured: Measured) -> str:
    """Return the slice with most errors: where it is wrong, and where it is uncertain."""

    def draw(figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        # Shown with the first axis to the right and the second upwards.
        left.imshow(measured.error.T, origin="lower", cmap="gray_r", vmin=0, vmax=1)
        left.set_title("wrong labels (black)", fontsize=10)
        picture = right.imshow(
            measured.entropy_bits.T,
            origin="lower",
            cmap="gray_r",
            vmin=0,
            vmax=measured.most_bits,
        )
        right.set_title("entropy", fontsize=10)
        figure.colorbar(picture, ax=right, label="bits", shrink=0.8)
        for axes in (left, right):
            _bare(axes)

    return svg_of(draw, 7.0, 3.2)


def _bare(axes: Axes) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
