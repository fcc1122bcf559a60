"""Cross-validation: what is learned for a case never saw its fold."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from perturb_mpm.tune.study import CrossFit, Folds


def test_folds_are_dealt_in_turn() -> None:
    assert Folds.deal(5, 2).members == ((0, 2, 4), (1, 3))
    with pytest.raises(ValueError, match="`folds` must be at most the number of cases, 2, got 3"):
        Folds.deal(2, 3)


def test_what_is_learned_for_a_case_never_saw_its_fold() -> None:
    folds = Folds.deal(7, 3)
    fitted = folds.cross_fit(frozenset)
    assert fitted.overall == frozenset(range(7))
    for fold in folds.members:
        for case in fold:
            assert fitted.without[case] == frozenset(range(7)) - frozenset(fold)


def test_a_stage_is_given_what_the_same_cases_said_before() -> None:
    folds = Folds.deal(5, 2)
    before = folds.cross_fit(sum)

    def fit(cases: Sequence[int], total: int) -> bool:
        return sum(cases) == total

    assert folds.cross_fit(fit, before).overall
    assert all(folds.cross_fit(fit, before).without)
    mixed = CrossFit(before.overall, before.without[::-1][1:] + before.without[:1])
    assert not all(folds.cross_fit(fit, mixed).without)  # what other cases said is noticed


def test_some_cases_are_split_by_their_folds() -> None:
    folds = Folds.deal(6, 3)
    assert folds.split([0, 1, 3, 4]) == [([0, 3], [1, 4]), ([1, 4], [0, 3])]
    assert folds.split([0, 3]) == [([0], [3]), ([3], [0])]  # of one fold: each against the other
    assert folds.split([2]) == [([2], [2])]
