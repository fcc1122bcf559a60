"""Charts as shapes with positions in % of the chart: templates draw them as SVG.

They take the page's own colours, so that they can be read in light, in dark and in print, and they
tell lines apart by dashes, which black and white leaves. Of a run they show how sampled volumes
spread, and how the entropy map converges.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perturb_mpm.report.data import ReportData, Snapshot, VolumeRow

SHOWN_SAMPLES = (10, 25, 50, 100, 200)  # as in the paper's figure

_BINS = 24
_MOST_TICKS = 5


@dataclass(frozen=True)
class Tick:
    """A labelled position on an axis, in % of its length."""

    position: float
    text: str


@dataclass(frozen=True)
class HistogramBar:
    """A bar of a histogram; everything in % of the chart's width and height."""

    left: float
    width: float
    height: float


@dataclass(frozen=True)
class Histogram:
    """How sampled volumes spread: bars, and what is marked on their axis."""

    bars: tuple[HistogramBar, ...]
    ticks: tuple[Tick, ...]
    low: float | None  # the interval, in %; None where there is none
    high: float | None
    median: float
    label_map: float
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


def volume_histogram(row: VolumeRow) -> Histogram | None:
    """Return the histogram of a row's sampled volumes, None where there are no samples.

    The axis includes every sample, the label map's own volume and the true one, which are marked.
    """
    values = row.samples_ml
    if not len(values):
        return None
    marked = (row.volume_ml, row.truth_ml, *row.interval_ml)
    marks = [each for each in marked if not math.isnan(each)]
    first, last = float(min(values.min(), *marks)), float(max(values.max(), *marks))
    spread = last - first
    if spread <= 1e-9 * last:  # rounding: too narrow for bins of their own
        spread = max(0.02 * first, 0.1)
    start, stop = max(0.0, first - 0.06 * spread), last + 0.06 * spread

    def position(value: float) -> float:
        return 100.0 * (value - start) / (stop - start)

    counts, edges = np.histogram(values, bins=_BINS, range=(start, stop))
    bars = tuple(
        HistogramBar(position(left), 100.0 / _BINS, 100.0 * count / counts.max())
        for left, count in zip(edges, counts)
        if count
    )
    low, high = (None if math.isnan(end) else position(end) for end in row.interval_ml)
    return Histogram(
        bars,
        tuple(Tick(position(value), text) for value, text in round_ticks(start, stop)),
        low,
        high,
        position(row.median_ml),
        position(row.volume_ml),
        None if math.isnan(row.truth_ml) else position(row.truth_ml),
    )


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


def shown_snapshots(snapshots: tuple[Snapshot, ...]) -> tuple[Snapshot, ...]:
    """Return at most five snapshots: those nearest to the paper's numbers, and the last one."""
    if len(snapshots) <= len(SHOWN_SAMPLES):
        return snapshots
    last = snapshots[-1].samples
    wanted = [*(number for number in SHOWN_SAMPLES[:-1] if number < last), last]
    nearest = {min(snapshots, key=lambda s: abs(s.samples - n)).samples for n in wanted}
    return tuple(snapshot for snapshot in snapshots if snapshot.samples in nearest)


def changes_bits(data: ReportData) -> list[tuple[int, float]]:
    """Return (samples, mean |H − final H|) of each snapshot, in bits.

    The mean is over the voxels in which any sample of the final map disagrees: all others have an
    entropy of 0 throughout.
    """
    final = data.snapshots[-1].entropy
    disagreeing = final > 0
    if not disagreeing.any():
        return [(snapshot.samples, 0.0) for snapshot in data.snapshots]
    last = final[disagreeing]
    return [
        (each.samples, float(np.abs(each.entropy[disagreeing] - last).mean(dtype=np.float64)))
        for each in data.snapshots
    ]


def convergence_curve(points: Sequence[tuple[int, float]]) -> LineChart:
    """Return (samples, bits) as a curve, samples on a logarithmic axis."""
    first, last = math.log(points[0][0]), math.log(points[-1][0])
    top = max(bits for _, bits in points) or 1.0
    ceiling = 1.08 * top

    def across(samples: int) -> float:
        return 100.0 * (math.log(samples) - first) / ((last - first) or 1.0)

    line = [(across(samples), 100.0 * bits / ceiling) for samples, bits in points]
    return LineChart(
        [ChartLine(line, dots=True)],
        [Tick(across(samples), str(samples)) for samples, _ in points],
        [Tick(100.0 * value / ceiling, text) for value, text in round_ticks(0.0, top)],
        "samples",
    )
