"""Charts as shapes whose places are in % of the chart: templates draw them as SVG.

They take the page's own colours, so that they can be read in light, in dark and in print, and they
tell lines apart by dashes, which black and white leaves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

DASHES = ("", "6 3", "2.5 2", "8 3 2 3")
"""Of SVG strokes, a solid line first."""

_BINS = 24
_MOST_TICKS = 5


@dataclass(frozen=True)
class Tick:
    """A labelled place on an axis, in % of its length."""

    place: float
    text: str


@dataclass(frozen=True)
class HistogramBar:
    """A bar of a histogram; everything in % of the chart's width and height."""

    left: float
    width: float
    height: float


@dataclass(frozen=True)
class Histogram:
    """How values are spread, with one value and an interval marked on the same axis."""

    bars: tuple[HistogramBar, ...]
    ticks: tuple[Tick, ...]
    low: float  # the interval, in %
    high: float
    median: float
    marked: float
    truth: float | None = None  # where it is known


@dataclass(frozen=True)
class ChartLine:
    """A line through points, in % from the left and from the bottom."""

    points: Sequence[tuple[float, float]]
    name: str = ""
    dashes: str = ""  # of an SVG stroke; empty: a solid line
    dots: bool = False
    faint: bool = False


@dataclass(frozen=True)
class LineChart:
    """Lines over two axes."""

    lines: Sequence[ChartLine]
    x_ticks: Sequence[Tick]
    y_ticks: Sequence[Tick]
    x_name: str
    y_name: str = ""


def histogram(
    values: NDArray[np.float64],
    interval: tuple[float, float],
    median: float,
    marked: float,
    truth: float = math.nan,
) -> Histogram:
    """Return the histogram of values; its axis holds all of them, the marked one and the truth."""
    shown = [each for each in (marked, truth, *interval) if not math.isnan(each)]
    ends = (min(values.min(), *shown), max(values.max(), *shown))
    spread = float(ends[1] - ends[0])
    if spread <= 1e-9 * float(ends[1]):  # rounding: too narrow for bins of their own
        spread = max(0.02 * float(ends[0]), 0.1)
    start = max(0.0, float(ends[0]) - 0.06 * spread)
    stop = float(ends[1]) + 0.06 * spread

    def place(value: float) -> float:
        return 100.0 * (value - start) / (stop - start)

    counts, edges = np.histogram(values, bins=_BINS, range=(start, stop))
    bars = tuple(
        HistogramBar(place(left), 100.0 / _BINS, 100.0 * count / counts.max())
        for left, count in zip(edges, counts)
        if count
    )
    ticks = tuple(Tick(place(value), text) for value, text in round_ticks(start, stop))
    low, high = interval
    true_place = None if math.isnan(truth) else place(truth)
    return Histogram(bars, ticks, place(low), place(high), place(median), place(marked), true_place)


def unit_chart(lines: Sequence[ChartLine], x_name: str, y_name: str) -> LineChart:
    """Return lines over two axes that go from 0 to 1."""
    ticks = [Tick(100.0 * value, text) for value, text in round_ticks(0.0, 1.0)]
    return LineChart(lines, ticks, ticks, x_name, y_name)


def round_ticks(start: float, stop: float) -> list[tuple[float, str]]:
    """Return a few round numbers between two ends, with their text."""
    power = 10.0 ** math.floor(math.log10((stop - start) / _MOST_TICKS))
    for step in (power, 2.0 * power, 5.0 * power, 10.0 * power):
        first, last = math.ceil(start / step - 1e-9), math.floor(stop / step + 1e-9)
        if last - first < _MOST_TICKS:
            break
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    return [(n * step, f"{n * step:.{digits}f}") for n in range(first, last + 1)]
