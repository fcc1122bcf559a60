"""The volume of each label: of the most probable segmentation, and of the sampled ones."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.report.data import ReportData

INTERVAL = (0.025, 0.975)
ALL_LABELS = "all of these together"


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
