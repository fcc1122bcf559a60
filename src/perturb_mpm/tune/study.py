"""The labelled cases of a tuning in their folds, and what every stage asks of them.

What is learned is learned from all cases, and without the fold of each case: scores of a case are
of settings that its fold had no part in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from perturb_mpm import checks
from perturb_mpm.files import Case, region_members
from perturb_mpm.posterior import Regions, check_nested
from perturb_mpm.progress import StagedProgress
from perturb_mpm.run import RunSettings, SettingsError, volume_sets
from perturb_mpm.sampling import MOST_SAMPLES
from perturb_mpm.tune.problem import (
    MANY_CASES,
    LabelledProblem,
    MapScore,
    VolumePrediction,
    nan_mean,
    score_maps,
    score_volumes,
)

FEWEST_CASES = 3
FEWEST_SAMPLES = 8
MOST_FOLDS = 1000

T = TypeVar("T")
S = TypeVar("S")


@dataclass(frozen=True)
class TuningOptions:
    """How much is computed."""

    folds: int = 5
    samples: int = 128

    def __post_init__(self) -> None:
        checks.integer(self.folds, "`folds`", minimum=2, maximum=MOST_FOLDS)
        checks.integer(self.samples, "`samples`", minimum=FEWEST_SAMPLES, maximum=MOST_SAMPLES)


@dataclass(frozen=True, eq=False)
class CrossFit(Generic[T]):
    """What all cases say, and for each case what the cases outside its fold say."""

    overall: T
    without: tuple[T, ...]  # by case

    def apply(self, change: Callable[[T], S]) -> CrossFit[S]:
        """Return the same with every value changed."""
        return CrossFit(change(self.overall), tuple(map(change, self.without)))


@dataclass(frozen=True)
class Folds:
    """Cases by their index, each in one fold."""

    members: tuple[tuple[int, ...], ...]

    @classmethod
    def deal(cls, cases: int, folds: int) -> Folds:
        """Deal cases to folds in turn: 0, 3, 6 … to the first of 3."""
        folds = checks.integer(folds, "folds", minimum=2)
        if cases < folds:
            raise SettingsError(
                f"`folds` must be at most the number of cases, {cases}, got {folds}"
            )
        return cls(tuple(tuple(range(fold, cases, folds)) for fold in range(folds)))

    @property
    def everyone(self) -> range:
        """All cases."""
        return range(sum(map(len, self.members)))

    def spread(self, most: int) -> list[int]:
        """Return at most so many cases, equally many of each fold; at least one of each."""
        share = max(most // len(self.members), 1)
        return sorted(case for fold in self.members for case in fold[:share])

    def cross_fit(self, fit: Callable[..., T], *before: CrossFit[Any]) -> CrossFit[T]:
        """Call ``fit(cases, *learned)`` with all cases, and without each fold.

        ``before`` is what earlier stages learned; ``fit`` is given that of the same cases.
        """
        overall = fit(self.everyone, *(each.overall for each in before))
        return CrossFit(overall, self.leave_out(fit, *before))

    def leave_out(self, fit: Callable[..., T], *before: CrossFit[Any]) -> tuple[T, ...]:
        """Return for each case what ``fit`` learns without its fold."""
        found: dict[int, T] = {}
        for fold in self.members:
            others = [case for case in self.everyone if case not in fold]
            learned = fit(others, *(each.without[fold[0]] for each in before))
            found.update(dict.fromkeys(fold, learned))
        return tuple(found[case] for case in self.everyone)


@dataclass(frozen=True, eq=False)
class Study:
    """Labelled cases, their folds, and the regions that count."""

    problems: Sequence[LabelledProblem]
    folds: Folds
    regions: Regions  # choices are made for these, and scores printed
    decisions: Regions  # labels are decided by these; where there are none, the most probable
    intervals: Regions  # regions and labels whose intervals are learned
    samples: int
    progress: StagedProgress

    @property
    def many(self) -> bool:
        """Whether the cases are believed entirely: enough to promise 95 % of truths."""
        return len(self.problems) >= MANY_CASES

    def reduced_samples(self, share: int) -> int:
        """Return a half, a quarter … of the samples, for what needs fewer."""
        return max(self.samples // share, FEWEST_SAMPLES)

    def score_maps(
        self, settings: Sequence[RunSettings], cases: Sequence[int]
    ) -> dict[int, MapScore]:
        """Score labels and maps of cases, each under its own of the settings."""
        found: dict[int, MapScore] = {}
        for case in cases:
            problem = self.problems[case]
            marginals = problem.marginals(settings[case])
            found[case] = score_maps(problem, marginals, self.regions, self.decisions)
            self.progress(len(found), len(cases))
        return found

    def draw_volumes(
        self,
        settings: Sequence[RunSettings],
        lengths_mm: Sequence[float],
        samples: int,
        cases: Sequence[int] | None = None,
    ) -> VolumeTable:
        """Sample volumes of cases, each under its own of the settings, at every length.

        Each case has its own seed: the same fields in all cases would make chance look like bias.
        """
        cases = self.folds.everyone if cases is None else cases
        table: dict[float, dict[int, dict[str, VolumePrediction]]] = {mm: {} for mm in lengths_mm}
        for done, case in enumerate(cases, start=1):
            problem = self.problems[case]
            drawn = problem.sampled_ml(settings[case], lengths_mm, samples, seed=case)
            for mm, volumes in zip(lengths_mm, drawn, strict=True):
                table[mm][case] = score_volumes(problem, volumes, self.intervals)
            self.progress(done, len(cases))
        return VolumeTable(table, tuple(self.regions))


@dataclass(frozen=True, eq=False)
class VolumeTable:
    """Predicted volumes by correlation length (mm), case and region."""

    predictions: Mapping[float, Mapping[int, Mapping[str, VolumePrediction]]]
    regions: tuple[str, ...]  # those that a length is chosen for

    def crps(self, length_mm: float, case: int) -> float:
        """Return the mean score of the regions of a case."""
        found = self.predictions[length_mm][case]
        return nan_mean([found[name].crps for name in self.regions])

    def best_length(self, cases: Sequence[int]) -> float:
        """Return the length with the lowest mean score of these cases, mm."""
        return min(
            self.predictions, key=lambda mm: nan_mean([self.crps(mm, case) for case in cases])
        )


def prepare_study(
    cases: Mapping[str, Case],
    start: RunSettings,
    options: TuningOptions,
    progress: StagedProgress,
) -> Study:
    """Check the cases and regions, and read what is true."""
    if len(cases) < FEWEST_CASES:
        raise SettingsError(f"`data` must have at least {FEWEST_CASES} cases, got {len(cases)}")
    dealt = Folds.deal(len(cases), options.folds)
    scheme = next(iter(cases.values())).labels
    try:
        decisions = region_members(start.regions, scheme)
        check_nested(decisions)
    except ValueError as error:
        raise SettingsError(str(error)) from error
    rows = volume_sets(scheme, decisions)
    intervals = {name: tuple(members) for name, kind, members in rows if kind != "background"}
    progress.stage("reading the true labels")
    problems = [LabelledProblem(name, case, start) for name, case in cases.items()]
    regions = decisions or intervals
    return Study(problems, dealt, regions, decisions, intervals, options.samples, progress)
