"""Intervals of volumes: moved by what was learned, and never without the volume printed beside."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from helpers import small_case
from perturb_mpm.biomarkers import LearnedLaw
from perturb_mpm.files import Case
from perturb_mpm.run import RunSettings, read_settings, run_case, volume_rows, write_settings

SETTINGS = RunSettings().changed(samples=40, seed=5, noise_length=2.0, strength=0.0)


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder = tmp_path_factory.mktemp("patient")
    small_case.write_files(folder)
    return small_case.read(folder, labels=(0, 1, 400))


def test_a_learned_law_moves_and_widens(case: Case, tmp_path: Path) -> None:
    plain = run_case(case, SETTINGS, tmp_path / "plain", title="plain")
    name = case.labels.names[1]
    law = LearnedLaw("volume", shift=0.1, floor=0.3, trust=1.0, cases=30, reach=2.0)
    learned = SETTINGS.changed(learned_cases=30, volume_laws={name: law})
    moved = run_case(case, learned, tmp_path / "learned", title="learned")
    for before, after in zip(volume_rows(plain), volume_rows(moved), strict=True):
        if before.name != name:
            assert after.interval_ml == before.interval_ml
            continue
        low, high = law.widen(before.samples_ml)
        volume = before.volume_ml  # what is printed lies inside
        assert after.interval_ml == pytest.approx((min(low, volume), max(high, volume)))
        assert after.interval_ml[1] > before.interval_ml[1]


def test_an_interval_holds_the_volume_that_is_printed(case: Case, tmp_path: Path) -> None:
    unlikely = np.zeros_like(case.probabilities)
    unlikely[0], unlikely[1], unlikely[2] = 0.6, 0.4, 0.0  # the label map leaves label 1 out
    odd = replace(case, probabilities=unlikely)
    run = run_case(odd, SETTINGS, tmp_path / "odd", title="odd")
    row = next(each for each in volume_rows(run) if each.name == case.labels.names[1])
    assert row.volume_ml == 0
    assert row.samples_ml.min() > 0
    assert row.interval_ml[0] == 0


def test_white_noise_gives_no_intervals(case: Case, tmp_path: Path) -> None:
    settings = RunSettings.of_paper().changed(samples=8)
    white = run_case(case, settings, tmp_path / "white", title="white")
    assert all(math.isnan(end) for row in volume_rows(white) for end in row.interval_ml)
    rows = white.summary["labels"]
    assert {row[f"interval_{end}_ml"] for row in rows for end in ("lower", "upper")} == {None}
    page = white.files["report"].read_text()
    assert "There are no intervals" in page
    for words in ("95 % of samples", "95 % between", 'class="interval"', "Bracket", "nan"):
        assert words not in page.partition("<body")[2].partition('id="volumes"')[2][:20_000]
    assert len(white.files["volumes"].read_text().splitlines()) == 1 + 8 * 3


def test_laws_ranges_and_note_survive_the_file(tmp_path: Path) -> None:
    law = LearnedLaw("volume", -0.01, 0.2, 1.5, 30, 2.1)
    few = LearnedLaw("share", 0.3, 0.2, 1.0, 5)
    learned = SETTINGS.changed(
        learned_cases=30,
        note="Learned.",
        volume_laws={"a b": law},
        dice_laws={"a b": few, "c": few},
        tuning_ranges={"contrast of t1, sd": (-0.5, 1.5)},
    )
    write_settings(tmp_path / "s.toml", learned)
    assert read_settings(tmp_path / "s.toml") == learned
    with pytest.raises(ValueError, match="volume_laws of c: floor must be at least 0"):
        SETTINGS.changed(volume_laws={"c": {"shift": 0, "floor": -1, "trust": 1, "cases": 3}})
    with pytest.raises(TypeError, match="volume_laws of c"):
        SETTINGS.changed(volume_laws={"c": {"widening": 0.1}})
    with pytest.raises(TypeError, match="dice_laws must be a table"):
        SETTINGS.changed(dice_laws=[1.0])
    with pytest.raises(TypeError, match="tuning_ranges of x must be two numbers"):
        SETTINGS.changed(tuning_ranges={"x": 1.0})
