"""The figures of the synthetic validation: error along samples, and over weight and width."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lab.figures import (
    BLACK,
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    RED,
    SKY,
    new_figure,
    save_png,
)
from lab.synthetic.plan import SyntheticPlan
from lab.synthetic.summary import METRICS, ErrorSummary, Metric, ratios
from lab.words import power

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.contour import QuadContourSet
    from matplotlib.figure import Figure


METRIC_LABELS: dict[Metric, str] = {
    "log_probability_error_nats": "mean |error| of log-probability (nats)",
    "total_variation": "total variation",
}

Dash = tuple[int, tuple[float, ...]] | Literal["-"]

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


class Look(NamedTuple):
    """How a line is drawn: each has a marker and a dash of its own, for print without colour."""

    colour: str
    marker: str
    dash: Dash


SIZES = [Look(BLUE, "o", "-"), Look(RED, "s", (0, (5, 2))), Look(BLACK, "^", (0, (1, 1.2)))]
METHODS = {
    "unary only": Look(SKY, "x", (0, (1, 1.2))),
    "samples of Q": Look(ORANGE, "v", (0, (5, 2, 1, 2))),
    "votes": Look(BLACK, "^", (0, (1, 1.2))),
    "order-1 Perturb-and-MAP": Look(RED, "s", (0, (5, 2))),
    "conditional": Look(PURPLE, "D", "-"),
    "full perturbation": Look(BLUE, "P", (0, (8, 2, 1, 2, 1, 2))),
    "Gibbs": Look(GREEN, "*", (0, (3, 1))),
}


def draw_curves(file: IO[bytes], summary: ErrorSummary, plan: SyntheticPlan) -> None:
    """Write the figure as a PNG: both metrics, self term or not, and all methods at one size."""
    from matplotlib.ticker import LogLocator, NullFormatter

    figure = new_figure(10.2, 6.9)
    axes = figure.subplots(2, 3, sharex="col", sharey="row")
    weight, sigma = plan.curve_settings[0]
    for line, metric in zip(axes, METRICS[::-1]):
        for axis, self_term in zip(line, (False, True)):
            _draw_sizes(axis, summary, plan, metric, (weight, sigma, self_term))
        _draw_methods(line[2], summary, plan, metric, (weight, sigma, False))
        line[0].set_ylabel(METRIC_LABELS[metric])
    titles = (
        "votes, no self term (j ≠ i)",
        "votes, self term kept",
        f"all methods, N = {plan.voxels[-1]}, no self term",
    )
    for number, (axis, title) in enumerate(zip(axes[0], titles)):
        axis.set_title(f"({'abc'[number]}) {title}", fontsize=10, loc="left")
    for axis in axes[1]:
        axis.set_xlabel("number of samples |S|")
    for axis in axes.flat:
        axis.set(xscale="log", yscale="log")
        axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.yaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_formatter(NullFormatter())
        axis.grid(visible=True, which="major", color="0.88", linewidth=0.6)
    _legends(figure, plan)
    save_png(figure, file)


def _draw_sizes(
    axis: Axes,
    summary: ErrorSummary,
    plan: SyntheticPlan,
    metric: Metric,
    setting: tuple[float, float, bool],
) -> None:
    """Draw votes and mean field of every size of grid."""
    for voxels, look in zip(plan.voxels, SIZES):
        votes = summary.curve(metric, "curves", voxels, setting, "votes")
        [plain] = summary.curve(metric, "curves", voxels, setting, "mean field").values()
        _line(axis, {size: spread.mean for size, spread in votes.items()}, look)
        axis.axhline(plain.mean, color=look.colour, linestyle=look.dash, linewidth=1.0)


def _draw_methods(
    axis: Axes,
    summary: ErrorSummary,
    plan: SyntheticPlan,
    metric: Metric,
    setting: tuple[float, float, bool],
) -> None:
    """Draw all methods on the largest grid."""
    voxels = plan.voxels[-1]
    for name, look in METHODS.items():
        found = summary.curve(metric, "comparators", voxels, setting, name)
        _line(axis, {size: spread.mean for size, spread in found.items()}, look)
    [plain] = summary.curve(metric, "comparators", voxels, setting, "mean field").values()
    axis.axhline(plain.mean, color="0.35", linewidth=1.0)


def _line(axis: Axes, means: dict[int | None, float], look: Look) -> None:
    axis.plot(
        [size or 0 for size in means],
        list(means.values()),
        color=look.colour,
        linestyle=look.dash,
        marker=look.marker,
        markersize=5,
        markerfacecolor="white",
        linewidth=1.5,
    )


def _legends(figure: Figure, plan: SyntheticPlan) -> None:
    """Explain the lines of the first two columns, and those of the third, below the panels."""
    from matplotlib.lines import Line2D

    def handle(look: Look, name: str, *, marked: bool = True) -> Line2D:
        return Line2D(
            [],
            [],
            color=look.colour,
            linestyle=look.dash,
            marker=look.marker if marked else "",
            markersize=5,
            markerfacecolor="white",
            linewidth=1.5 if marked else 1.0,
            label=name,
        )

    sizes = list(zip(plan.voxels, SIZES))
    first = [handle(look, f"votes, N = {voxels}") for voxels, look in sizes]
    first += [handle(look, f"mean field, N = {n}", marked=False) for n, look in sizes]
    second = [handle(look, name) for name, look in METHODS.items()]
    second.append(Line2D([], [], color="0.35", linewidth=1.0, label="mean field"))
    style: dict[str, Any] = {
        "ncols": 2,
        "alignment": "left",
        "fontsize": 9,
        "frameon": False,
        "handlelength": 3.6,
    }
    figure.legend(handles=first, title="(a) and (b)", loc="outside lower left", **style)
    figure.legend(handles=second, title="(c)", loc="outside lower right", **style)


def draw_map(file: IO[bytes], summary: ErrorSummary, plan: SyntheticPlan) -> None:
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


def _fill(axis: Axes, plan: SyntheticPlan, found: NDArray[np.float64]) -> QuadContourSet:
    """Draw the ratios (sigmas, weights), hatched where they are above 1."""
    x, y = plan.map_weights, plan.map_sigmas
    exponent = np.clip(np.log2(found), -_LARGEST_EXPONENT, _LARGEST_EXPONENT)
    levels = np.log2(LEVELS)
    filled = axis.contourf(x, y, exponent, levels=levels, cmap="Blues_r")
    axis.contour(x, y, exponent, levels=levels, colors="0.45", linewidths=0.5, linestyles="solid")
    axis.contourf(x, y, exponent, levels=[0, levels[-1]], colors="none", hatches=["////"])
    axis.contour(x, y, exponent, levels=[0], colors="black", linewidths=2.2, linestyles="solid")
    return filled


def _mark_sampling(axis: Axes, plan: SyntheticPlan, perfect: NDArray[np.float64]) -> None:
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


def _legend(figure: Figure, plan: SyntheticPlan) -> None:
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
