"""The Dice that the truth would give: what a run says, by its samples and by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from perturb_mpm.biomarkers import LearnedLaw
from perturb_mpm.evaluation import dice
from perturb_mpm.files import Case
from perturb_mpm.run import RunSettings, build_crf, build_sampler, run_case
from perturb_mpm.run.volumes import measure_agreement

FEW = RunSettings().changed(samples=12, seed=2)


def dice_by_hand(case: Case, settings: RunSettings, labels: np.ndarray, label: int) -> np.ndarray:
    """The Dice of a label of the label map with that of each sample drawn with these settings."""
    parts: list[np.ndarray] = []
    sampler = build_sampler(build_crf(case, settings), settings)
    sampler.draw(settings.sampling.samples, keep=lambda _, drawn: parts.append(drawn.copy()))
    inside = labels[case.mask] == label
    return np.array([dice(inside, drawn == label) for drawn in np.concatenate(parts)])


def test_where_kernels_act_it_is_that_of_the_runs_own_samples(
    speaking: Case, tmp_path: Path
) -> None:
    run = run_case(speaking, FEW, tmp_path / "out", title="x")
    assert run.settings.has_kernels
    sampled = dice_by_hand(speaking, run.settings, run.labels, 1)
    found = run.agreement[speaking.labels.names[1]]
    expected = [np.median(sampled), *np.quantile(sampled, [0.025, 0.975])]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    row = run.summary["labels"][1]
    assert [row["dice_median"], row["dice_lower"], row["dice_upper"]] == pytest.approx(expected)
    assert f"({found.lower:.2f}–{found.upper:.2f})" in run.summary["answer"]


def test_without_kernels_samples_are_drawn_at_the_temperature_of_the_maps(
    silent: Case, tmp_path: Path
) -> None:
    run = run_case(silent, FEW, tmp_path / "out", title="x")
    assert run.settings.unary.sampling_temperature == 1
    tempered = run.settings.changed(sampling_temperature=None)
    sampled = dice_by_hand(silent, tempered, run.labels, 1)
    found = run.agreement[silent.labels.names[1]]
    assert found.median == pytest.approx(np.median(sampled), abs=0.01)
    surer = dice_by_hand(silent, run.settings, run.labels, 1)
    assert np.median(surer) > found.median + 0.02  # at temperature 1 samples agree more


def test_what_was_learned_of_the_dice_is_applied_to_the_runs_samples(
    silent: Case, tmp_path: Path
) -> None:
    name = silent.labels.names[1]
    law = LearnedLaw("share", shift=-0.5, floor=0.3, trust=1.0, cases=20)
    learned = FEW.changed(learned_cases=20, dice_laws={name: law})
    run = run_case(silent, learned, tmp_path / "out", title="x")
    sampled = dice_by_hand(silent, run.settings, run.labels, 1)
    assert run.agreement[name][1:] == pytest.approx(law.widen(sampled), rel=1e-6)


def test_white_noise_says_nothing_of_the_dice(speaking: Case, tmp_path: Path) -> None:
    run = run_case(speaking, FEW.changed(noise_length=0.0), tmp_path / "out", title="x")
    assert run.agreement == {}
    assert run.summary["labels"][1]["dice_median"] is None
    assert "Expected Dice if the probabilities are right" in run.summary["answer"]


def test_the_runs_own_samples_are_not_drawn_again_unless_they_are_lost(
    speaking: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_case(speaking, FEW, tmp_path / "out", title="x")
    drawn: list[range] = []
    sampler = build_sampler(build_crf(speaking, run.settings), run.settings)
    draw = sampler.draw
    monkeypatch.setattr(
        sampler, "draw", lambda part, **rest: (drawn.append(part), draw(part, **rest))
    )
    assert measure_agreement(run, sampler) == run.agreement
    assert drawn == []
    assert run.first_samples is not None
    lost = replace(run, first_samples=run.first_samples[:5])
    assert measure_agreement(lost, sampler) == run.agreement
    assert drawn == [range(5, 12)]
