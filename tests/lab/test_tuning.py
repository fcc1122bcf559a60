"""What tune is worth, on made-up patients: five cases, ranks, and a page without holes."""

from __future__ import annotations

import numpy as np
import pytest

from helpers.labelled_cases import miscalibrated_case
from lab.tuning import rank_dice, score_few
from lab.tuning.tuning_page import count_inside, findings, page
from perturb_mpm.progress import Silent
from perturb_mpm.run import RunSettings
from perturb_mpm.tune import (
    LEARNED,
    Candidate,
    Study,
    TuningOptions,
    find_candidates,
    learn_settings,
    prepare_study,
)

START = RunSettings(kernels=())


@pytest.fixture(scope="module")
def sampled() -> tuple[Study, list[Candidate]]:
    cases = {f"p{i}": miscalibrated_case(i, 1.5, 0.0) for i in range(6)}
    study = prepare_study(cases, START, TuningOptions(folds=3, samples=8), Silent())
    return study, find_candidates(study, START)


def test_a_few_cases_are_scored_on_all_others(sampled: tuple[Study, list[Candidate]]) -> None:
    study, candidates = sampled
    found = score_few(study, candidates, few=4, draws=3)
    assert [each.draw for each in found] == [0, 1, 2]
    for each in found:
        assert each.volumes["ball"][0] in (0.0, 0.5, 1.0)  # two cases are left
        assert each.fixed_width["ball"][1] > 0
    assert score_few(study, candidates, few=4, draws=1) == found[:1]


def test_confidence_is_ranked_against_the_true_dice(
    sampled: tuple[Study, list[Candidate]],
) -> None:
    study, candidates = sampled
    ranks = rank_dice(study, candidates[0])
    assert len(ranks) == 3
    assert all(-1 <= each.rank_correlation <= 1 for each in ranks)
    risks = [1 - each.true_dice["ball"] for each in candidates[0].samples]
    assert all(min(risks) <= each.aurc <= max(risks) for each in ranks)


def test_the_page_has_no_holes(sampled: tuple[Study, list[Candidate]]) -> None:
    study, candidates = sampled
    tuned = learn_settings(study, candidates)
    few, ranks = score_few(study, candidates, draws=2), rank_dice(study, candidates[0])
    text = page("Title", "python -m lab tuning", 8, tuned, few, ranks)
    assert text.startswith("# Title\n")
    assert "nan" not in text
    inside, cases = count_inside(tuned, LEARNED, of_dice=False)["ball"]
    assert cases == 6
    assert f"| volume | learned | {inside}/6 |" in text
    assert "ball" in findings(tuned)
    assert np.all([len(line) <= 2000 for line in text.splitlines()])
