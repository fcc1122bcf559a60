"""Couple: kernels are taken where they beat no kernels on cases left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from helpers.labelled_cases import layered_case
from perturb_mpm.learning import ImageEvidence
from perturb_mpm.progress import Silent
from perturb_mpm.run import DEFAULT_BILATERAL, RunSettings
from perturb_mpm.tune.calibration import TEMPERATURES, TemperatureTable
from perturb_mpm.tune.coupling import (
    Candidate,
    choose_candidate,
    find_candidates,
    kernels_of_best_skill,
    median_evidence,
)
from perturb_mpm.tune.intervals import SampledMeasure
from perturb_mpm.tune.study import Folds, Study, TuningOptions, prepare_study

START = RunSettings()
STUDY = Study([], Folds.deal(4, 4), {"ball": (1,)}, {}, {"ball": (1,)}, TuningOptions(), Silent())


def candidate(
    name: str, strength: float, losses: Sequence[float], overlap: float = 0.8, off: float = 0.1
) -> Candidate:
    """A log score of each case at any temperature, a Dice, and how far volumes are off."""
    n = len(losses)
    tables = np.repeat(np.array(losses)[:, np.newaxis], len(TEMPERATURES), axis=1)
    rng = np.random.default_rng(0)
    truth = [{"ball": 10 * float(np.exp(off * rng.normal()))} for _ in range(n)]
    samples = [{"ball": np.linspace(9.9, 10.1, 9)} for _ in range(n)]
    volumes = SampledMeasure("volume", samples, truth)
    dice = SampledMeasure("share", [{"ball": np.full(9, 0.9)}] * n, [{"ball": 0.9}] * n)
    maps = TemperatureTable(tables, np.ones(n))
    settings = START.changed(strength=strength, temperature=1.0)
    return Candidate(name, settings, [], maps, volumes, dice, {}, [overlap] * n)


def test_the_choice_beats_the_others_on_cases_left_out() -> None:
    choose = partial(choose_candidate, STUDY, cases=range(4))
    alone = candidate("alone", 0.0, [0.5] * 4)
    better = candidate("K", 0.35, [0.40, 0.41, 0.39, 0.40])
    assert choose([alone, better]) is better
    assert choose([alone, candidate("K", 0.35, [0.4] * 4, overlap=0.79)]) is alone
    assert choose([alone, candidate("K", 0.35, [0.4] * 4, off=0.5)]) is alone  # wrong volumes
    # What run does by itself stays unless another is clearly better: a hundredth is too little.
    hardly = candidate("K", 0.35, [0.495] * 4)
    assert choose([alone, hardly]) is alone
    assert choose([hardly, alone]) is hardly
    costly = candidate("K", 0.35, [0.4] * 4, overlap=0.79)
    assert choose([costly, alone]) is alone


def test_a_fold_has_no_part_in_the_choice_for_its_cases() -> None:
    alone = candidate("alone", 0.0, [0.5] * 4)
    good_for_one = candidate("K", 0.35, [0.01, 0.55, 0.55, 0.55])
    choose = partial(choose_candidate, STUDY, [alone, good_for_one])
    chosen = STUDY.folds.cross_fit(choose)
    assert chosen.without[0] is alone
    assert chosen.overall is good_for_one
    assert chosen.without[1] is good_for_one


def evidence(skill: float, width: float) -> ImageEvidence:
    return ImageEvidence(skill, 20.0, width, (skill,))


def test_the_bandwidth_and_the_skill_are_those_of_most_cases() -> None:
    found = [evidence(0.7, 0.3), evidence(0.1, 0.3), evidence(0.8, 0.5)]
    kernels = kernels_of_best_skill(found, START)
    assert [each.sigma_intensity_sd for each in kernels] == [None, 0.3]
    own = START.changed(kernels=(DEFAULT_BILATERAL.__class__("spatial", sigma_space=9.0),))
    assert kernels_of_best_skill(found, own) == own.kernels
    middle = median_evidence(found)
    assert middle is not None
    assert middle.skill == 0.7
    assert median_evidence([]) is None


def test_candidates_are_sampled_without_the_truth() -> None:
    cases = {f"p{i}": layered_case(i) for i in range(3)}
    study = prepare_study(cases, START, TuningOptions(folds=3, samples=8), Silent())
    found = find_candidates(study, RunSettings(kernels=()))
    assert [each.settings.unary.sampling_temperature == 1 for each in found[:2]] == [True, False]
    assert not any(each.has_kernels for each in found)
    other = {name: layered_case(9 + i) for i, name in enumerate(cases)}
    mixed = {name: replace(case, truth=other[name].truth) for name, case in cases.items()}
    again = find_candidates(
        prepare_study(mixed, START, TuningOptions(folds=3, samples=8), Silent()),
        RunSettings(kernels=()),
    )
    for ours, theirs in zip(found, again, strict=True):
        assert ours.settings == theirs.settings
        for one, two in zip(ours.samples, theirs.samples, strict=True):
            np.testing.assert_array_equal(one.volumes_ml, two.volumes_ml)
