"""The volumes of a run's regions and labels: one row each, wherever volumes are shown."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.biomarkers import LearnedLaw
from perturb_mpm.files import LabelScheme
from perturb_mpm.posterior import Regions
from perturb_mpm.run.state import Run

if TYPE_CHECKING:
    from perturb_mpm.report import VolumeKind, VolumeRow

INTERVAL = 0.95
TOGETHER = "all of these together"


def volume_rows(run: Run) -> tuple[VolumeRow, ...]:
    """Return a row for each region, then for each label, background included, inside the mask.

    Where no region holds all of the foreground, a last row does. The volume of a region in a sample
    is the sum of its labels' volumes in that sample: joint, so that errors that make one label
    larger and another smaller cancel as they should.
    """
    from perturb_mpm.report import VolumeRow

    labels = run.case.labels
    mapped = _volumes_ml(run, run.labels)  # (L,)
    truth = None if run.case.truth is None else _volumes_ml(run, run.case.truth)
    sampled = run.posterior.volumes / 1000  # (S, L)
    rows = []
    for name, kind, members in volume_sets(labels, run.regions):
        samples_ml = sampled[:, members].sum(axis=1)
        volume_ml = float(mapped[members].sum())
        interval_ml = (math.nan, math.nan)  # white noise says nothing about volumes
        if run.settings.intervals != "none":
            low, high = _interval_ml(samples_ml, run.settings.volume_laws.get(name))
            # What the page prints as the volume is possible, or it would not be printed.
            interval_ml = (min(low, volume_ml), max(high, volume_ml))
        rows.append(
            VolumeRow(
                name=name,
                kind=kind,
                values=tuple(labels.values[label] for label in members),
                volume_ml=volume_ml,
                samples_ml=samples_ml,
                interval_ml=interval_ml,
                truth_ml=math.nan if truth is None else float(truth[members].sum()),
            )
        )
    return tuple(rows)


def volume_sets(
    labels: LabelScheme, regions: Regions
) -> Iterator[tuple[str, VolumeKind, list[int]]]:
    """Yield name, kind and labels of every row."""
    for name, members in regions.items():
        yield name, "region", list(members)
    foreground = [label for label in range(len(labels)) if label or not labels.has_background]
    for label, name in enumerate(labels.names):
        yield name, "label" if label in foreground else "background", [label]
    if len(foreground) > 1 and set(foreground) not in map(set, regions.values()):
        yield TOGETHER, "together", foreground


def _volumes_ml(run: Run, labels: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return the volume of each label of a map (X, Y, Z) inside the mask, (L,)."""
    counts = np.bincount(labels[run.case.mask], minlength=len(run.case.labels))
    return counts.astype(np.float64) * (math.prod(run.case.geometry.spacing) / 1000)


def _interval_ml(samples_ml: NDArray[np.float64], law: LearnedLaw | None) -> tuple[float, float]:
    """Return the central 95 % of sampled volumes (S,), or what was learned of their law."""
    if law is not None:
        return law.widen(samples_ml)
    low, high = np.quantile(samples_ml, [(1 - INTERVAL) / 2, (1 + INTERVAL) / 2])
    return float(low), float(high)
