"""The labelled cases of a tuning in their folds, and what every stage asks of them.

What is learned is learned from all cases, and without the fold of each case: scores of a case are
of settings that its fold had no part in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from perturb_mpm import checks
from perturb_mpm.files import Case, region_members
from perturb_mpm.learning import ImageEvidence
from perturb_mpm.posterior import Regions, check_nested, decide_labels
from perturb_mpm.progress import StagedProgress
from perturb_mpm.run import RunSettings, SettingsError, volume_sets
from perturb_mpm.sampling import MOST_SAMPLES
from perturb_mpm.tune.problem import LabelledProblem

FEWEST_CASES = 3
FEWEST_SAMPLES = 8
MOST_FOLDS = 1000
MOST_ASKED = 20  # cases whose images are asked

T = TypeVar("T")
S = TypeVar("S")


@dataclass(frozen=True)
class TuningOptions:
    """How much is computed."""

    folds: int = 5
    samples: int = 128
    measures: tuple[str, ...] = ()
    """Whose intervals are learned beside those of volumes and Dice."""

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

    def split(self, cases: Sequence[int]) -> list[tuple[list[int], list[int]]]:
        """Return for each fold which of the cases are in it, and which are not.

        Where all are in one fold, each case stands against the others.
        """
        parts = [[case for case in fold if case in cases] for fold in self.members]
        parts = [part for part in parts if part]
        if len(parts) == 1 and len(cases) > 1:
            parts = [[case] for case in cases]
        found = [(part, [case for case in cases if case not in part]) for part in parts]
        return found if len(cases) > 1 else [(list(cases), list(cases))]

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
    options: TuningOptions
    progress: StagedProgress

    @cached_property
    def evidence(self) -> list[ImageEvidence]:
        """What the image says about the probabilities of at most 20 cases, of those it can judge.

        It is a property of images and classifier more than of a patient.
        """
        self.progress.stage("asking the images about the probabilities")
        asked = self.problems[:: -(-len(self.problems) // MOST_ASKED)]
        found = []
        for done, problem in enumerate(asked, start=1):
            found.append(problem.evidence.image)
            self.progress(done, len(asked))
        return [each for each in found if each is not None]

    @cached_property
    def map_ml(self) -> list[NDArray[np.float64]]:
        """The volumes of each case's label map that its probabilities alone give, (L,)."""
        return [
            problem.volumes_ml(decide_labels(problem.probabilities, problem.choose(self.decisions)))
            for problem in self.problems
        ]


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
    problems = [LabelledProblem(name, case) for name, case in cases.items()]
    regions = decisions or intervals
    for name in options.measures:
        if name in ("volume", "dice"):
            raise SettingsError(f"`measure` {name} is learned by itself: leave it out")
    try:
        problems[0].find_measures(intervals, options.measures)
    except ValueError as error:
        raise SettingsError(str(error)) from error
    return Study(problems, dealt, regions, decisions, intervals, options, progress)
