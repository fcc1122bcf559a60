"""Settings of ``run`` from labelled cases, and what they are worth on cases left out.

Few numbers are learned, in three stages:

1. couple: which samples, with kernels as far as the image speaks for them or without;
2. calibrate: the temperature of the maps, as far as cases left out confirm what labels say;
3. intervals: for each region where true volumes and Dice lie, given the samples.

What samples are drawn with is known without labels, and what a case costs at every temperature is
tabulated: ``Folds.cross_fit`` calls a stage with all cases, which gives the settings, and without
each fold. Nothing that is printed of a case, nor any choice made for it, saw the truth of its fold.
Plain rows stand beside what is learned: the probabilities alone, the grid's temperature, one
temperature by labels; the samples alone and the errors of the other cases' label maps.

Where one of the simpler rows has the better log score on cases left out, it is what is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from perturb_mpm.files import Case
from perturb_mpm.learning import SKILL, familiar_ranges
from perturb_mpm.progress import SILENT, StagedProgress
from perturb_mpm.run import RunSettings
from perturb_mpm.tune.calibration import SHARES, LearnedTemperature
from perturb_mpm.tune.coupling import Candidate, choose_candidate, find_candidates
from perturb_mpm.tune.intervals import Laws, score_residuals
from perturb_mpm.tune.problem import (
    ALONE,
    GRID,
    LEARNED,
    SAMPLED,
    TEMPERED,
    CaseScores,
    MapScore,
    PredictedMeasure,
    nan_mean,
    score_maps,
)
from perturb_mpm.tune.study import CrossFit, Study, TuningOptions, prepare_study
from perturb_mpm.tune.summary import Tuned, explain, verdict


@dataclass(frozen=True, eq=False)
class Lesson:
    """What some cases teach."""

    candidate: Candidate
    temperature: LearnedTemperature
    volume_laws: Laws
    dice_laws: Laws
    measure_laws: Laws
    cases: int

    @property
    def settings(self) -> RunSettings:
        """The settings of ``run``."""
        return self.candidate.settings.changed(
            temperature=self.temperature.temperature,
            volume_laws=self.volume_laws,
            dice_laws=self.dice_laws,
            measure_laws=self.measure_laws,
            learned_cases=self.cases,
        )


def tune(
    cases: Mapping[str, Case],
    start: RunSettings,
    options: TuningOptions,
    progress: StagedProgress = SILENT,
) -> Tuned:
    """Learn settings on all cases, which have their truth, and score them on cases left out."""
    study = prepare_study(cases, start, options, progress)
    return learn_settings(study, find_candidates(study, start))


def learn_settings(study: Study, candidates: Sequence[Candidate]) -> Tuned:
    """Learn settings from a study whose cases are sampled, and score them on cases left out."""
    names = [each.name for each in study.problems]
    study.progress.stage("learning")
    bare = [each for each in candidates if not each.has_kernels]
    plain = _score_plain(study, bare[0])
    lessons = study.folds.cross_fit(partial(learn, study, candidates))
    maps = _score_lessons(study, lessons)
    ahead = _simpler_ahead(plain, maps)
    if ahead is not None:
        # One row of the table is simpler and better: take its temperature, and no kernels.
        shares = {ALONE: (), GRID: (0.0,), TEMPERED: (1.0,)}[ahead]
        lessons = study.folds.cross_fit(partial(learn, study, bare, shares=shares))
        maps = plain[ahead]
    tuned = Tuned(
        settings=lessons.overall.settings.changed(tuning_ranges=learn_ranges(study)),
        scores=(
            *_collect_scores(study, candidates, lessons, maps, plain),
            *score_residuals(study),
        ),
        regions=tuple(study.regions),
        folds=tuple(tuple(names[i] for i in fold) for fold in study.folds.members),
        reasons=explain(
            study, candidates, lessons.overall.candidate, lessons.overall.temperature, ahead
        ),
        without=dict(zip(names, (each.settings for each in lessons.without), strict=True)),
    )
    words = verdict(tuned)
    return replace(tuned, verdict=words, settings=tuned.settings.changed(note=words))


def learn(
    study: Study,
    candidates: Sequence[Candidate],
    cases: Sequence[int],
    shares: Sequence[float] = SHARES,
) -> Lesson:
    """Return what these cases teach; without ``shares`` the temperature stays 1."""
    chosen = choose_candidate(study, candidates, cases)
    temperature = (
        chosen.maps.learn(cases, study.folds, shares)
        if shares
        else LearnedTemperature(1.0, 0.0, 1.0)
    )
    regions = tuple(study.intervals)
    return Lesson(
        chosen,
        temperature,
        chosen.volumes.fit(cases, regions),
        chosen.dice.fit(cases, regions),
        {
            key: law
            for key, each in chosen.measures.items()
            for law in each.fit(cases, (key,)).values()
        },
        len(cases),
    )


def learn_ranges(study: Study) -> dict[str, tuple[float, float]]:
    """Return between which values properties of cases like these lie."""
    ranges = familiar_ranges([each.describe(skill=None) for each in study.problems])
    skills = [{SKILL: each.skill} for each in study.evidence]
    return ranges | (familiar_ranges(skills) if len(skills) > 1 else {})


def _score_lessons(study: Study, lessons: CrossFit[Lesson]) -> list[MapScore]:
    """Score the maps of each case under what was learned without its fold."""
    scores = []
    for i, (problem, lesson) in enumerate(zip(study.problems, lessons.without, strict=True)):
        temperature = lesson.temperature.for_case(problem.grid_temperature)
        maps = problem.blend(lesson.candidate.samples[i].mean_field, temperature)
        scores.append(score_maps(problem, maps, study.regions, study.decisions))
    return scores


def _score_plain(study: Study, bare: Candidate) -> dict[str, list[MapScore]]:
    """Score the maps of the simpler rows: 1, the grid's temperature, that of the other folds."""
    fitted = study.folds.leave_out(lambda cases: bare.maps.learn(cases, study.folds, (1.0,)))
    rows = {
        ALONE: [1.0] * len(fitted),
        GRID: [each.grid_temperature for each in study.problems],
        TEMPERED: [
            each.for_case(problem.grid_temperature)
            for each, problem in zip(fitted, study.problems, strict=True)
        ],
    }
    return {
        name: [
            score_maps(problem, problem.temper(each), study.regions, study.decisions)
            for problem, each in zip(study.problems, temperatures, strict=True)
        ]
        for name, temperatures in rows.items()
    }


def _simpler_ahead(
    plain: Mapping[str, Sequence[MapScore]], learned: Sequence[MapScore]
) -> str | None:
    """Return the simpler row with a better log score than what was learned, None if none has."""
    scores = {name: nan_mean([each.log_score_nats for each in of]) for name, of in plain.items()}
    best = min(scores, key=lambda name: scores[name])
    ours = nan_mean([each.log_score_nats for each in learned])
    return best if scores[best] < ours else None


def _collect_scores(
    study: Study,
    candidates: Sequence[Candidate],
    lessons: CrossFit[Lesson],
    maps: Sequence[MapScore],
    plain: Mapping[str, Sequence[MapScore]],
) -> list[CaseScores]:
    """Return every score of every case."""
    regions = tuple(study.regions)
    # What ``run`` does without a label: its Dice is that of samples at the grid's temperature.
    unlearned = candidates[0]
    agreement = unlearned if unlearned.has_kernels else candidates[1]
    scores = []
    for i, (problem, lesson) in enumerate(zip(study.problems, lessons.without, strict=True)):
        volumes, dice = lesson.candidate.volumes, lesson.candidate.dice
        scores += [
            CaseScores(
                problem.name,
                LEARNED,
                maps[i],
                volumes.predict(i, lesson.volume_laws, regions),
                dice.predict(i, lesson.dice_laws, regions),
                _predict_measures(lesson.candidate, i, lesson.measure_laws),
            ),
            CaseScores(
                problem.name,
                SAMPLED,
                None,
                unlearned.volumes.predict(i, {}, regions),
                agreement.dice.predict(i, {}, regions),
                _predict_measures(unlearned, i, {}),
            ),
            *(CaseScores(problem.name, name, of[i]) for name, of in plain.items()),
        ]
    return scores


def _predict_measures(candidate: Candidate, case: int, laws: Laws) -> dict[str, PredictedMeasure]:
    """Predict the other measures of a case, by region and measure."""
    found: dict[str, PredictedMeasure] = {}
    for key, each in candidate.measures.items():
        found |= each.predict(case, laws, (key,))
    return found
