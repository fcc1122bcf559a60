"""Couple: which samples, with kernels or without, at temperature 1 or the grid's.

Every candidate is known without a label: no kernels, at temperature 1 and at the grid's, and
kernels as strong as the image speaks for them (``CaseEvidence.strength`` of the median skill), at
the grid's temperature. So each case is sampled once under each of them, and no sample of a case
depends on the truth of another.

One is chosen by the log score of maps and the score of volumes together, both under what is learned
from the other cases, without costing labels their overlap: what ``run`` does by itself, unless
another is clearly better.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from perturb_mpm.learning import ImageEvidence
from perturb_mpm.posterior import Regions
from perturb_mpm.run import DEFAULT_BILATERAL, CaseEvidence, KernelSettings, RunSettings
from perturb_mpm.tune.calibration import SHARES, TemperatureTable, tabulate_temperatures
from perturb_mpm.tune.intervals import SampledMeasure, measure_dice, measure_volumes, other_measures
from perturb_mpm.tune.problem import CaseSamples, LabelledProblem, nan_mean, score_maps
from perturb_mpm.tune.study import Study

# What labels may lose of their mean overlap for better maps and volumes: no one can see it.
DICE_TOLERANCE = 0.002
# By how much another way must be better than that of ``run``, of log score and CRPS in shares of
# its own: a choice among ways that nearly tie would be chance.
GAIN = 0.02


@dataclass(frozen=True, eq=False)
class Candidate:
    """One way to sample: its settings, and what it makes of every case."""

    name: str
    settings: RunSettings
    samples: Sequence[CaseSamples]
    maps: TemperatureTable
    volumes: SampledMeasure
    dice: SampledMeasure
    measures: Mapping[str, SampledMeasure]
    """Others that are asked for, by region and measure."""
    overlap: Sequence[float]
    """The mean Dice of the regions of each case, labels decided at the grid's temperature."""

    @property
    def has_kernels(self) -> bool:
        """Whether kernels take part."""
        return self.settings.has_kernels

    def losses(self, study: Study, cases: Sequence[int]) -> tuple[float, float]:
        """Return log score and CRPS of these cases, each under what the others teach."""
        regions = tuple(study.regions)
        scores = []
        for inner, outer in study.folds.split(cases):
            laws = self.volumes.fit(outer, regions, conformal=False)
            for case in inner:
                found = self.volumes.predict(case, laws, regions)
                scores.append(nan_mean([each.crps for each in found.values()]))
        return self.maps.left_out_score(cases, study.folds, SHARES), float(np.mean(scores))


def choose_candidate(
    study: Study, candidates: Sequence[Candidate], cases: Sequence[int]
) -> Candidate:
    """Return the candidate that is best for maps and volumes and keeps the overlap.

    The first is what ``run`` does by itself: another must be better by ``GAIN``.
    """
    losses = [each.losses(study, cases) for each in candidates]
    overlaps = [nan_mean([each.overlap[case] for case in cases]) for each in candidates]
    bare = [mean for mean, each in zip(overlaps, candidates, strict=True) if not each.has_kernels]
    kept = [not mean < max(bare) - DICE_TOLERANCE for mean in overlaps]
    # Where all is certain the scores of the first may be 0.
    base = [max(each, 1e-9) for each in losses[0]]

    def cost(index: int) -> float:
        log_score, crps = losses[index]
        return log_score / base[0] + crps / base[1] + (GAIN if index else 0.0)

    return candidates[min((i for i, each in enumerate(kept) if each), key=cost)]


def find_candidates(study: Study, start: RunSettings) -> list[Candidate]:
    """Return the ways to sample, first that of ``run``; each case is sampled under all."""
    temperature = _round(
        math.exp(np.mean([math.log(each.grid_temperature) for each in study.problems]))
    )
    bare = start.changed(strength=0.0, centring=0.0, temperature=None, bias=None)
    found = [
        _sample(study, "no kernels, samples at temperature 1", bare, 1.0),
        _sample(study, "no kernels, samples at the grid's temperature", bare, temperature),
    ]
    strength = CaseEvidence(median_evidence(study.evidence), None).strength
    if not start.kernels or strength <= 0:
        return found
    coupled = replace(bare, kernels=kernels_of_best_skill(study.evidence, start))
    coupled = coupled.changed(strength=strength)
    return [_sample(study, f"kernels × {strength:g}", coupled, temperature), *found]


def median_evidence(evidence: Sequence[ImageEvidence]) -> ImageEvidence | None:
    """Return the evidence of the median skill, None where no image says anything."""
    ranked = sorted(evidence, key=lambda each: each.skill)
    return ranked[len(ranked) // 2] if ranked else None


def kernels_of_best_skill(
    evidence: Sequence[ImageEvidence], start: RunSettings
) -> tuple[KernelSettings, ...]:
    """Return the kernels, the default bilateral one with the bandwidth that most cases prefer."""
    common = Counter(each.sigma_intensity for each in evidence).most_common(1)[0][0]
    found = replace(DEFAULT_BILATERAL, sigma_intensity_sd=common)
    return tuple(found if each == DEFAULT_BILATERAL else each for each in start.kernels)


def _sample(
    study: Study, name: str, settings: RunSettings, sampling_temperature: float
) -> Candidate:
    """Sample every case; each has its own seed, or chance would look like bias."""
    settings = settings.changed(sampling_temperature=sampling_temperature)
    study.progress.stage(f"sampling: {name}")
    samples = []
    for seed, problem in enumerate(study.problems):
        samples.append(
            problem.sample(
                settings,
                study.options.samples,
                seed,
                study.intervals,
                study.decisions,
                study.options.measures,
            )
        )
        study.progress(seed + 1, len(study.problems))
    return Candidate(
        name,
        settings,
        samples,
        tabulate_temperatures(study.problems, samples),
        measure_volumes(study.problems, samples, study.intervals),
        measure_dice(samples),
        other_measures(
            samples, study.problems[0].find_measures(study.intervals, study.options.measures)
        ),
        [
            _overlap(problem, drawn, study.regions, study.decisions)
            for problem, drawn in zip(study.problems, samples, strict=True)
        ],
    )


def _overlap(
    problem: LabelledProblem, samples: CaseSamples, regions: Regions, decisions: Regions
) -> float:
    """Return the mean Dice of the regions; NaN where the truth has none."""
    marginals = problem.blend(samples.mean_field, problem.grid_temperature)
    return nan_mean(list(score_maps(problem, marginals, regions, decisions).dice.values()))


def _round(value: float) -> float:
    return float(f"{value:.3g}")
