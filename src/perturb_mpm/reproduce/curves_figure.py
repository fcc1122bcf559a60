"""The paper's figure: error against the number of samples, with mean field as level lines."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Any, Literal, NamedTuple

from perturb_mpm.reproduce.plan import Plan
from perturb_mpm.reproduce.style import (
    BLACK,
    BLUE,
    GREEN,
    METRIC_LABELS,
    ORANGE,
    PURPLE,
    RED,
    SKY,
    new_figure,
    save_png,
)
from perturb_mpm.reproduce.summary import METRICS, Metric, Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Dash = tuple[int, tuple[float, ...]] | Literal["-"]


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


def draw_curves(file: IO[bytes], summary: Summary, plan: Plan) -> None:
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
    axis: Axes, summary: Summary, plan: Plan, metric: Metric, setting: tuple[float, float, bool]
) -> None:
    """Draw votes and mean field of every size of grid."""
    for voxels, look in zip(plan.voxels, SIZES):
        votes = summary.curve(metric, "curves", voxels, setting, "votes")
        [plain] = summary.curve(metric, "curves", voxels, setting, "mean field").values()
        _line(axis, {size: spread.mean for size, spread in votes.items()}, look)
        axis.axhline(plain.mean, color=look.colour, linestyle=look.dash, linewidth=1.0)


def _draw_methods(
    axis: Axes, summary: Summary, plan: Plan, metric: Metric, setting: tuple[float, float, bool]
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


def _legends(figure: Figure, plan: Plan) -> None:
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
