"""Couple: kernels as strong as they beat no kernels on cases left out.

Candidates are the probabilities alone, calibrated, and with kernels of rising strength, each
calibrated anew. One is chosen by the log score of maps and the score of volumes together, in shares
of those of the probabilities alone, without costing labels their overlap.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.run import RunSettings
from perturb_mpm.tune.calibration import Calibrate, calibrate_with_kernels, halve, observe
from perturb_mpm.tune.problem import ALONE, MapScore, nan_mean
from perturb_mpm.tune.study import CrossFit, Study, VolumeTable
from perturb_mpm.tune.volumes import FEW_LENGTHS, lengths_to_try

CALIBRATED = "calibrated"
# Strength and centring that are tried beside no kernels at all, from weak to strong, and how many
# updates they take: kernels this weak have converged by then.
COUPLINGS = ((0.2, 0.5), (0.2, 0.0), (0.35, 0.0))
ITERATIONS = 5
# Of how many cases at most kernels are chosen on: enough to see a gain of two per cent.
KERNEL_CASES = 30
# What labels may lose of their mean overlap for better maps and volumes: no one can see it.
DICE_TOLERANCE = 0.002
# What kernels must gain, of log score and CRPS in shares of the probabilities' own: they cost time.
KERNEL_GAIN = 0.02


@dataclass(frozen=True, eq=False)
class Candidate:
    """One way to make marginals: its settings, and its scores of cases left out."""

    name: str
    settings: CrossFit[RunSettings]
    maps: Mapping[int, MapScore]  # of all cases, or of those that kernels are chosen on
    volumes: VolumeTable

    @property
    def has_kernels(self) -> bool:
        """Whether kernels take part."""
        return self.settings.overall.has_kernels

    def losses(self, cases: Sequence[int]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return log score and CRPS of these cases, the CRPS at the length that suits it best."""
        best = self.volumes.best_length(cases)
        return (
            np.array([self.maps[case].log_score_nats for case in cases]),
            np.array([self.volumes.crps(best, case) for case in cases]),
        )

    def mean_dice(self, cases: Sequence[int]) -> float:
        """Return the mean overlap over cases and regions."""
        scores = [self.maps[case].dice for case in cases]
        return nan_mean([nan_mean([dice[name] for dice in scores]) for name in scores[0]])


def choose_candidate(candidates: Sequence[Candidate], cases: Sequence[int]) -> Candidate:
    """Return the candidate that is best for maps and volumes and keeps the overlap.

    The first is the probabilities alone. Candidates are compared on the cases that all of them
    have scores of.
    """
    cases = [i for i in cases if all(i in each.maps for each in candidates)]
    alone = candidates[0]
    least = alone.mean_dice(cases) - DICE_TOLERANCE
    allowed = [each for each in candidates if math.isnan(least) or each.mean_dice(cases) >= least]
    return min(
        allowed,
        key=lambda each: (
            relative_loss(each, alone, cases) + (KERNEL_GAIN if each.has_kernels else 0.0)
        ),
    )


def relative_loss(candidate: Candidate, alone: Candidate, cases: Sequence[int]) -> float:
    """Return mean log score plus mean CRPS, each in shares of the probabilities' alone."""
    # Where all is certain the scores of the probabilities alone may be 0.
    shares = [
        ours / max(float(theirs.mean()), 1e-9)
        for ours, theirs in zip(candidate.losses(cases), alone.losses(cases), strict=True)
    ]
    return float((shares[0] + shares[1]).mean())


def find_candidates(study: Study, start: RunSettings) -> list[Candidate]:
    """Return the probabilities alone, calibrated, and with each coupling until one is worse."""
    progress, folds = study.progress, study.folds
    progress.stage("learning temperature and bias")
    bare = start.changed(strength=0.0, centring=1.0, temperature=1.0, bias=None)
    if bare.maps.marginals == "blend":  # what is learned are maps of the mean field
        bare = bare.changed(marginals="mean_field")
    seen = {i: observe(each, bare, everywhere=study.many) for i, each in enumerate(study.problems)}
    fitted = Calibrate(seen, bare, with_bias=study.many).cross_fit(folds)
    lengths = lengths_to_try(study.problems, FEW_LENGTHS)
    unchanged = CrossFit(bare, (bare,) * len(study.problems))
    found = [
        score_candidate(study, ALONE, unchanged, lengths),
        score_candidate(study, CALIBRATED, _believe(study, fitted), lengths),
    ]
    best = found[-1].volumes.best_length(folds.everyone)
    some = folds.spread(KERNEL_CASES)
    iterations = min(ITERATIONS, start.sampling.iterations)
    couplings = COUPLINGS if any(each.weight > 0 for each in start.kernels) else ()
    for strength, centring in couplings:
        name = f"kernels × {strength:g}, centring {centring:g}"
        coupled = fitted.overall.changed(
            strength=strength, centring=centring, iterations=iterations, tolerance=0.0
        )
        fitted = _calibrate(study, name, coupled, some)
        found.append(score_candidate(study, name, _believe(study, fitted), [best], some))
        before, now = (relative_loss(each, found[0], some) for each in found[-2:])
        if now >= before:
            break  # a stronger coupling is worse still
    return found


def learn_from_all(study: Study, candidate: Candidate) -> Candidate:
    """Return the candidate learned from all cases and with the maps of all scored."""
    everyone = study.folds.everyone
    if len(candidate.maps) == len(everyone):
        return candidate
    fitted = _calibrate(
        study, f"{candidate.name} from all cases", candidate.settings.overall, everyone
    )
    return score_candidate(study, candidate.name, _believe(study, fitted), [])


def score_candidate(
    study: Study,
    name: str,
    settings: CrossFit[RunSettings],
    lengths_mm: Sequence[float],
    cases: Sequence[int] | None = None,
) -> Candidate:
    """Score cases, each under the settings that its fold had no part in."""
    cases = study.folds.everyone if cases is None else cases
    study.progress.stage(f"scoring maps of cases left out: {name}")
    maps = study.score_maps(settings.without, cases)
    study.progress.stage(f"sampling volumes of cases left out: {name}")
    samples = study.reduced_samples(4)
    volumes = study.draw_volumes(settings.without, lengths_mm, samples, cases)
    return Candidate(name, settings, maps, volumes)


def _calibrate(
    study: Study, name: str, settings: RunSettings, cases: Sequence[int]
) -> CrossFit[RunSettings]:
    """Learn temperature and bias under the kernels of the settings from some cases."""
    study.progress.stage(f"learning with {name}")
    problems = {case: study.problems[case] for case in cases}
    stage = calibrate_with_kernels(problems, settings, study.progress, many=study.many)
    return stage.cross_fit(study.folds)


def _believe(study: Study, fitted: CrossFit[RunSettings]) -> CrossFit[RunSettings]:
    """Take what many cases say as it is, and what few cases say half-way."""
    return fitted if study.many else fitted.apply(halve)
