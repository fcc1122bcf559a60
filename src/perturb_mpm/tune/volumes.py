"""Correlate and widen: what is learned from sampled volumes.

The correlation length of the noise is chosen by the score of the volumes it makes. The score has
one valley: short lengths make volumes spread too little, long ones too much. Of few cases all
lengths are tried without kernels, which are slow to sample, and the choice lies half-way to what
``run`` assumes. Of many cases the valley is searched without kernels, and the choice is made near
it under the settings that were learned.

Of many cases it is then learned how far the ends of volume intervals must move to contain 95 of
100 true volumes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise

import numpy as np

from perturb_mpm.biomarkers import OFFSET_ML, ConformalWidening, conformal_widening
from perturb_mpm.run import RunSettings
from perturb_mpm.tune.problem import LEVEL, MANY_CASES, LabelledProblem, VolumePrediction
from perturb_mpm.tune.study import CrossFit, Study, VolumeTable

Widenings = Mapping[str, ConformalWidening]  # by region; empty where cases are too few

# Lengths that are tried, in radii of a ball of the expected foreground, the median over cases.
LENGTHS = (0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0)
ASSUMED = LENGTHS.index(1.0)
FEW_LENGTHS = (0.35, 0.7, 1.4)  # of these, for choices that come before that of the length


def correlate(
    study: Study, settings: CrossFit[RunSettings], bare: Sequence[RunSettings]
) -> tuple[CrossFit[float], VolumeTable]:
    """Return the lengths in mm, and the volumes of cases left out under the settings learned.

    ``bare`` are the settings of each case without kernels.
    """
    coupled = settings.overall.has_kernels
    few = study.reduced_samples(4)
    samples = study.reduced_samples(2) if coupled else study.samples
    lengths = lengths_to_try(study.problems, LENGTHS)
    study.progress.stage("sampling volumes of cases left out")
    if study.many:
        best = search_valley(
            lengths,
            lambda near: study.draw_volumes(bare, near, few).best_length(study.folds.everyone),
        )
        near = lengths_near(lengths, best, with_ends=coupled)
        table = study.draw_volumes(settings.without, near, samples)
        return study.folds.cross_fit(table.best_length), table
    tried = study.draw_volumes(bare, lengths, few)
    chosen = study.folds.cross_fit(partial(halfway_length, tried, lengths))
    used = sorted({chosen.overall, *chosen.without})
    return chosen, study.draw_volumes(settings.without, used, samples)


def lengths_to_try(problems: Sequence[LabelledProblem], shares: Sequence[float]) -> list[float]:
    """Return shares of the median radius of the foreground, in mm."""
    radius = float(np.median([each.length_mm for each in problems]))
    return [round(share * radius, 1) for share in shares]


def search_valley(lengths: Sequence[float], best_length: Callable[[Sequence[float]], float]) -> int:
    """Return the index of the best length: the best of a few, then of its neighbours.

    ``best_length`` says which of some lengths is best.
    """
    near = [lengths[LENGTHS.index(each)] for each in FEW_LENGTHS]
    for _ in range(2):
        best = lengths.index(best_length(near))
        near = list(lengths[max(best - 1, 0) : best + 2])
    return best


def lengths_near(lengths: Sequence[float], best: int, *, with_ends: bool) -> list[float]:
    """Return the length that was found and what lies between it and its neighbours, in mm.

    The neighbours are worse; but kernels that it was found without may move it as far as these.
    """
    near = lengths[max(best - 1, 0) : best + 2]
    between = [math.sqrt(first * second) for first, second in pairwise(near)]
    tried = (*near, *between) if with_ends else (lengths[best], *between)
    return sorted(round(each, 1) for each in tried)


def halfway_length(tried: VolumeTable, lengths: Sequence[float], cases: Sequence[int]) -> float:
    """Return the length half-way, in steps of the list, from the best to the assumed one, mm."""
    best = lengths.index(tried.best_length(cases))
    return lengths[math.floor((best + ASSUMED + 1) / 2)]


def learn_widenings(volumes: VolumeTable, cases: Sequence[int], length_mm: float) -> Widenings:
    """Return how far the interval of every region moves, at one correlation length."""
    if len(cases) < MANY_CASES:
        return {}
    found = [volumes.predictions[length_mm][case] for case in cases]
    return {
        name: conformal_widening(
            [each[name].lower_ml for each in found],
            [each[name].upper_ml for each in found],
            [each[name].true_ml for each in found],
            LEVEL,
            OFFSET_ML,
        )
        for name in found[0]
    }


def widen_intervals(
    volumes: Mapping[str, VolumePrediction], learned: Widenings
) -> dict[str, VolumePrediction]:
    """Return the volumes of a case with what was learned of their intervals."""
    return {
        name: found.widen(learned[name]) if name in learned else found
        for name, found in volumes.items()
    }
