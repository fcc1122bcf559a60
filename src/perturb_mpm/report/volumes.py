"""How sampled volumes spread and how the map settles, as charts."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from perturb_mpm.report.charts import (
    ChartLine,
    Histogram,
    LineChart,
    Tick,
    histogram,
    round_ticks,
)
from perturb_mpm.report.data import ReportData, Snapshot, VolumeRow

SHOWN_SAMPLES = (10, 25, 50, 100, 200)  # as in the paper's figure


def volume_histogram(volume: VolumeRow) -> Histogram | None:
    """Return the histogram of a row's sampled volumes, None where there are no samples.

    The axis holds every sample, the label map's own volume and the true one, which are marked.
    """
    if not len(volume.samples_ml):
        return None
    return histogram(
        volume.samples_ml, volume.interval_ml, volume.median_ml, volume.volume_ml, volume.truth_ml
    )


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
    settled = final[disagreeing]
    return [
        (each.samples, float(np.abs(each.entropy[disagreeing] - settled).mean(dtype=np.float64)))
        for each in data.snapshots
    ]


def settling_curve(points: Sequence[tuple[int, float]]) -> LineChart:
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
