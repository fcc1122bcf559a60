"""Kernels that move volumes far from what the probabilities say are found without any truth."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from helpers import small_case
from perturb_mpm.files import Case
from perturb_mpm.run import OutputError, Run, RunSettings, build_crf, load_run, run_case
from perturb_mpm.run.coupling import LARGEST_SHIFT, PILOT_SAMPLES, CouplingCheck, VolumeShift
from perturb_mpm.sampling import Sampler

GENTLE = RunSettings().changed(
    samples=12, seed=3, noise_length=0.0, temperature=1.0, strength=0.35, centring=1.0
)
STRONG = GENTLE.changed(strength=6.0, centring=0.0)


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """A patient whose probabilities are soft and say little of label 2."""
    folder = tmp_path_factory.mktemp("patient")
    small_case.write_files(folder)
    case = small_case.read(folder)
    soft = case.probabilities**0.5
    return replace(case, probabilities=(soft / soft.sum(axis=0)).astype(np.float32))


@pytest.fixture(scope="module")
def weakened(case: Case, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_case(case, STRONG, tmp_path_factory.mktemp("strong") / "out", title="strong")


def test_kernels_that_do_no_harm_stay_as_they_are(case: Case, tmp_path: Path) -> None:
    run = run_case(case, GENTLE, tmp_path / "o", title="gentle")
    check = run.coupling
    assert check is not None
    assert check.is_harmless
    assert check.asked_strength == check.used_strength == run.settings.coupling.strength == 0.35
    assert run.summary["warnings"] == []
    assert run.summary["coupling"]["moved"]["mean_field_frac"] == pytest.approx(0, abs=1e-3)


def test_kernels_that_eat_a_structure_are_weakened(weakened: Run, case: Case) -> None:
    check = weakened.coupling
    assert check is not None
    assert check.moved is not None
    # The move by hand, at the strength that was asked for.
    crf = build_crf(case, STRONG)
    field = Sampler(crf, STRONG.sampling, STRONG.compute).mean_field().sum(axis=1)
    given = np.exp(-crf.prior)
    expected = (given / given.sum(axis=0)).sum(axis=1)
    assert abs(check.moved.mean_field_frac) > LARGEST_SHIFT
    by_hand = dict(zip(case.labels.names, field / expected - 1, strict=True))
    assert check.moved.mean_field_frac == pytest.approx(by_hand[check.moved.name], rel=1e-3)
    assert weakened.settings.coupling.strength == check.used_strength < check.asked_strength == 6.0
    (warning,) = weakened.summary["warnings"]
    assert "their strength was lowered from 6 to" in warning
    assert warning[1:] in weakened.files["report"].read_text()  # there it begins a sentence
    assert weakened.summary["coupling"]["used_strength"] == check.used_strength
    assert weakened.summary["parameters"]["strength"] == check.used_strength


def test_the_samples_are_those_of_the_strength_that_is_used(
    weakened: Run, case: Case, tmp_path: Path
) -> None:
    plain = weakened.settings.changed(keep_strength=True)
    again = run_case(case, plain, tmp_path / "o", title="plain")
    assert small_case.content(again.folder) == small_case.content(weakened.folder)


@pytest.mark.parametrize("changed", [{"keep_strength": True}, {"learned_cases": 5}])
def test_what_was_asked_for_on_purpose_is_only_warned_of(
    case: Case, changed: dict[str, object], tmp_path: Path
) -> None:
    run = run_case(case, STRONG.changed(**changed), tmp_path / "o", title="kept")
    assert run.settings.coupling.strength == 6.0
    (warning,) = run.summary["warnings"]
    assert "labelled cases tell whether that is right" in warning
    assert RunSettings.of_paper().coupling.keep_strength


def test_a_resumed_run_keeps_its_decision(weakened: Run, case: Case) -> None:
    before = small_case.content(weakened.folder)
    page = weakened.files["report"].read_bytes()
    for name in ("summary", "report"):
        weakened.files[name].unlink()
    (weakened.state / "posterior.npz").unlink()
    again = run_case(case, STRONG, weakened.folder, title="strong", resume=True)
    assert again.coupling == weakened.coupling
    assert small_case.content(again.folder) == before
    assert again.files["report"].read_bytes() == page
    assert load_run(again.folder).coupling == weakened.coupling
    with pytest.raises(OutputError, match=r"parameters\.strength was .*, is 5"):
        run_case(case, STRONG.changed(strength=5.0), again.folder, title="t", resume=True)


def test_a_damaged_decision_is_refused(case: Case, tmp_path: Path) -> None:
    run = run_case(case, GENTLE, tmp_path / "o", title="t")
    state = json.loads((run.state / "run.json").read_text())
    state["coupling"] = {"asked_strength": "much"}
    (run.state / "run.json").write_text(json.dumps(state))
    with pytest.raises(OutputError, match="damaged state"):
        run_case(case, GENTLE, run.folder, title="t", resume=True)


def test_without_kernels_there_is_nothing_to_check(case: Case, tmp_path: Path) -> None:
    run = run_case(case, GENTLE.changed(kernels=()), tmp_path / "o", title="none")
    assert run.coupling is None
    assert run.summary["coupling"] is None


def test_a_pilot_counts_as_far_as_it_is_sure() -> None:
    assert VolumeShift("a", 0.0, 0.5, 0.2).surely_frac == pytest.approx(0.02)
    assert VolumeShift("a", -0.3, 0.0, 0.0).surely_frac == 0.3
    assert CouplingCheck(1.0, 1.0, VolumeShift("a", 0.0, 0.5, 0.2)).is_harmless
    assert not CouplingCheck(1.0, 0.5, VolumeShift("a", 0.0, 0.5, 0.1)).is_harmless
    assert PILOT_SAMPLES < 10  # the first map that a run keeps
