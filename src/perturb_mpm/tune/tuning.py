"""Settings of ``run`` from labelled cases, and what they are worth on cases left out.

Few numbers are learned, in four stages:

1. calibrate: a temperature, and of many cases a bias for each label, by likelihood;
2. couple: strength and centring of the kernels, as far as they beat no kernels;
3. correlate: the correlation length of the noise, by the score of volumes;
4. widen: of many cases, by how much volume intervals move until they contain 95 of 100 truths.

A stage is a function that learns from cases given by their index. ``Folds.cross_fit`` calls it
with all cases, which gives the settings, and without each fold: everything that is printed of a
case is of settings that its fold had no part in. Two plain baselines stand beside it: one
temperature for the maps, and the errors of the other cases' label maps for the volumes.

Four economies are taken. Messages of kernels are computed once, under the temperature and bias of
all cases, and each fold then learns its own with these messages. Choices are made from scores of
left-out cases, whose temperature other folds learned. Of many cases some, spread over all folds,
say which kernels are worth having; the rest see only those. The length is searched in a few steps,
and no sample is drawn twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.biomarkers import OFFSET_ML
from perturb_mpm.files import Case
from perturb_mpm.posterior import Regions, decide_labels
from perturb_mpm.progress import Silent, StagedProgress
from perturb_mpm.run import RunSettings
from perturb_mpm.tune.calibration import Calibrate, observe
from perturb_mpm.tune.coupling import Candidate, choose_candidate, find_candidates, learn_from_all
from perturb_mpm.tune.problem import (
    ALONE,
    FIXED,
    LEARNED,
    RESIDUAL,
    TEMPERED,
    CaseScores,
    LabelledProblem,
    log_ml,
    nan_mean,
    region_ml,
    score_volume,
)
from perturb_mpm.tune.study import CrossFit, Study, TuningOptions, prepare_study
from perturb_mpm.tune.summary import Tuned, verdict
from perturb_mpm.tune.volumes import Widenings, correlate, learn_widenings, widen_intervals


def tune(
    cases: Mapping[str, Case],
    start: RunSettings,
    options: TuningOptions,
    progress: StagedProgress | None = None,
) -> Tuned:
    """Learn settings on all cases, which have their truth, and score them on cases left out."""
    study = prepare_study(cases, start, options, progress or Silent())
    folds, names = study.folds, [each.name for each in study.problems]

    candidates = find_candidates(study, start)
    chosen = _choose(study, candidates)
    settings = CrossFit(
        chosen.overall.settings.overall,
        tuple(each.settings.without[i] for i, each in enumerate(chosen.without)),
    )
    lengths, volumes = correlate(study, settings, _without_kernels(settings, candidates[1]))
    widenings = folds.cross_fit(partial(learn_widenings, volumes), lengths)
    complete = folds.cross_fit(_complete, settings, lengths, widenings)

    scores = [
        CaseScores(
            name,
            LEARNED,
            chosen.without[i].maps[i],
            widen_intervals(volumes.predictions[lengths.without[i]][i], widenings.without[i]),
        )
        for i, name in enumerate(names)
    ]
    alone = candidates[0]
    for i, tempered in enumerate(score_tempered(study, alone.settings.overall)):
        scores += [CaseScores(names[i], ALONE, alone.maps[i], None), tempered]
    scores += score_residuals(study)
    tuned = Tuned(
        settings=complete.overall,
        scores=tuple(scores),
        regions=tuple(study.regions),
        folds=tuple(tuple(names[i] for i in fold) for fold in folds.members),
        tried={
            each.name: nan_mean([score.log_score_nats for score in each.maps.values()])
            for each in candidates
        },
        without=dict(zip(names, complete.without, strict=True)),
    )
    words = verdict(tuned)
    return replace(tuned, verdict=words, settings=tuned.settings.changed(note=words))


def _choose(study: Study, candidates: Sequence[Candidate]) -> CrossFit[Candidate]:
    """Choose a candidate; those that saw only some cases are then learned from all."""
    chosen = study.folds.cross_fit(partial(choose_candidate, candidates))
    whole = {
        each: learn_from_all(study, each)
        for each in dict.fromkeys((*chosen.without, chosen.overall))
    }
    return chosen.apply(whole.__getitem__)


def _without_kernels(settings: CrossFit[RunSettings], calibrated: Candidate) -> list[RunSettings]:
    """Return the settings of each case; those with kernels give way to the calibrated ones."""
    return [
        mine if mine.coupling.strength == 0 else other
        for mine, other in zip(settings.without, calibrated.settings.without, strict=True)
    ]


def _complete(
    cases: Sequence[int], settings: RunSettings, length_mm: float, widenings: Widenings
) -> RunSettings:
    """Return the settings with all that was learned from these cases."""
    return settings.changed(
        noise_length=length_mm,
        widening={name: round(each.amount, 4) for name, each in widenings.items()},
        learned_cases=len(cases),
    )


def score_tempered(study: Study, bare: RunSettings) -> list[CaseScores]:
    """Score maps of one temperature, learned near foreground on the other folds."""
    seen = {i: observe(each, bare, everywhere=False) for i, each in enumerate(study.problems)}
    settings = Calibrate(seen, bare, with_bias=False).cross_fit(study.folds)
    maps = study.score_maps(settings.without, study.folds.everyone)
    return [
        CaseScores(problem.name, TEMPERED, maps[i], None)
        for i, problem in enumerate(study.problems)
    ]


def score_residuals(study: Study) -> list[CaseScores]:
    """Score volumes by the errors that label maps made on the other folds, in two ways."""
    # Volumes of the label maps and true ones, (cases, L), and by region how much larger these are.
    mapped = np.array([_map_ml(each, study.decisions) for each in study.problems])
    true = np.array([each.true_ml for each in study.problems])
    regions = study.regions.items()
    missed = {
        name: log_ml(region_ml(true, members)) - log_ml(region_ml(mapped, members))
        for name, members in regions
    }  # (cases,) each
    others: tuple[list[int], ...] = study.folds.leave_out(list)
    return [
        CaseScores(
            problem.name,
            method,
            None,
            {
                name: score_volume(
                    predict(float(region_ml(mapped[i], members)), missed[name][others[i]]),
                    float(region_ml(true[i], members)),
                )
                for name, members in regions
            },
        )
        for i, problem in enumerate(study.problems)
        for method, predict in ((FIXED, normal_volumes), (RESIDUAL, shifted_volumes))
    ]


def shifted_volumes(volume_ml: float, differences: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the volumes that the log differences (n,) of other cases say are possible, (n,)."""
    return _volumes_ml(log_ml(volume_ml) + differences)


def normal_volumes(
    volume_ml: float, differences: NDArray[np.float64], draws: int = 200
) -> NDArray[np.float64]:
    """Return volumes of one width for all: a normal law with the differences' mean and sd."""
    from scipy.special import ndtri

    spread = differences.std(ddof=1) if len(differences) > 1 else 0.0
    grid = ndtri((np.arange(draws) + 0.5) / draws)
    return _volumes_ml(log_ml(volume_ml) + differences.mean() + spread * grid)


def _volumes_ml(logarithms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return V of log(V + 0.1 ml), 0 at least."""
    volumes: NDArray[np.float64] = np.maximum(np.exp(logarithms) - OFFSET_ML, 0.0)
    return volumes


def _map_ml(problem: LabelledProblem, decisions: Regions) -> NDArray[np.float64]:
    """Return the volumes of the label map that the probabilities alone give, (L,)."""
    labels = decide_labels(problem.probabilities, decisions)
    counts = np.bincount(labels, minlength=problem.n_labels)
    return counts.astype(np.float64) * problem.voxel_ml
