"""Small charts as shapes for a page: histograms of volumes, and a curve. Black on white will do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perturb_mpm.report.volumes import LabelVolume

_BINS = 24
_MOST_TICKS = 5


@dataclass(frozen=True)
class Bar:
    """A bar of a histogram; everything in % of the chart's width and height."""

    left: float
    width: float
    height: float


@dataclass(frozen=True)
class Tick:
    """A labelled place on an axis, in % of its length."""

    place: float
    text: str


@dataclass(frozen=True)
class Histogram:
    """How a label's volume is spread over the samples."""

    bars: tuple[Bar, ...]
    ticks: tuple[Tick, ...]
    low: float  # the 95 % interval, in %
    high: float
    median: float
    mpm: float


@dataclass(frozen=True)
class Curve:
    """Points in % from the left and from the bottom, with both axes."""

    points: tuple[tuple[float, float], ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]


def volume_histogram(volume: LabelVolume) -> Histogram | None:
    """Return the histogram of a label's sampled volumes, None where there are no samples.

    The axis holds every sample and the label map's own volume.
    """
    samples = volume.samples_ml
    if not len(samples):
        return None
    ends = (min(samples.min(), volume.mpm_ml), max(samples.max(), volume.mpm_ml))
    spread = float(ends[1] - ends[0])
    if spread <= 1e-9 * float(ends[1]):  # rounding: too narrow for bins of their own
        spread = max(0.02 * float(ends[0]), 0.1)
    start = max(0.0, float(ends[0]) - 0.06 * spread)
    stop = float(ends[1]) + 0.06 * spread

    def place(ml: float) -> float:
        return 100.0 * (ml - start) / (stop - start)

    counts, edges = np.histogram(samples, bins=_BINS, range=(start, stop))
    bars = tuple(
        Bar(place(left), 100.0 / _BINS, 100.0 * count / counts.max())
        for left, count in zip(edges, counts)
        if count
    )
    low, high = volume.interval_ml
    ticks = tuple(Tick(place(value), text) for value, text in round_ticks(start, stop))
    return Histogram(
        bars, ticks, place(low), place(high), place(volume.median_ml), place(volume.mpm_ml)
    )


def settling_curve(points: Sequence[tuple[int, float]]) -> Curve:
    """Return (samples, bits) as a curve, samples on a logarithmic axis."""
    first, last = math.log(points[0][0]), math.log(points[-1][0])
    top = max(bits for _, bits in points) or 1.0
    ceiling = 1.08 * top

    def across(samples: int) -> float:
        return 100.0 * (math.log(samples) - first) / ((last - first) or 1.0)

    return Curve(
        tuple((across(samples), 100.0 * bits / ceiling) for samples, bits in points),
        tuple(Tick(across(samples), str(samples)) for samples, _ in points),
        tuple(Tick(100.0 * value / ceiling, text) for value, text in round_ticks(0.0, top)),
    )


def round_ticks(start: float, stop: float) -> list[tuple[float, str]]:
    """Return a few round numbers between two ends, with their text."""
    power = 10.0 ** math.floor(math.log10((stop - start) / _MOST_TICKS))
    for step in (power, 2.0 * power, 5.0 * power, 10.0 * power):
        first, last = math.ceil(start / step - 1e-9), math.floor(stop / step + 1e-9)
        if last - first < _MOST_TICKS:
            break
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    return [(n * step, f"{n * step:.{digits}f}") for n in range(first, last + 1)]
