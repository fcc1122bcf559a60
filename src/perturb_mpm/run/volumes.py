"""The volumes of a run's regions and labels, and how well these would agree with the truth.

A sample is a plausible truth, so the Dice of the label map with samples is that which the truth
would give. Samples stand for it as far as they are as unsure as the grid makes it: they are drawn
at the temperature of the maps. Where the run's own samples have another (``decide_settings``), some
more are drawn, without kernels and therefore quickly. What ``tune`` learned of the Dice rests on
the run's own samples, and is applied to these.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.biomarkers import LearnedLaw
from perturb_mpm.evaluation import SampleDice
from perturb_mpm.files import LabelScheme
from perturb_mpm.posterior import Regions
from perturb_mpm.run.model import build_crf, build_sampler, sampled_temperature
from perturb_mpm.run.settings import RunSettings
from perturb_mpm.run.state import MOST_SAMPLE_MAPS, DiceInterval, Run
from perturb_mpm.sampling import Sampler

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


def measure_agreement(run: Run, sampler: Sampler) -> dict[str, DiceInterval]:
    """Return the Dice of every region and label of the label map, by name.

    ``sampler`` is that of the run. There is nothing where noise is white, which makes all samples
    alike, or where the label map does not have the region.
    """
    settings = run.settings
    if settings.intervals == "none":
        return {}
    known = run.first_samples  # (K, N): those of the run that need not be drawn again
    if not settings.dice_laws and sampled_temperature(settings) != settings.unary.temperature:
        sampler, known = _tempered_sampler(run, settings), None
    labels = run.posterior.grid.gather(run.labels)  # (N,)
    sets = {
        name: tuple(members)
        for name, kind, members in volume_sets(run.case.labels, run.regions)
        if kind != "background" and np.isin(labels, members).any()
    }
    agreement = SampleDice(labels, sets)
    first = 0 if known is None else len(known)
    if known is not None:
        agreement.add(range(first), known)
    missing = range(first, min(MOST_SAMPLE_MAPS, settings.sampling.samples))
    if missing:
        sampler.draw(missing, keep=agreement.add)
    found = {}
    for name, sampled in agreement.dice().items():
        law = settings.dice_laws.get(name)
        ends = [(1 - INTERVAL) / 2, (1 + INTERVAL) / 2]
        low, high = np.quantile(sampled, ends) if law is None else law.widen(sampled)
        median = np.median(sampled) if law is None else law.quantiles(sampled, [0.5])[0]
        found[name] = DiceInterval(float(median), float(low), float(high))
    return found


def _tempered_sampler(run: Run, settings: RunSettings) -> Sampler:
    """Return a sampler at the temperature of the maps; ``decide_settings`` gives it no kernels."""
    settings = settings.changed(sampling_temperature=None, until=None, hold=0.0)
    if not settings.has_kernels:
        sampling = replace(settings.sampling, iterations=1, tolerance=0.0)
        settings = replace(settings, sampling=sampling)
    sampler = build_sampler(build_crf(run.case, settings), settings)
    sampler.prepare()
    return sampler
