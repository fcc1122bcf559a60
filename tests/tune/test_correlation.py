"""Correlate: the length of the noise whose volumes score best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from helpers.labelled_cases import miscalibrated_case
from perturb_mpm.files import Case
from perturb_mpm.progress import Silent
from perturb_mpm.run import RunSettings, build_crf, build_sampler
from perturb_mpm.tune.correlation import (
    LENGTHS,
    Correlate,
    CorrelateHalfway,
    lengths_near,
    search_valley,
)
from perturb_mpm.tune.folds import Folds
from perturb_mpm.tune.scores import VolumePrediction
from perturb_mpm.tune.study import VolumeTable, prepare_study

BARE = RunSettings(kernels=()).changed(strength=0.0)


def volume_table(crps: Sequence[float], cases: int) -> VolumeTable:
    """The same score of every case at each of LENGTHS."""
    return VolumeTable(
        {
            mm: {i: {"ball": VolumePrediction(1.0, 2.0, 1.5, each)} for i in range(cases)}
            for mm, each in zip(LENGTHS, crps, strict=True)
        },
        ("ball",),
    )


def case_with_errors(seed: int, length_mm: float) -> Case:
    """A case whose truth is one sample under noise of this correlation length."""
    case = miscalibrated_case(seed, 1.0, 0.0)
    soft = case.probabilities**0.25
    case = replace(case, probabilities=soft / soft.sum(axis=0))
    settings = BARE.changed(noise_length=length_mm, samples=1, seed=100 + seed, iterations=0)
    drawn = build_sampler(build_crf(case, settings), settings).draw()
    return replace(case, truth=drawn.counts.argmax(axis=0).astype(np.uint8))


@pytest.mark.parametrize("true_mm", [2.0, 10.0])
def test_the_length_that_made_the_errors_is_preferred(true_mm: float) -> None:
    cases = {f"p{i}": case_with_errors(i, true_mm) for i in range(20)}
    study = prepare_study(cases, BARE, folds=5, samples=32, progress=Silent())
    table = study.draw_volumes([BARE] * 20, [2.0, 10.0, 40.0], 32)
    assert Correlate(table).fit(range(20)) == true_mm


def test_few_cases_are_believed_half_way() -> None:
    table = volume_table([0.1 + place for place in range(len(LENGTHS))], 5)
    assert Correlate(table).fit(range(5)) == LENGTHS[0]
    assert CorrelateHalfway(table, LENGTHS).fit(range(5)) == LENGTHS[2]  # the assumed one is 1.0
    rising = volume_table([1.0 - 0.1 * place for place in range(len(LENGTHS))], 5)
    assert CorrelateHalfway(rising, LENGTHS).fit(range(5)) == LENGTHS[5]


def test_a_fold_has_no_part_in_the_length_of_its_cases() -> None:
    table = volume_table([0.5] * 6 + [0.4], 4)
    odd = {"ball": VolumePrediction(1.0, 2.0, 1.5, -9.0)}
    table = replace(table, predictions={**table.predictions, 0.25: dict(table.predictions[0.25])})
    table.predictions[0.25][0] = odd  # type: ignore[index]
    chosen = Folds.deal(4, 4).cross_fit(Correlate(table).fit)
    assert chosen.without[0] == 2.0
    assert chosen.overall == chosen.without[1] == 0.25


@pytest.mark.parametrize("steeper", [0.4, 3.0], ids=["too short is worse", "too long is worse"])
@pytest.mark.parametrize("best", range(len(LENGTHS)))
def test_the_search_for_a_length_finds_the_valley(best: int, steeper: float) -> None:
    tried: set[float] = set()

    def loss(length: float) -> float:
        beyond = LENGTHS.index(length) - best
        return max(steeper * beyond, -beyond)

    def best_length(lengths: Sequence[float]) -> float:
        tried.update(lengths)
        return min(lengths, key=loss)

    assert search_valley(LENGTHS, best_length) == best
    assert len(tried) <= 5


def test_lengths_are_tried_on_both_sides_of_the_best() -> None:
    assert lengths_near([1.0, 4.0, 9.0, 16.0], 1, with_ends=False) == [2.0, 4.0, 6.0]
    assert lengths_near([1.0, 4.0, 9.0, 16.0], 1, with_ends=True) == [1.0, 2.0, 4.0, 6.0, 9.0]
    assert lengths_near([1.0, 4.0, 9.0], 2, with_ends=False) == [6.0, 9.0]
