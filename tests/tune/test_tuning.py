"""``perturb-mpm tune``: labelled cases in, settings and what they are worth out."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from helpers.labelled_cases import layered_arrays, miscalibrated_case, write_cases
from perturb_mpm.cli import main
from perturb_mpm.engines.cpu import store
from perturb_mpm.run import RunSettings, read_settings
from perturb_mpm.tune import (
    METHODS,
    CaseScores,
    MapScore,
    Tuned,
    TuningOptions,
    maps_table,
    means,
    tune,
)

START = RunSettings()


def test_what_was_wrong_is_learned_and_what_was_right_is_left_alone() -> None:
    wrong = {f"p{i}": miscalibrated_case(i, 2.0, 0.0) for i in range(5)}
    found = tune(wrong, START, TuningOptions(folds=5, samples=8))
    assert found.settings.unary.temperature == pytest.approx(2, rel=0.1)  # they all agree
    assert found.settings.basis.learned_cases == 5
    assert found.settings.volume_laws["ball"].cases == 5
    assert found.settings.volume_laws["ball"].reach is None  # too few for a promise of 95 %
    assert set(found.settings.dice_laws) == {"ball"}
    assert "grid temperature" in found.settings.tuning_ranges
    assert any("that of the labels" in each for each in found.reasons)
    rows = means(found.scores, found.regions)
    assert rows["learned"]["log_score_nats"] < rows["probabilities alone"]["log_score_nats"]
    right = {f"p{i}": miscalibrated_case(10 + i, 1.0, 0.0) for i in range(5)}
    kept = tune(right, START, TuningOptions(folds=5, samples=8))
    assert kept.settings.unary.temperature == pytest.approx(1.0, abs=0.1)
    again = tune(right, START, TuningOptions(folds=5, samples=8))
    assert again.settings == kept.settings


@pytest.mark.parametrize(("seed", "temperature"), [(0, 1.0), (20, 1.3), (40, 3.0)])
def test_no_simpler_row_is_ahead_of_what_is_written(seed: int, temperature: float) -> None:
    cases = {f"p{i}": miscalibrated_case(seed + i, temperature, 0.0) for i in range(4)}
    cases["odd"] = miscalibrated_case(seed + 9, 4.0, 0.0)
    found = tune(cases, RunSettings(kernels=()), TuningOptions(folds=5, samples=8))
    rows = means(found.scores, found.regions)
    for simpler in ("probabilities alone", "grid temperature", "with temperature"):
        assert rows["learned"]["log_score_nats"] <= rows[simpler]["log_score_nats"]


def test_the_truth_of_a_case_has_no_part_in_the_settings_of_its_fold() -> None:
    start = RunSettings(kernels=())
    cases = {f"p{i}": miscalibrated_case(i, 1.5, 0.0) for i in range(4)}
    odd = miscalibrated_case(0, 3.0, 0.0)
    options = TuningOptions(folds=4, samples=8)
    usual, changed = (
        tune(each, start, options)
        for each in (cases, cases | {"p0": replace(cases["p0"], truth=odd.truth)})
    )
    assert changed.without["p0"] == usual.without["p0"]  # to the last digit
    assert changed.without["p1"] != usual.without["p1"]
    assert changed.settings != usual.settings


def call(arguments: list[str]) -> object:
    with pytest.raises(SystemExit) as ending:
        main(arguments)
    return ending.value.code


def arguments(folder: Path, table: Path, *more: str) -> list[str]:
    return [
        *("tune", "--data", str(table), "--layout", "table"),
        *("--labels", "0:background", "1:rim", "2:core"),
        *("--probabilities", str(folder / "probabilities"), "--output", str(folder / "out")),
        *more,
    ]


def test_the_command_tunes_and_writes_what_run_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = write_cases(tmp_path, 3)
    options = ["--folds", "3", "--samples", "8", "--region", "all=1,2", "core=2"]
    assert call(arguments(tmp_path, table, *options, "--json", "--quiet")) == 0
    found = json.loads(capsys.readouterr().out)
    assert sorted(name for fold in found["folds"] for name in fold) == ["p0", "p1", "p2"]
    assert found["regions"] == ["all", "core"]
    assert set(found["methods"]) == {
        *("probabilities alone", "grid temperature", "with temperature", "learned"),
        *("samples alone", "fixed width", "residuals"),
    }
    settings = read_settings(tmp_path / "out" / "settings.toml")
    assert settings.basis.learned_cases == 3
    assert settings.basis.note == found["verdict"]
    assert dict(settings.regions) == {"all": (1, 2), "core": (2,)}
    assert set(settings.volume_laws) == {"all", "core", "rim"}
    assert settings.sampling.noise_length is None  # the radius of each case
    with (tmp_path / "out" / "scores.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 3 * 7 * 2  # cases, methods, regions


def test_any_measure_is_moved_and_widened_as_volumes_are(tmp_path: Path) -> None:
    table = write_cases(tmp_path, 4)
    options = ["--folds", "4", "--samples", "8", "--region", "core=2", "--quiet"]
    command = arguments(tmp_path, table, *options, "--measure", "diameter", "mean:t1")
    assert call(command) == 0
    settings = read_settings(tmp_path / "out" / "settings.toml")
    keys = {"core.diameter", "rim.diameter", "core.mean:t1", "rim.mean:t1"}
    assert keys <= set(settings.measure_laws)
    law = settings.measure_laws["core.diameter"]
    assert (law.scale, law.cases) == ("size", 4)
    with (tmp_path / "out" / "scores.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["region"] == "core.diameter"]
    assert {row["method"] for row in rows} == {"learned", "samples alone"}
    # The truth is measured as a sample is: by hand for the first case.
    core = layered_arrays(0)[2] == 2
    corners = 2.0 * np.argwhere(core)
    longest = max(math.dist(a, b) for a in corners for b in corners)
    assert float(rows[0]["measure_true"]) == pytest.approx(longest, rel=1e-4)
    widths = {
        row["method"]: float(row["measure_upper"]) - float(row["measure_lower"])
        for row in rows
        if row["case"] == "p0"
    }
    assert widths["learned"] != pytest.approx(widths["samples alone"], rel=0.01)
    inside = {
        row["case"]: float(row["measure_lower"]) <= float(row["measure_true"])
        and float(row["measure_true"]) <= float(row["measure_upper"])
        for row in rows
        if row["method"] == "learned"
    }
    assert inside == dict.fromkeys(("p0", "p1", "p2", "p3"), True)  # on cases left out


@pytest.mark.parametrize(
    ("word", "message"),
    [("volume", "is learned by itself"), ("girth", "--measure must be one of")],
)
def test_measures_that_cannot_be_learned_are_refused(
    word: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = write_cases(tmp_path, 3)
    options = ["--folds", "3", "--samples", "8", "--quiet", "--measure", word]
    assert call(arguments(tmp_path, table, *options)) == 2
    assert message in capsys.readouterr().err


def test_kernels_are_kept_while_it_works_and_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = write_cases(tmp_path, 3)
    out = tmp_path / "out"
    (out / ".kernels-old").mkdir(parents=True)  # of a command that was killed
    written: list[Path] = []
    monkeypatch.setattr(store, "WORTH_KEEPING", 10**9)
    command = arguments(tmp_path, table, "--folds", "3", "--samples", "8", "--quiet")
    assert call(command) == 0
    without = {path.name: path.read_bytes() for path in out.iterdir()}
    assert set(without) == {"scores.csv", "settings.toml"}
    write = store.write_arrays

    def noted(path: Path, arrays: Mapping[str, NDArray[Any]], **options: Any) -> None:
        write(path, arrays, **options)
        written.append(path)

    monkeypatch.setattr(store, "WORTH_KEEPING", 0)
    monkeypatch.setattr(store, "write_arrays", noted)
    assert call(command) == 0
    assert {path.name: path.read_bytes() for path in out.iterdir()} == without
    assert {path.parent.parent for path in written} == {out}
    mine = tmp_path / "mine.toml"
    mine.write_text(f"[compute]\nkernel_cache = {json.dumps(str(tmp_path / 'kept'))}\n")
    count = len(written)
    assert call([*command, "--settings", str(mine)]) == 0
    assert set(written[count:]) == set((tmp_path / "kept").iterdir())
    kept = read_settings(out / "settings.toml").compute.kernel_cache
    assert kept == str(tmp_path / "kept")


def test_a_heading_says_how_many_cases_have_the_region() -> None:
    scores = [
        CaseScores(case, method, MapScore({"all": 0.8, "core": core}, 0.1, 0.2, 0.9), None)
        for case, core in (("a", 0.5), ("b", math.nan))
        for method in METHODS
    ]
    header, rows = maps_table(Tuned(START, tuple(scores), ("all", "core"), ()))
    assert header[1:3] == ["Dice all", "Dice core, 1 of 2 cases"]
    assert rows[0][1:3] == ["0.8000", "0.5000"]


def test_the_table_shows_all_methods(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    table = write_cases(tmp_path, 3)
    assert call(arguments(tmp_path, table, "--folds", "3", "--samples", "8")) == 0
    shown = capsys.readouterr()
    for words in ("probabilities alone", "learned", "residuals", "Learned from 3 labelled cases"):
        assert words in shown.out
    assert "reading the cases: 3 of 3" in shown.err
    assert "sampling: no kernels" in shown.err
    assert "Temperature of the maps: labels prefer" in shown.out


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--folds", "4"], "--folds must be at most the number of cases, 3, got 4"),
        (["--folds", "1"], "--folds must be at least 2, got 1"),
        (["--samples", "1"], "--samples must be at least 8, got 1"),
        (["--threads", "0"], "--threads must be at least 1, got 0"),
        (["--region", "core=7"], "--region must be label values out of 0, 1, 2, got 7 for core"),
        (["--model", "m.npz"], "either --probabilities or --model"),
        (["--settings", "nothing.toml"], "--settings nothing.toml cannot be read"),
    ],
)
def test_bad_options_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], words: str
) -> None:
    table = write_cases(tmp_path, 3)
    folds = [] if "--folds" in more else ["--folds", "3"]
    assert call(arguments(tmp_path, table, *folds, *more)) == 2
    assert words in capsys.readouterr().err


def test_two_cases_are_too_few(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = write_cases(tmp_path, 2)
    assert call(arguments(tmp_path, table, "--folds", "2")) == 2
    assert "--data must have at least 3 cases, got 2" in capsys.readouterr().err


def test_a_missing_file_of_probabilities_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = write_cases(tmp_path, 2)
    (tmp_path / "probabilities" / "p1.nii.gz").unlink()
    assert call(arguments(tmp_path, table, "--folds", "2")) == 2
    assert "--probabilities must hold p1.npz or p1.nii.gz" in capsys.readouterr().err


def test_threads_of_the_machine_are_no_part_of_what_is_learned(tmp_path: Path) -> None:
    (tmp_path / "start.toml").write_text("[sampling]\niterations = 2\n[compute]\nthreads = 2\n")
    table = write_cases(tmp_path, 3)
    options = ["--settings", str(tmp_path / "start.toml"), "--threads", "1", "--folds", "3"]
    assert call(arguments(tmp_path, table, *options, "--samples", "8", "--quiet")) == 0
    written = read_settings(tmp_path / "out" / "settings.toml")
    assert written.sampling.iterations == 2
    assert written.compute.threads == 2
