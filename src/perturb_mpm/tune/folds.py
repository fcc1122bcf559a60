"""Cross-validation: what is learned from all cases, and without the fold of each case."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from perturb_mpm import checks
from perturb_mpm.run import SettingsError

T = TypeVar("T")
S = TypeVar("S")


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
            others = self.others(fold)
            learned = fit(others, *(each.without[fold[0]] for each in before))
            found.update(dict.fromkeys(fold, learned))
        return tuple(found[case] for case in self.everyone)

    def others(self, fold: Sequence[int]) -> list[int]:
        """Return the cases outside a fold."""
        return [case for case in self.everyone if case not in fold]
