"""Settings of ``run`` from labelled cases, and what they are worth on cases left out.

Few numbers are learned, and every choice is made by cases left out:

1. a temperature, and from 19 cases on a bias for each label, by likelihood (``calibration``),
   where it makes the log score of maps and the score of volumes better together,
   in shares of those of the probabilities alone, without costing labels their overlap;
2. strength and centring of the kernels as far as they beat no kernels in the same way;
3. the length of the noise by the score of volumes under all of the above;
4. from 19 cases on, by how much volume intervals move until they hold 95 of 100 truths.

Everything that is printed is of cases left out: case i is solved with what the other folds say of
steps 1 to 4. Four economies are taken. Messages of kernels are computed once, under the
temperature and bias of all cases, and each fold then learns its own with these messages. Choices
are made from scores of left-out cases, whose temperature other folds learned. Of many cases some,
spread over all folds, say which kernels are worth having; the rest see only those. The length is
searched in a few steps, and no sample is drawn twice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from perturb_mpm import checks
from perturb_mpm.files import Case, region_members
from perturb_mpm.posterior import Regions, check_nested, decide_labels
from perturb_mpm.progress import Silent, StagedProgress
from perturb_mpm.run import RunSettings, SettingsError, volume_sets
from perturb_mpm.sampling import MOST_SAMPLES
from perturb_mpm.tune.calibration import Observed, calibrated, fitted, half, observe
from perturb_mpm.tune.problem import LabelledProblem
from perturb_mpm.tune.scores import (
    FEWEST_FOR_WIDENING,
    CaseScores,
    MapScore,
    Residuals,
    VolumePrediction,
    log_ml,
    mean_of,
    region_ml,
    score_maps,
    score_volume,
    score_volumes,
    widenings,
)
from perturb_mpm.tune.summary import ALONE, CALIBRATED, FIXED, LEARNED, RESIDUAL, TEMPERED, verdict

MOST_FOLDS = 1000
FEWEST_CASES = 3

# Strength and centring that are tried beside no kernels at all, from weak to strong, and how many
# updates they take: kernels this weak have converged by then.
COUPLINGS = ((0.2, 0.5), (0.2, 0.0), (0.35, 0.0))
ITERATIONS = 5
# Lengths that are tried, in radii of a ball of the expected foreground, the median over cases.
LENGTHS = (0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0)
FEW_LENGTHS = (0.35, 0.7, 1.4)  # of these, for choices that come before that of the length
# Of how many cases at most kernels are chosen on: enough to see a gain of two per cent.
KERNEL_CASES = 30
# What labels may lose of their mean overlap for better maps and volumes: no one can see it.
DICE_TOLERANCE = 0.002
# What kernels must gain, of log score and CRPS in shares of the probabilities' own: they cost time.
KERNEL_GAIN = 0.02


@dataclass(frozen=True)
class TuningOptions:
    """How much is computed."""

    folds: int = 5
    samples: int = 128

    def __post_init__(self) -> None:
        checks.integer(self.folds, "`folds`", minimum=2, maximum=MOST_FOLDS)
        checks.integer(self.samples, "`samples`", minimum=8, maximum=MOST_SAMPLES)


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


@dataclass(frozen=True, eq=False)
class Candidate:
    """One coupling: its settings without each fold and with all cases, and its left-out scores."""

    name: str
    without: tuple[RunSettings, ...]  # one a fold
    overall: RunSettings
    scores: Mapping[int, MapScore]  # of all cases, or of those that kernels are chosen on
    volumes: tuple[Mapping[int, float], ...]  # by length, the mean CRPS of the regions of a case

    def loss(self, alone: Candidate, cases: Sequence[int]) -> NDArray[np.float64]:
        """Return log score and CRPS of these cases, in shares of those of the probabilities.

        Each is taken at the length that suits it best.
        """
        maps = [np.array([each.scores[i].log_score_nats for i in cases]) for each in (self, alone)]
        volumes = [each._at_best_length(cases) for each in (self, alone)]
        return _in_shares(*maps) + _in_shares(*volumes)

    def best_length(self, cases: Sequence[int]) -> int:
        """Return the place of the length with the lowest mean CRPS of these cases."""
        return int(np.argmin([mean_of([row[i] for i in cases]) for row in self.volumes]))

    def _at_best_length(self, cases: Sequence[int]) -> NDArray[np.float64]:
        row = self.volumes[self.best_length(cases)]
        return np.array([row[i] for i in cases])


def _in_shares(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return losses in units of the mean of others, which may be 0 where all is certain."""
    return ours / max(float(theirs.mean()), 1e-9)


def tune(
    cases: Mapping[str, Case],
    start: RunSettings,
    options: TuningOptions,
    progress: StagedProgress | None = None,
) -> Tuned:
    """Learn settings on all cases, which have their truth, and score them on cases left out."""
    progress = progress or Silent()
    if len(cases) < FEWEST_CASES:
        raise SettingsError(f"`data` must hold at least {FEWEST_CASES} cases, got {len(cases)}")
    folds = deal(len(cases), options.folds)
    scheme = next(iter(cases.values())).labels
    try:
        decisions = region_members(start.regions, scheme)
        check_nested(decisions)
    except ValueError as error:
        raise SettingsError(str(error)) from error
    rows = volume_sets(scheme, decisions)
    sets = {name: tuple(members) for name, kind, members in rows if kind != "background"}
    shown = decisions or sets
    progress.stage("reading what is true")
    problems = [LabelledProblem(name, case, start) for name, case in cases.items()]
    fold_of = {place: k for k, fold in enumerate(folds) for place in fold}

    lengths = _lengths(problems)
    some = [lengths[LENGTHS.index(each)] for each in FEW_LENGTHS]
    few = max(options.samples // 4, 8)
    scorer = Scorer(problems, folds, shown, decisions, some, few, progress)
    candidates = _candidates(problems, start, folds, scorer, progress)
    chosen = [_chosen(candidates, _others(fold_of, k)) for k in range(len(folds))]
    final = _chosen(candidates, list(fold_of))
    whole = {
        each.name: _on_all(each, problems, folds, scorer, progress)
        for each in dict.fromkeys((*chosen, final))
    }
    chosen, final = [whole[each.name] for each in chosen], whole[final.name]
    own = [chosen[fold_of[i]].without[fold_of[i]] for i in range(len(problems))]

    # First a length without the kernels, which are slow to sample; then those that matter.
    bare = [
        settings if settings.coupling.strength == 0 else candidates[1].without[fold_of[i]]
        for i, settings in enumerate(own)
    ]
    samples = (
        max(options.samples // 2, 8) if final.overall.coupling.strength > 0 else options.samples
    )
    if len(problems) >= FEWEST_FOR_WIDENING:
        place = _searched(problems, bare, lengths, few, shown, progress)
        lengths = _around(lengths, place, with_ends=final.overall.coupling.strength > 0)
        table = _volume_table(problems, own, lengths, samples, sets, progress)
        without, overall = _chosen_lengths(table, fold_of, len(folds), shown)
    else:
        table = _volume_table(problems, bare, lengths, few, sets, progress)
        without, overall = _chosen_lengths(table, fold_of, len(folds), shown)
        used = sorted({overall, *without})
        lengths = [lengths[place] for place in used]
        without, overall = [used.index(place) for place in without], used.index(overall)
        table = _volume_table(problems, own, lengths, samples, sets, progress)
    learned = _learned_volumes(table, without, fold_of, shown)
    scores = [
        CaseScores(problem.name, LEARNED, chosen[fold_of[i]].scores[i], learned[i])
        for i, problem in enumerate(problems)
    ]
    scores += _baselines(problems, candidates, folds, shown, decisions)
    found = widenings_of(table[overall], range(len(problems)), sets)
    settings = final.overall.changed(
        noise_length=lengths[overall], widening=found, learned_cases=len(problems)
    )
    tuned = Tuned(
        settings=settings,
        scores=tuple(scores),
        regions=tuple(shown),
        folds=tuple(tuple(problems[i].name for i in fold) for fold in folds),
        without={
            problem.name: _complete(own[i], lengths, table, without[fold_of[i]], fold_of, i, sets)
            for i, problem in enumerate(problems)
        },
        tried={
            each.name: mean_of([score.log_score_nats for score in each.scores.values()])
            for each in candidates
        },
    )
    words = verdict(tuned)
    return replace(tuned, verdict=words, settings=settings.changed(note=words))


def deal(cases: int, folds: int) -> list[list[int]]:
    """Return the numbers of the cases in as many folds, in turn: 0, 3, 6 … in the first of 3."""
    folds = checks.integer(folds, "folds", minimum=2)
    if cases < folds:
        raise SettingsError(f"`folds` must be at most the number of cases, {cases}, got {folds}")
    return [list(range(fold, cases, folds)) for fold in range(folds)]


def _candidates(
    problems: Sequence[LabelledProblem],
    start: RunSettings,
    folds: Sequence[Sequence[int]],
    scorer: Scorer,
    progress: StagedProgress,
) -> list[Candidate]:
    """Return the probabilities alone, calibrated, and with each coupling that helps."""
    progress.stage("learning temperature and bias")
    bare = start.changed(strength=0.0, centring=1.0, temperature=1.0, bias=None)
    many = len(problems) >= FEWEST_FOR_WIDENING
    seen = [observe(each, bare, everywhere=many) for each in problems]
    taken = _as_it_is if many else half  # a handful of cases is believed half-way
    overall, without = _fitted(seen, folds, bare, with_bias=many)
    found = [
        scorer.candidate(ALONE, [bare] * len(folds), bare),
        scorer.candidate(CALIBRATED, list(map(taken, without)), taken(overall)),
    ]
    everyone = range(len(problems))
    couplings = COUPLINGS if any(each.weight > 0 for each in start.kernels) else ()
    best = scorer.lengths_mm[found[-1].best_length(everyone)]
    some = _spread_out(folds, KERNEL_CASES)
    scorer = replace(scorer, lengths_mm=[best], cases=some)
    for strength, centring in couplings:
        name = f"kernels × {strength:g}, centring {centring:g}"
        progress.stage(f"learning with {name}")
        iterations = min(ITERATIONS, start.sampling.iterations)
        coupled = overall.changed(
            strength=strength, centring=centring, iterations=iterations, tolerance=0.0
        )
        overall, without = _coupled(problems, some, folds, coupled, progress, many=many)
        found.append(scorer.candidate(name, list(map(taken, without)), taken(overall)))
        before, after = (each.loss(found[0], some).mean() for each in found[-2:])
        if after >= before:
            break  # a stronger coupling is worse still
    return found


def _coupled(
    problems: Sequence[LabelledProblem],
    cases: Sequence[int],
    folds: Sequence[Sequence[int]],
    coupled: RunSettings,
    progress: StagedProgress,
    *,
    many: bool,
) -> tuple[RunSettings, list[RunSettings]]:
    """Return the calibration under some kernels of these cases, and those without each fold."""
    overall, last = calibrated([problems[i] for i in cases], coupled, progress, many=many)
    places = [[place for place, i in enumerate(cases) if i in fold] for fold in folds]
    return _fitted(last, places, overall, with_bias=many)


def _on_all(
    candidate: Candidate,
    problems: Sequence[LabelledProblem],
    folds: Sequence[Sequence[int]],
    scorer: Scorer,
    progress: StagedProgress,
) -> Candidate:
    """Return the candidate learned on and scored for all cases, where it has seen only some."""
    if len(candidate.scores) == len(problems):
        return candidate
    progress.stage(f"learning with {candidate.name} from all cases")
    overall, without = _coupled(
        problems, range(len(problems)), folds, candidate.overall, progress, many=True
    )
    return replace(scorer, lengths_mm=()).candidate(candidate.name, without, overall)


def _spread_out(folds: Sequence[Sequence[int]], most: int) -> list[int]:
    """Return at most so many cases, as many of each fold as of any other."""
    each = max(most // len(folds), 1)
    return sorted(i for fold in folds for i in fold[:each])


def _fitted(
    seen: Sequence[Observed],
    folds: Sequence[Sequence[int]],
    start: RunSettings,
    *,
    with_bias: bool,
) -> tuple[RunSettings, list[RunSettings]]:
    """Return the calibration of all cases, and those without each fold."""
    overall = fitted(seen, start, with_bias=with_bias)
    without = [fitted(_left(seen, fold), overall, with_bias=with_bias) for fold in folds]
    return overall, without


def _as_it_is(settings: RunSettings) -> RunSettings:
    return settings


def _left(seen: Sequence[Observed], fold: Sequence[int]) -> list[Observed]:
    """Return what is left without a fold."""
    return [each for place, each in enumerate(seen) if place not in fold]


@dataclass(frozen=True, eq=False)
class Scorer:
    """How candidates are scored: each case with the settings that its fold had no part in."""

    problems: Sequence[LabelledProblem]
    folds: Sequence[Sequence[int]]
    shown: Regions
    decisions: Regions
    lengths_mm: Sequence[float]
    samples: int
    progress: StagedProgress
    cases: Sequence[int] | None = None  # all unless some are given

    def candidate(
        self, name: str, without: Sequence[RunSettings], overall: RunSettings
    ) -> Candidate:
        """Score one way to make marginals and volumes."""
        self.progress.stage(f"scoring cases left out: {name}")
        maps: dict[int, MapScore] = {}
        volumes: dict[int, list[float]] = {}
        wanted = range(len(self.problems)) if self.cases is None else self.cases
        for fold, settings in zip(self.folds, without, strict=True):
            for i in (case for case in fold if case in wanted):
                problem = self.problems[i]
                marginals = problem.marginals(settings)
                maps[i] = score_maps(problem, marginals, self.shown, self.decisions)
                drawn = problem.sampled_ml(settings, self.lengths_mm, self.samples, seed=i)
                volumes[i] = [self._crps(problem, each) for each in drawn]
                self.progress(len(maps), len(wanted))
        by_length = tuple(
            {i: volumes[i][place] for i in volumes} for place in range(len(self.lengths_mm))
        )
        return Candidate(name, tuple(without), overall, maps, by_length)

    def _crps(self, problem: LabelledProblem, drawn: NDArray[np.float64]) -> float:
        return mean_of([each.crps for each in score_volumes(problem, drawn, self.shown).values()])


def _others(fold_of: Mapping[int, int], fold: int) -> list[int]:
    return [place for place, k in fold_of.items() if k != fold]


def _chosen(candidates: Sequence[Candidate], cases: Sequence[int]) -> Candidate:
    """Return the candidate that is best for maps and volumes on these cases and keeps overlap.

    Candidates are compared on the cases that all of them have seen.
    """
    alone = candidates[0]
    cases = [i for i in cases if all(i in each.scores for each in candidates)]
    allowed = [each for each in candidates if _keeps_overlap(each, alone, cases)]

    def loss(each: Candidate) -> float:
        handicap = KERNEL_GAIN if each.overall.coupling.strength > 0 else 0.0
        return float(each.loss(alone, cases).mean()) + handicap

    return min(allowed, key=loss)


def _keeps_overlap(candidate: Candidate, alone: Candidate, cases: Sequence[int]) -> bool:
    """Whether the mean overlap over cases and regions is not lower than of the probabilities."""
    ours, theirs = (
        mean_of([mean_of([score.dice[name] for score in scores]) for name in scores[0].dice])
        for scores in ([each.scores[i] for i in cases] for each in (candidate, alone))
    )
    return math.isnan(theirs) or ours >= theirs - DICE_TOLERANCE


VolumeTable = list[list[dict[str, VolumePrediction]]]
"""Scores by length, then by case, then by region."""


def _lengths(problems: Sequence[LabelledProblem]) -> list[float]:
    """Return the lengths to try, in mm, rising."""
    radius = float(np.median([each.length_mm for each in problems]))
    return [round(share * radius, 1) for share in LENGTHS]


def _around(lengths: Sequence[float], place: int, *, with_ends: bool) -> list[float]:
    """Return the length that was found and what lies between it and its neighbours, in mm.

    The neighbours are worse; but kernels that it was found without may move it as far as these.
    """
    near = lengths[max(place - 1, 0) : place + 2]
    between = [math.sqrt(first * second) for first, second in pairwise(near)]
    tried = (*near, *between) if with_ends else (lengths[place], *between)
    return sorted(round(each, 1) for each in tried)


def _searched(
    problems: Sequence[LabelledProblem],
    settings: Sequence[RunSettings],
    lengths: Sequence[float],
    samples: int,
    shown: Regions,
    progress: StagedProgress,
) -> int:
    """Return the place of the length that is best for all cases: of a few, then of its neighbours.

    The score of volumes has one valley: the spread is too small on one side, too large on the
    other.
    """
    places = [LENGTHS.index(each) for each in FEW_LENGTHS]
    for _ in range(2):
        near = [lengths[place] for place in places]
        table = _volume_table(problems, settings, near, samples, shown, progress)
        best = places[best_length(table, range(len(problems)), shown)]
        places = list(range(len(lengths))[max(best - 1, 0) : best + 2])
    return best


def _volume_table(
    problems: Sequence[LabelledProblem],
    settings: Sequence[RunSettings],
    lengths: Sequence[float],
    samples: int,
    sets: Regions,
    progress: StagedProgress,
) -> VolumeTable:
    """Sample every case under its left-out settings at every length.

    Each case has its own seed: the same fields in all cases would make chance look like bias.
    """
    progress.stage("sampling volumes of cases left out")
    table: VolumeTable = [[] for _ in lengths]
    for i, (problem, own) in enumerate(zip(problems, settings, strict=True)):
        drawn = problem.sampled_ml(own, lengths, samples, seed=i)
        for row, volumes in zip(table, drawn, strict=True):
            row.append(score_volumes(problem, volumes, sets))
        progress(i + 1, len(problems))
    return table


def _chosen_lengths(
    table: VolumeTable, fold_of: Mapping[int, int], folds: int, shown: Regions
) -> tuple[list[int], int]:
    """Return the places of the best lengths without each fold, and with all cases."""
    without = [best_length(table, _others(fold_of, k), shown) for k in range(folds)]
    return without, best_length(table, list(fold_of), shown)


def best_length(table: VolumeTable, cases: Sequence[int], shown: Regions) -> int:
    """Return the place of the length whose volumes score best on these cases.

    A handful of cases is believed half-way: the place lies between that and the length that
    ``run`` assumes. Their table holds all of the lengths that are tried.
    """
    scores = [
        mean_of([mean_of([row[i][name].crps for name in shown]) for i in cases]) for row in table
    ]
    best = int(np.argmin(scores))
    if len(cases) >= FEWEST_FOR_WIDENING or len(table) != len(LENGTHS):
        return best
    return math.floor((best + LENGTHS.index(1.0) + 1) / 2)


def widenings_of(
    row: Sequence[Mapping[str, VolumePrediction]], cases: Sequence[int], sets: Regions
) -> dict[str, float]:
    """Return by how many nats the interval of every region moves at both ends."""
    found = widenings([{name: row[i][name] for name in sets} for i in cases])
    return {name: round(each.amount, 4) for name, each in found.items()}


def _complete(
    settings: RunSettings,
    lengths: Sequence[float],
    table: VolumeTable,
    place: int,
    fold_of: Mapping[int, int],
    case: int,
    sets: Regions,
) -> RunSettings:
    """Return the settings of a case left out with the length and widening of the other folds."""
    others = _others(fold_of, fold_of[case])
    return settings.changed(
        noise_length=lengths[place],
        widening=widenings_of(table[place], others, sets),
        learned_cases=len(others),
    )


def _learned_volumes(
    table: VolumeTable, chosen: Sequence[int], fold_of: Mapping[int, int], shown: Regions
) -> dict[int, dict[str, VolumePrediction]]:
    """Return the scores of each case with the length and the widening of the other folds."""
    result = {}
    for k, place in enumerate(chosen):
        row = table[place]
        others = _others(fold_of, k)
        steps = widenings([{name: row[i][name] for name in shown} for i in others])
        for i in (case for case, fold in fold_of.items() if fold == k):
            result[i] = {
                name: row[i][name].widened(steps[name]) if name in steps else row[i][name]
                for name in shown
            }
    return result


def _baselines(
    problems: Sequence[LabelledProblem],
    candidates: Sequence[Candidate],
    folds: Sequence[Sequence[int]],
    shown: Regions,
    decisions: Regions,
) -> list[CaseScores]:
    """Score probabilities alone and tempered, and volumes by the errors of other cases' volumes."""
    scores: list[CaseScores] = []
    fold_of = {place: k for k, fold in enumerate(folds) for place in fold}
    bare = candidates[0].overall
    seen = [observe(each, bare, everywhere=False) for each in problems]
    _, tempered = _fitted(seen, folds, bare, with_bias=False)
    for i, problem in enumerate(problems):
        marginals = problem.marginals(tempered[fold_of[i]])
        maps = score_maps(problem, marginals, shown, decisions)
        scores.append(CaseScores(problem.name, ALONE, candidates[0].scores[i], None))
        scores.append(CaseScores(problem.name, TEMPERED, maps, None))
    mapped = np.array([_map_ml(each, decisions) for each in problems])  # (cases, L)
    true = np.array([each.true_ml for each in problems])  # (cases, L)
    for i, problem in enumerate(problems):
        others = _others(fold_of, fold_of[i])
        by_method: dict[str, dict[str, VolumePrediction]] = {FIXED: {}, RESIDUAL: {}}
        for name, members in shown.items():
            found, real = region_ml(mapped, members), region_ml(true, members)
            differences = log_ml(real[others]) - log_ml(found[others])
            past = Residuals(tuple(differences.tolist()))
            by_method[FIXED][name] = score_volume(past.normal(found[i]), real[i])
            by_method[RESIDUAL][name] = score_volume(past.shifted(found[i]), real[i])
        scores += [CaseScores(problem.name, m, None, found) for m, found in by_method.items()]
    return scores


def _map_ml(problem: LabelledProblem, decisions: Regions) -> NDArray[np.float64]:
    """Return the volumes of the label map that the probabilities alone give, (L,)."""
    labels = decide_labels(problem.probabilities, decisions)
    counts = np.bincount(labels, minlength=problem.n_labels)
    return counts.astype(np.float64) * problem.voxel_ml
