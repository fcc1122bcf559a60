"""Couple: kernels are taken where they beat no kernels on cases left out."""

from __future__ import annotations

from functools import partial

from perturb_mpm.run import RunSettings
from perturb_mpm.tune.coupling import Candidate, choose_candidate
from perturb_mpm.tune.problem import MapScore, VolumePrediction
from perturb_mpm.tune.study import CrossFit, Folds, VolumeTable

START = RunSettings()


def candidate(
    name: str, strength: float, scores: list[tuple[float, float]], crps: float = 0.1
) -> Candidate:
    """A candidate with a log score and a Dice of each case."""
    settings = START.changed(strength=strength)
    maps = {i: MapScore({"ball": dice}, 0.0, loss, 0.5) for i, (loss, dice) in enumerate(scores)}
    volume = {"ball": VolumePrediction(1.0, 2.0, 1.5, crps)}
    table = VolumeTable({5.0: dict.fromkeys(maps, volume)}, ("ball",))
    return Candidate(name, CrossFit(settings, (settings,) * len(scores)), maps, table)


def test_the_choice_beats_the_others_on_cases_left_out() -> None:
    alone = candidate("alone", 0.0, [(0.5, 0.8)] * 4)
    tempered = candidate("T", 0.0, [(0.4, 0.8)] * 4)
    better = candidate("K", 0.35, [(0.30, 0.8), (0.31, 0.8), (0.29, 0.8), (0.30, 0.8)])
    costly = candidate("K", 0.35, [(0.30, 0.79)] * 4)
    cases = range(4)
    assert choose_candidate([alone, tempered, better], cases) is better
    assert choose_candidate([alone, tempered, costly], cases) is tempered  # labels would be worse
    hardly = candidate("K", 0.35, [(0.395, 0.8)] * 4)
    assert (
        choose_candidate([alone, tempered, hardly], cases) is tempered
    )  # a hundredth is too little
    assert choose_candidate([alone, candidate("T", 0.0, [(0.6, 0.8)] * 4)], cases) is alone
    # Maps gain a fifth, volumes lose as much again as they had.
    wrong_volumes = candidate("T", 0.0, [(0.4, 0.8)] * 4, crps=0.2)
    assert choose_candidate([alone, wrong_volumes], cases) is alone


def test_a_fold_has_no_part_in_the_choice_for_its_cases() -> None:
    alone = candidate("alone", 0.0, [(0.5, 0.8)] * 4)
    good_for_one = candidate("K", 0.35, [(0.01, 0.8), *[(0.55, 0.8)] * 3])
    chosen = Folds.deal(4, 4).cross_fit(partial(choose_candidate, [alone, good_for_one]))
    assert chosen.without[0] is alone
    assert chosen.overall is good_for_one
    assert chosen.without[1] is good_for_one


def test_candidates_are_compared_on_the_cases_that_all_have_scores_of() -> None:
    alone = candidate("a", 0.0, [(1.0, 0.5)] * 4)
    few = candidate("k", 1.0, [(0.5, 0.5)])
    assert choose_candidate([alone, few], [0, 1, 2, 3]) is few
