"""Every way to get labels, maps and volumes out of somebody's probabilities, on cases with a truth.

What ``tune`` learns is scored on cases left out; what needs no label is what ``run`` itself does,
in memory: evidence, the check of the kernels, labels, intervals of volumes and of Dice. Maps are
scored within 5 mm of true or predicted foreground, volumes in the whole image. What is done is kept
in a folder, so that an interrupted measurement goes on.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.comparators import displace_borders
from lab.evidence.learning import FEW, rank_dice, score_few
from lab.evidence.sets import LabelledSet, Rival, describe_basis, describe_origin
from lab.evidence.tuning_page import tuning_page
from lab.store import PartStore
from perturb_mpm.files import Case
from perturb_mpm.inference import ConvergenceWarning
from perturb_mpm.progress import Silent, StagedProgress
from perturb_mpm.run import (
    MOST_SAMPLE_MAPS,
    Run,
    RunSettings,
    assumed_length_mm,
    build_crf,
    build_sampler,
    check_coupling,
    decide_settings,
    find_evidence,
    map_marginals,
    measure_agreement,
    settings_text,
    volume_rows,
)
from perturb_mpm.sampling import Sampler
from perturb_mpm.tune import (
    CaseScores,
    LabelledProblem,
    MapScore,
    PredictedMeasure,
    Study,
    TuningOptions,
    find_candidates,
    learn_settings,
    prepare_study,
    score_maps,
    score_volumes,
)

DEFAULT = "defaults of run"
BARE = "no kernels, same noise"
FORCED = "kernels whatever the image says"
WHITE = "our kernels at full strength, white noise"
DISPLACED = "displaced borders"
FORCED_STRENGTH = 0.35
DISPLACEMENTS = 32  # each costs as much as ten samples
FEW_SAMPLES = 8  # where only labels and maps are asked for, which hardly depend on samples


@dataclass(frozen=True)
class RunEvidence:
    """What ``run`` found in one case without a label, and what its Dice intervals are worth."""

    skill: float | None
    asked_strength: float
    used_strength: float
    temperature: float
    dice: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)
    """By region of the label map: both ends of the 95 % interval, and the true Dice."""


@dataclass(frozen=True)
class MeasuredSet:
    """All scores of a set, and the page of what tuning is worth on it."""

    name: str
    page: str  # the name of the page of what tuning is worth, without its ending
    cases: int
    samples: int
    regions: tuple[str, ...]
    scores: Sequence[CaseScores]
    evidence: Sequence[RunEvidence]
    verdict: str
    tuning_page: str
    settings: str  # a TOML file of what was learned, which says for which cases


def measure_set(
    found: LabelledSet,
    folder: Path,
    samples: int,
    progress: StagedProgress,
) -> MeasuredSet:
    """Tune with folds left out, then score what needs no label beside it, case by case."""
    identity = {"samples": samples, "cases": list(found.cases), "classifier": found.name}
    store = PartStore(folder / "parts" / found.page, identity)
    options = TuningOptions(folds=found.folds, samples=samples)
    study = prepare_study(found.cases, found.start, options, progress)
    tuned = _load_or_measure(store, "tuned", lambda: _tune(study, found))
    progress.stage("scoring what needs no label")
    parts = []
    for seed, problem in enumerate(study.problems):

        def score(problem: LabelledProblem = problem, seed: int = seed) -> dict[str, Any]:
            start = found.start.changed(samples=samples, seed=seed)
            evidence, scores = score_case(study, problem, start, found.read_rivals(problem.name))
            return {"evidence": asdict(evidence), "scores": [asdict(each) for each in scores]}

        parts.append(_load_or_measure(store, f"case-{problem.name}", score))
        progress(seed + 1, len(study.problems))
    rows = [*tuned["scores"], *(each for part in parts for each in part["scores"])]
    counts = Counter(each["method"] for each in rows)  # a row is of all cases
    rows = [each for each in rows if counts[each["method"]] == len(parts)]
    return MeasuredSet(
        found.name,
        found.page,
        len(study.problems),
        samples,
        tuple(study.regions),
        [restore_scores(each) for each in rows],
        [_restore_evidence(part["evidence"]) for part in parts],
        tuned["verdict"],
        tuned["page"],
        tuned["settings"],
    )


def _tune(study: Study, found: LabelledSet) -> dict[str, Any]:
    candidates = find_candidates(study, found.start)
    tuned = learn_settings(study, candidates)
    # What needs no label: samples at the grid's temperature, with the kernels that run takes.
    first = candidates[0] if candidates[0].has_kernels else candidates[1]
    few = score_few(study, candidates) if len(study.problems) > FEW else []
    ranks = rank_dice(study, first)
    title = f"What tuning is worth on {found.page.removeprefix('tune-').replace('-', ', ')}"
    text = tuning_page(title, found.command, study.options.samples, tuned, few, ranks)
    scores = [asdict(each) for each in tuned.scores]
    learned = tuned.settings.changed(**describe_basis(found))
    settings = settings_text(learned, describe_origin(found, found.command))
    return {"scores": scores, "verdict": tuned.verdict, "page": text, "settings": settings}


def score_case(
    study: Study, problem: LabelledProblem, start: RunSettings, rivals: Mapping[str, Rival]
) -> tuple[RunEvidence, list[CaseScores]]:
    """Score what needs no label on one case; white noise's labels are its most frequent votes."""
    run = draw_run(problem.case, start)
    evidence = run.evidence
    bare = decide_settings(start.changed(strength=0.0), problem.case, evidence)
    white = RunSettings.of_paper().changed(samples=start.sampling.samples, seed=start.sampling.seed)
    # Samples without kernels have the temperature that those with kernels have.
    drawn = {
        BARE: _sample(problem.case, bare.changed(sampling_temperature=None)),
        WHITE: _sample(problem.case, white),
        DISPLACED: _displace(problem.case, start.sampling.seed),
    }
    if run.coupling is None:  # the image asked for none
        forced = start.changed(strength=FORCED_STRENGTH)
        drawn[FORCED] = _sample(problem.case, decide_settings(forced, problem.case, evidence))
    scores = [_score_rival(study, problem, name, each) for name, each in rivals.items()]
    for name, (marginals, volumes_ml) in drawn.items():
        maps = score_maps(
            problem, marginals, study.regions, None if name == WHITE else study.decisions
        )
        volumes = score_volumes(problem, volumes_ml, study.regions)
        scores.append(CaseScores(problem.name, name, maps, volumes))
    scores.append(score_run(study, problem, run))
    return describe_run(study, problem, run), scores


def draw_run(case: Case, settings: RunSettings) -> Run:
    """Return what ``run`` finds in a case, without a file."""

    def build(run: Run) -> Sampler:
        return build_sampler(build_crf(run.case, run.settings), run.settings)

    evidence = find_evidence(case)
    decided = decide_settings(settings, case, evidence)
    run = Run(Path(), "", {}, case, decided, evidence=evidence)
    kept: list[NDArray[np.uint8]] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        run, sampler, _ = check_coupling(run, build(run), build)
        votes = sampler.draw(keep=lambda _, labels: kept.append(labels.copy()))
        first = np.concatenate(kept)[:MOST_SAMPLE_MAPS]
        run = replace(run, votes=votes, first_samples=first)
        return replace(run, agreement=measure_agreement(run, sampler))


def score_run(study: Study, problem: LabelledProblem, run: Run) -> CaseScores:
    """Score a run: its maps, its labels, and its own intervals of volumes."""
    maps = score_maps(problem, run.voxel_marginals, study.regions, study.decisions)
    intervals = {row.name: row.interval_ml for row in volume_rows(run)}
    sampled = score_volumes(problem, run.posterior.volumes / 1000, study.regions)
    volumes = {
        name: replace(each, lower=intervals[name][0], upper=intervals[name][1])
        for name, each in sampled.items()
    }
    return CaseScores(problem.name, DEFAULT, maps, volumes)


def describe_run(study: Study, problem: LabelledProblem, run: Run) -> RunEvidence:
    """Return what a run decided without a label, and its intervals of Dice beside the truth."""
    maps = score_maps(problem, run.voxel_marginals, study.regions, study.decisions)
    image = run.evidence.image if run.evidence else None
    used = run.settings.coupling.strength or 0.0
    return RunEvidence(
        None if image is None else image.skill,
        run.coupling.asked_strength if run.coupling else used,
        used,
        run.settings.unary.temperature or 1.0,
        {
            name: (found.lower, found.upper, maps.dice[name])
            for name, found in run.agreement.items()
            if name in maps.dice and not math.isnan(maps.dice[name])
        },
    )


def _sample(case: Case, settings: RunSettings) -> tuple[NDArray[np.floating], NDArray[np.float64]]:
    """Return the maps (L, N) and the volumes in ml (S, L) of samples."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        posterior = build_sampler(build_crf(case, settings), settings).draw()
    return map_marginals(case, settings, posterior), posterior.volumes / 1000


def _displace(case: Case, seed: int) -> tuple[NDArray[np.floating], NDArray[np.float64]]:
    """Move the borders by one voxel's size, correlated over as many mm as the noise of ``run``."""
    size = float(np.mean(case.geometry.spacing))
    mean, volumes_ml = displace_borders(case, assumed_length_mm(case), size, DISPLACEMENTS, seed)
    return mean[:, case.mask], volumes_ml


def _score_rival(study: Study, problem: LabelledProblem, name: str, rival: Rival) -> CaseScores:
    """Score label maps; the shares of a few are mostly 0 or 1, so their maps are not scored."""
    shares = rival.marginals(problem.n_labels)[:, problem.case.mask]
    maps = score_maps(problem, shares, study.regions, study.decisions)
    if rival.mean is None:
        maps = MapScore(maps.dice, math.nan, math.nan, math.nan)
    volumes_ml = np.stack([problem.volumes_ml(each[problem.case.mask]) for each in rival.labels])
    return CaseScores(problem.name, name, maps, score_volumes(problem, volumes_ml, study.regions))


@dataclass(frozen=True)
class GivenScore:
    """Labels and maps of one case as they were given, and as ``run`` returns them."""

    given: MapScore
    returned: MapScore
    evidence: RunEvidence


def score_given(cases: Mapping[str, Case], start: RunSettings) -> list[GivenScore]:
    """Score another classifier's probabilities, and what ``run`` makes of them without a label."""
    options = TuningOptions(folds=2)
    study = prepare_study(cases, start, options, Silent())
    found = []
    for problem in study.problems:
        run = draw_run(problem.case, start.changed(samples=FEW_SAMPLES))
        given = score_maps(problem, problem.probabilities, study.regions, study.decisions)
        returned = score_run(study, problem, run).maps
        if returned is not None:
            found.append(GivenScore(given, returned, describe_run(study, problem, run)))
    return found


def _restore_evidence(found: Mapping[str, Any]) -> RunEvidence:
    dice = {name: (each[0], each[1], each[2]) for name, each in found["dice"].items()}
    return RunEvidence(**{**found, "dice": dice})


def restore_scores(found: Mapping[str, Any]) -> CaseScores:
    """Return scores from what JSON held of them."""

    def measures(of: Mapping[str, Any] | None) -> dict[str, PredictedMeasure] | None:
        return None if of is None else {name: PredictedMeasure(**each) for name, each in of.items()}

    maps = found["maps"]
    return CaseScores(
        found["case"],
        found["method"],
        None if maps is None else MapScore(**maps),
        measures(found["volumes"]),
        measures(found["dice"]),
    )


def _load_or_measure(
    store: PartStore, key: str, measure: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    found = store.load(key)
    if found is None:
        found = measure()
        store.save(key, found)
    return found
