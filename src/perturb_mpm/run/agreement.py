"""How well the label map would agree with the truth: its Dice with samples, each a plausible truth.

Samples stand for the truth as far as they are as unsure as the grid makes it, so they are drawn at
the temperature of the maps. Where the run's own samples have another (``decide_settings``), some
more are drawn, without kernels and therefore quickly. What ``tune`` learned of the Dice rests on
the run's own samples, and is applied to these.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perturb_mpm.evaluation import SampleDice
from perturb_mpm.run.model import build_crf, build_sampler, sampled_temperature
from perturb_mpm.run.settings import RunSettings
from perturb_mpm.run.state import DiceInterval, Run
from perturb_mpm.run.volumes import INTERVAL, volume_sets
from perturb_mpm.sampling import Sampler

SAMPLES = 40
"""How many samples the label map is compared with; those of the run with the first numbers."""


def measure_agreement(run: Run, sampler: Sampler) -> dict[str, DiceInterval]:
    """Return the Dice of every region and label of the label map, by name.

    ``sampler`` is that of the run. There is nothing where noise is white, which makes all samples
    alike, or where the label map does not have the region.
    """
    settings = run.settings
    if settings.intervals == "none":
        return {}
    if not settings.dice_laws and sampled_temperature(settings) != settings.unary.temperature:
        sampler = _sampler_of_maps(run, settings)
    labels = run.posterior.grid.gather(run.labels)  # (N,)
    sets = {
        name: tuple(members)
        for name, kind, members in volume_sets(run.case.labels, run.regions)
        if kind != "background" and np.isin(labels, members).any()
    }
    agreement = SampleDice(labels, sets)
    sampler.draw(range(min(SAMPLES, settings.sampling.samples)), keep=agreement.add)
    found = {}
    for name, sampled in agreement.dice().items():
        law = settings.dice_laws.get(name)
        ends = [(1 - INTERVAL) / 2, (1 + INTERVAL) / 2]
        low, high = np.quantile(sampled, ends) if law is None else law.widen(sampled)
        median = np.median(sampled) if law is None else law.quantiles(sampled, [0.5])[0]
        found[name] = DiceInterval(float(median), float(low), float(high))
    return found


def _sampler_of_maps(run: Run, settings: RunSettings) -> Sampler:
    """Return a sampler at the temperature of the maps; ``decide_settings`` gives it no kernels."""
    settings = settings.changed(sampling_temperature=None, until=None, hold=0.0)
    if not settings.has_kernels:
        sampling = replace(settings.sampling, iterations=1, tolerance=0.0)
        settings = replace(settings, sampling=sampling)
    sampler = build_sampler(build_crf(run.case, settings), settings)
    sampler.prepare()
    return sampler
