"""The volume of each label and how the map settles, as numbers and as charts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.report.charts import (
    ChartLine,
    Histogram,
    LineChart,
    Tick,
    histogram,
    round_ticks,
)
from perturb_mpm.report.data import ReportData, Snapshot

INTERVAL = (0.025, 0.975)
ALL_LABELS = "all of these together"
SHOWN_SAMPLES = (10, 25, 50, 100, 200)  # as in the paper's figure


@dataclass(frozen=True)
class LabelVolume:
    """One label, or all of them but the background, in ml."""

    name: str
    value: int | None  # the user's number of the label; None for all together
    mpm_ml: float  # of the label map itself
    samples_ml: NDArray[np.float64]  # (S,)
    truth_ml: float = math.nan  # where it is known

    @property
    def median_ml(self) -> float:
        """The middle of the sampled volumes."""
        return float(np.median(self.samples_ml)) if len(self.samples_ml) else math.nan

    @property
    def interval_ml(self) -> tuple[float, float]:
        """The central 95 % of the sampled volumes."""
        if not len(self.samples_ml):
            return math.nan, math.nan
        low, high = np.quantile(self.samples_ml, INTERVAL)
        return float(low), float(high)

    @property
    def coefficient_of_variation(self) -> float:
        """Standard deviation over mean of the sampled volumes; NaN where there is none."""
        mean = float(self.samples_ml.mean()) if len(self.samples_ml) else 0.0
        if len(self.samples_ml) < 2 or mean == 0.0:
            return math.nan
        return float(self.samples_ml.std(ddof=1)) / mean


def label_volumes(data: ReportData) -> list[LabelVolume]:
    """Return every label but the first, which is background, and all of them together."""
    voxel_ml = math.prod(data.spacing) / 1000.0
    samples_ml = data.volumes_mm3 / 1000.0  # (S, L)
    n_labels = len(data.label_names)

    def volumes_ml(labels: NDArray[np.uint8] | None) -> NDArray[np.float64]:
        if labels is None:
            return np.full(n_labels, math.nan)
        counts = np.bincount(labels[data.mask], minlength=n_labels)
        return counts.astype(np.float64) * voxel_ml

    mpm, truth = volumes_ml(data.labels), volumes_ml(data.truth)  # (L,)
    rows = [
        LabelVolume(
            data.label_names[l],
            data.label_values[l],
            float(mpm[l]),
            samples_ml[:, l],
            float(truth[l]),
        )
        for l in range(1, n_labels)
    ]
    if len(rows) > 1:
        all_samples = samples_ml[:, 1:].sum(axis=1)
        together = float(mpm[1:].sum()), all_samples, float(truth[1:].sum())
        rows.append(LabelVolume(ALL_LABELS, None, *together))
    return rows


def volume_histogram(volume: LabelVolume) -> Histogram | None:
    """Return the histogram of a label's sampled volumes, None where there are no samples.

    The axis holds every sample and the label map's own volume, which is marked.
    """
    if not len(volume.samples_ml):
        return None
    return histogram(volume.samples_ml, volume.interval_ml, volume.median_ml, volume.mpm_ml)


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
