"""Settings of ``run`` from labelled cases, and what they are worth on cases left out.

Few numbers are learned, in four stages, each in a module of its own:

1. calibrate: a temperature, and of many cases a bias for each label, by likelihood;
2. couple: strength and centring of the kernels, as far as they beat no kernels;
3. correlate: the correlation length of the noise, by the score of volumes;
4. widen: of many cases, by how much volume intervals move until they hold 95 of 100 truths.

A stage has ``fit(cases, …)``, which learns from cases given by their index, and ``score(case, …)``
or a table of scores made before. ``Folds.cross_fit`` calls ``fit`` with all cases, which gives the
settings, and without each fold: everything that is printed of a case is of settings that its fold
had no part in.

Four economies are taken. Messages of kernels are computed once, under the temperature and bias of
all cases, and each fold then learns its own with these messages. Choices are made from scores of
left-out cases, whose temperature other folds learned. Of many cases some, spread over all folds,
say which kernels are worth having; the rest see only those. The length is searched in a few steps,
and no sample is drawn twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from perturb_mpm import checks
from perturb_mpm.files import Case
from perturb_mpm.progress import Silent, StagedProgress
from perturb_mpm.run import RunSettings
from perturb_mpm.sampling import MOST_SAMPLES
from perturb_mpm.tune.baselines import score_residuals, score_tempered
from perturb_mpm.tune.correlation import correlate
from perturb_mpm.tune.coupling import ALONE, Candidate, Couple, find_candidates, learn_from_all
from perturb_mpm.tune.folds import CrossFit
from perturb_mpm.tune.scores import CaseScores, nan_mean
from perturb_mpm.tune.study import FEWEST_SAMPLES, Study, prepare_study
from perturb_mpm.tune.summary import LEARNED, verdict
from perturb_mpm.tune.widening import Widen, Widenings

MOST_FOLDS = 1000


@dataclass(frozen=True)
class TuningOptions:
    """How much is computed."""

    folds: int = 5
    samples: int = 128

    def __post_init__(self) -> None:
        checks.integer(self.folds, "`folds`", minimum=2, maximum=MOST_FOLDS)
        checks.integer(self.samples, "`samples`", minimum=FEWEST_SAMPLES, maximum=MOST_SAMPLES)


@dataclass(frozen=True, eq=False)
class Tuned:
    """Settings learned on all cases, and every score of the cases left out."""

    settings: RunSettings
    scores: tuple[CaseScores, ...]
    regions: tuple[str, ...]
    """What the scores are printed for: the regions, or all labels where none were given."""
    folds: tuple[tuple[str, ...], ...]
    verdict: str = ""
    tried: Mapping[str, float] = field(default_factory=dict)
    """The mean log score of each candidate in cases left out, nats."""
    without: Mapping[str, RunSettings] = field(default_factory=dict)
    """What was learned without each case, by its name: these settings made its scores."""


def tune(
    cases: Mapping[str, Case],
    start: RunSettings,
    options: TuningOptions,
    progress: StagedProgress | None = None,
) -> Tuned:
    """Learn settings on all cases, which have their truth, and score them on cases left out."""
    study = prepare_study(
        cases,
        start,
        folds=options.folds,
        samples=options.samples,
        progress=progress or Silent(),
    )
    folds, names = study.folds, [each.name for each in study.problems]

    candidates = find_candidates(study, start)
    chosen = _choose(study, candidates)
    settings = CrossFit(
        chosen.overall.settings.overall,
        tuple(each.settings.without[i] for i, each in enumerate(chosen.without)),
    )
    lengths, volumes = correlate(study, settings, _without_kernels(settings, candidates[1]))
    widen = Widen(volumes)
    widenings = folds.cross_fit(widen.fit, lengths)
    complete = folds.cross_fit(_complete, settings, lengths, widenings)

    scores = [
        CaseScores(
            name,
            LEARNED,
            chosen.without[i].maps[i],
            widen.score(i, lengths.without[i], widenings.without[i]),
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
    chosen = study.folds.cross_fit(Couple(candidates).fit)
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
