"""A map over weight and width: where an estimator is closer to the truth than mean field."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.reproduce.beaten import ratios
from perturb_mpm.reproduce.plan import Plan
from perturb_mpm.reproduce.style import METRIC_LABELS, new_figure, save_png
from perturb_mpm.reproduce.summary import METRICS, Summary
from perturb_mpm.reproduce.words import power

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.contour import QuadContourSet
    from matplotlib.figure import Figure

LEVELS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8, 16)
COLUMNS = (
    ("votes", False, "votes, no self term (j ≠ i)"),
    ("votes", True, "votes, self term kept"),
    ("conditional", False, "conditional, no self term"),
)

_CURVES: dict[str, Any] = {
    "marker": "o",
    "linestyle": "none",
    "markersize": 7,
    "markerfacecolor": "white",
    "markeredgecolor": "black",
}

# Just inside the outermost levels, so that what lies beyond is filled too.
_LARGEST_EXPONENT = 3.999


def draw_map(file: IO[bytes], summary: Summary, plan: Plan) -> None:
    """Write the figure as a PNG, for the largest grid."""
    voxels = plan.voxels[-1]
    figure = new_figure(10.2, 6.9)
    axes = figure.subplots(2, 3, sharex=True, sharey=True)
    for line, metric in zip(axes, METRICS[::-1]):
        for axis, (estimator, self_term, _) in zip(line, COLUMNS):
            arguments = (summary, plan, metric, voxels)
            found = ratios(*arguments, estimator, self_term=self_term)
            filled = _fill(axis, plan, found)
            if estimator == "votes":
                _mark_sampling(axis, plan, ratios(*arguments, "exact samples", self_term=self_term))
        line[0].set_ylabel(f"{METRIC_LABELS[metric]}\n\nkernel width σ (voxels)")
    for number, (axis, (_, _, title)) in enumerate(zip(axes[0], COLUMNS)):
        axis.set_title(f"({'abc'[number]}) {title}", fontsize=10, loc="left")
    for axis in axes[1]:
        axis.set_xlabel("weight w")
    for axis in axes.flat:
        _scale_axes(axis)
        axis.plot(*zip(*plan.curve_settings), **_CURVES, clip_on=False)
    bar = figure.colorbar(filled, ax=axes, ticks=np.log2(LEVELS), shrink=0.9, pad=0.02)
    bar.ax.set_yticklabels(_level_names())
    bar.set_label("error of the estimator / error of mean field")
    _legend(figure, plan)
    save_png(figure, file)


def _fill(axis: Axes, plan: Plan, found: NDArray[np.float64]) -> QuadContourSet:
    """Draw the ratios (sigmas, weights), hatched where they are above 1."""
    x, y = plan.map_weights, plan.map_sigmas
    exponent = np.clip(np.log2(found), -_LARGEST_EXPONENT, _LARGEST_EXPONENT)
    levels = np.log2(LEVELS)
    filled = axis.contourf(x, y, exponent, levels=levels, cmap="Blues_r")
    axis.contour(x, y, exponent, levels=levels, colors="0.45", linewidths=0.5, linestyles="solid")
    axis.contourf(x, y, exponent, levels=[0, levels[-1]], colors="none", hatches=["////"])
    axis.contour(x, y, exponent, levels=[0], colors="black", linewidths=2.2, linestyles="solid")
    return filled


def _mark_sampling(axis: Axes, plan: Plan, perfect: NDArray[np.float64]) -> None:
    """Draw where exact samples are as good as mean field, if that is inside the map."""
    exponent = np.log2(perfect)  # (sigmas, weights)
    if exponent.min() < 0 < exponent.max():
        axis.contour(
            plan.map_weights,
            plan.map_sigmas,
            exponent,
            levels=[0],
            colors="black",
            linewidths=1.5,
            linestyles="dashed",
        )


def _scale_axes(axis: Axes) -> None:
    from matplotlib.ticker import FixedLocator, NullLocator

    axis.set(xscale="log", yscale="log")
    for one, ticks in ((axis.xaxis, (0.25, 0.5, 1, 2, 4)), (axis.yaxis, (0.4, 0.7, 1, 1.4, 2, 3))):
        one.set_major_locator(FixedLocator(ticks))
        one.set_minor_locator(NullLocator())
        one.set_major_formatter("{x:g}")


def _level_names() -> list[str]:
    names = [f"1/{round(1 / level)}" if level < 1 else f"{level:g}" for level in LEVELS]
    return [f"≤ {names[0]}", *names[1:-1], f"≥ {names[-1]}"]


def _legend(figure: Figure, plan: Plan) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    perfect = f"{power(plan.map_samples)} exact samples as good (left: worse)"
    handles = [
        Line2D([], [], color="black", linewidth=2.2, label="as good as mean field"),
        Patch(facecolor="white", edgecolor="black", hatch="////", label="worse than mean field"),
        Line2D([], [], color="black", linewidth=1.5, linestyle="dashed", label=perfect),
        Line2D([], [], **_CURVES, label="settings of the curves"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=9, frameon=False)
