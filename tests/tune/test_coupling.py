"""Couple: kernels are taken where they beat no kernels on cases left out."""

from __future__ import annotations

from perturb_mpm.run import RunSettings
from perturb_mpm.tune.coupling import Candidate, Couple
from perturb_mpm.tune.folds import CrossFit, Folds
from perturb_mpm.tune.scores import MapScore, VolumePrediction
from perturb_mpm.tune.study import VolumeTable

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
    assert Couple([alone, tempered, better]).fit(cases) is better
    assert Couple([alone, tempered, costly]).fit(cases) is tempered  # labels would be worse
    hardly = candidate("K", 0.35, [(0.395, 0.8)] * 4)
    assert Couple([alone, tempered, hardly]).fit(cases) is tempered  # a hundredth is too little
    assert Couple([alone, candidate("T", 0.0, [(0.6, 0.8)] * 4)]).fit(cases) is alone
    # Maps gain a fifth, volumes lose as much again as they had.
    wrong_volumes = candidate("T", 0.0, [(0.4, 0.8)] * 4, crps=0.2)
    assert Couple([alone, wrong_volumes]).fit(cases) is alone


def test_a_fold_has_no_part_in_the_choice_for_its_cases() -> None:
    alone = candidate("alone", 0.0, [(0.5, 0.8)] * 4)
    good_for_one = candidate("K", 0.35, [(0.01, 0.8), *[(0.55, 0.8)] * 3])
    chosen = Folds.deal(4, 4).cross_fit(Couple([alone, good_for_one]).fit)
    assert chosen.without[0] is alone
    assert chosen.overall is good_for_one
    assert chosen.without[1] is good_for_one


def test_candidates_are_compared_on_the_cases_that_all_have_scores_of() -> None:
    alone = candidate("a", 0.0, [(1.0, 0.5)] * 4)
    few = candidate("k", 1.0, [(0.5, 0.5)])
    assert Couple([alone, few]).fit([0, 1, 2, 3]) is few
