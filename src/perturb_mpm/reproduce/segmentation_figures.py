"""The pictures of the segmentation experiment: reliability, and intervals of volumes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from perturb_mpm.reproduce.segmentation_summary import (
    FIELDS,
    FOREST,
    TurnResult,
    pooled_curve,
    volume_scores,
)
from perturb_mpm.reproduce.style import BLACK, BLUE, GREEN, ORANGE, RED, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BEFORE = {
    "forest, raw": (BLACK, "o"),
    FOREST: (ORANGE, "s"),
    "CRF, default": (BLUE, "^"),
    "votes, default": (GREEN, "v"),
}
_AFTER = {
    "forest, raw": (BLACK, "o"),
    "CRF, tuned for both": (RED, "D"),
    "votes, tuned for both": (BLACK, "P"),
    "CRF, tuned for likelihood": (BLUE, "^"),
    "votes, tuned for likelihood": (GREEN, "v"),
    FIELDS: (ORANGE, "s"),
}
_FEWEST = 50  # voxels of a bin that is drawn
_TICKS = (1, 3, 10, 30, 100, 300, 1000)  # ml


def calibration_figure(turns: Sequence[TurnResult]) -> Figure:
    """Draw reliability curves before and after tuning, side by side."""
    figure = new_figure(9.0, 4.2)
    sides = figure.subplots(1, 2, sharey=True)
    for axes, title, maps in zip(sides, ("before tuning", "after tuning"), (_BEFORE, _AFTER)):
        axes.plot([0, 1], [0, 1], color="0.7", linewidth=1)
        for name, (colour, marker) in maps.items():
            curve = pooled_curve(turns, name)
            drawn = curve.voxels >= _FEWEST
            axes.plot(
                curve.confidence[drawn],
                curve.accuracy[drawn],
                color=colour,
                marker=marker,
                markersize=4,
                linewidth=1.2,
                label=f"{name}: ECE {curve.expected_error:.3f}",
            )
        axes.set_title(title)
        axes.set_xlim(0.2, 1.02)
        axes.set_ylim(0.0, 1.02)
        axes.set_xlabel("probability of the most probable label")
        axes.legend(frameon=False, loc="lower right", fontsize=8)
        _open(axes)
    sides[0].set_ylabel("how often it is right")
    return figure


def volume_figure(turns: Sequence[TurnResult]) -> Figure:
    """Draw each patient's sampled interval against the true volume, region by region."""
    from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter

    rows = volume_scores(turns)
    regions = list(dict.fromkeys(row.region for row in rows))
    figure = new_figure(9.0, 3.6)
    for axes, region in zip(np.atleast_1d(figure.subplots(1, len(regions))), regions):
        here = [row for row in rows if row.region == region]
        truth = np.array([row.truth_ml for row in here]) + 1.0
        lower = np.array([row.lower_ml for row in here]) + 1.0
        upper = np.array([row.upper_ml for row in here]) + 1.0
        axes.plot([_TICKS[0], _TICKS[-1]], [_TICKS[0], _TICKS[-1]], color="0.7", linewidth=1)
        for low, high, value, row in zip(lower, upper, truth, here):
            axes.plot([value, value], [low, high], color=BLUE if row.inside else RED, linewidth=2)
        axes.set_xscale("log")
        axes.set_yscale("log")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(FixedLocator(_TICKS))
            axis.set_major_formatter(ScalarFormatter())
            axis.set_minor_locator(NullLocator())
        axes.set_xlim(0.9, 1.1 * _TICKS[-1])
        axes.set_ylim(0.9, 1.1 * _TICKS[-1])
        inside = sum(row.inside for row in here)
        axes.set_title(f"{region}: {inside} of {len(here)} inside")
        axes.set_xlabel("true volume + 1 ml")
        _open(axes)
    figure.axes[0].set_ylabel("sampled 95 % interval + 1 ml")
    return figure


def _open(axes: Axes) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
