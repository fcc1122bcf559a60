"""``perturb-mpm run``: every way in, everything it refuses, and what it prints."""

from __future__ import annotations

import dataclasses
import errno
import gzip
import hashlib
import inspect
import json
import os
import shutil
import signal
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from unittest import mock

import nibabel as nib
import numpy as np
import pytest

import perturb_mpm as pm
from helpers.small_case import (
    AFFINE,
    FILES,
    SAME_BYTES,
    SHAPE,
    call,
    content,
    options,
    probabilities,
    read,
    save,
    truth,
    write_files,
)
from perturb_mpm.engines.cpu import store
from perturb_mpm.fields import settings_in
from perturb_mpm.files import LabelScheme
from perturb_mpm.run.settings import TABLES, RunSettings, write_settings

QUICK = ["--samples", "12", "--iterations", "2", "--quiet"]


@pytest.fixture
def patient(tmp_path: Path) -> Path:
    write_files(tmp_path / "patient")
    return tmp_path / "patient"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def arguments(patient: Path, out: Path) -> list[str]:
    return ["run", *options(patient), "--output", str(out), *QUICK]


def labels(folder: Path) -> np.ndarray:
    return np.asanyarray(nib.load(folder / "labels.nii.gz").dataobj)


def test_quiet_writes_everything_and_prints_nothing(
    arguments: list[str], out: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert call(*arguments) == 0
    assert sorted(os.listdir(out)) == sorted([*FILES, "state"])
    assert capfd.readouterr() == ("", "")


def test_the_table_and_the_lines_of_a_log(
    patient: Path, out: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    named = ["--labels", "0:none", "2:oedema", "4:core"]
    assert call("run", *options(patient), "--output", str(out), *named, *QUICK[:-1]) == 0
    printed = capfd.readouterr()
    for text in ("2 oedema", "4 core", "ml", "bits", "report.html", "and assumed", "derived"):
        assert text in printed.out
    lines = printed.err.splitlines()
    assert all(line.startswith("perturb-mpm: ") for line in lines)
    assert "perturb-mpm: reading the files" in lines
    assert "perturb-mpm: sampling: 12 of 12" in lines
    assert set(np.unique(labels(out))) <= {0, 2, 4}


def test_no_interval_is_printed_for_white_noise(
    arguments: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert call(*arguments[:-1], "--paper") == 0
    table = capfd.readouterr().out.partition("Mask")[0]
    assert "volume" in table
    assert "sampled" not in table
    assert " to " not in table


@pytest.mark.parametrize("option", ["--image", "--mask", "--settings", "--model", "--reference"])
@pytest.mark.parametrize("linked", [False, True])
def test_an_input_that_the_run_would_replace_is_refused(
    option: str, linked: bool, arguments: list[str], out: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out.mkdir()
    (out / "labels.nii.gz").write_bytes(Path(arguments[2]).read_bytes())
    named = out / "labels.nii.gz"
    if linked:
        named = out.parent / "elsewhere.nii.gz"
        named.symlink_to(out / "labels.nii.gz")
    before = named.read_bytes()
    given = [option, *arguments[2:4], str(named)] if option == "--image" else [option, str(named)]
    rest = ["run", *arguments[4:]] if option == "--image" else arguments
    if option == "--settings":
        named.write_text("[sampling]\nseed = 3\n")
        before = named.read_bytes()
    assert call(*rest, *given, "--overwrite") == 2
    assert f"write over or remove, got {named}" in capfd.readouterr().err
    assert named.read_bytes() == before
    assert os.listdir(out) == ["labels.nii.gz"]


def test_an_input_whose_name_some_file_systems_take_for_an_output_is_refused(
    arguments: list[str], out: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out.mkdir()
    mask = out / "Labels.nii.gz"
    mask.write_bytes(Path(arguments[2]).read_bytes())
    assert call(*arguments, "--mask", str(mask), "--overwrite") == 2
    assert f"write over or remove, got {mask}" in capfd.readouterr().err


def test_an_input_beside_the_outputs_stays(patient: Path, arguments: list[str]) -> None:
    before = content(patient, ["t1.nii.gz", "p.nii.gz"])
    out = ["--output", str(patient)]
    assert call(*arguments[: -len(QUICK) - 2], *out, *QUICK, "--overwrite") == 0
    assert call(*arguments[: -len(QUICK) - 2], *out, *QUICK, "--overwrite") == 0
    assert content(patient, ["t1.nii.gz", "p.nii.gz"]) == before


def test_printed_text_is_never_markup(
    patient: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "case[old] :smile:"
    named = ["--labels", "0:none", "2:a [/b]", "4:[red]core"]
    assert call("run", *options(patient), "--output", str(out), *named, *QUICK[:-1]) == 0
    printed = capfd.readouterr().out
    for text in ("2 a [/b]", "4 [red]core", f"files to {out} in ", f"report: {out}/report.html"):
        assert text in printed


def test_bare_label_values_keep_the_names(arguments: list[str], out: Path) -> None:
    assert call(*arguments, "--labels", "0", "2", "4") == 0
    found = json.loads((out / "summary.json").read_text())["labels"]
    assert [(row["value"], row["name"]) for row in found] == [
        (0, "background"),
        (2, "label_2"),
        (4, "label_4"),
    ]


@pytest.mark.parametrize("command", ["run", "cohort"])
def test_every_setting_is_an_option_with_its_true_default(command: str) -> None:
    # In a process of its own: the width is read once, when the first help is printed.
    python = [sys.executable, "-c", "from perturb_mpm.cli import main; main()", command, "--help"]
    wide = {**os.environ, "COLUMNS": "1000"}
    shown = subprocess.run(python, env=wide, check=True, capture_output=True, text=True).stdout
    for table, kind in TABLES.items():
        for name, about in settings_in(kind):
            value = getattr(getattr(RunSettings(), table), name)
            option = f"--{name.replace('_', '-')} "
            assert (option in shown) == bool(about.option), name
            assert not about.option or about.describe(value) in shown, name


def test_every_field_of_sampling_and_compute_is_a_keyword_of_sample() -> None:
    keywords = inspect.signature(pm.sample).parameters
    for table in (pm.Sampling, pm.Compute):
        assert {each.name for each in dataclasses.fields(table)} <= set(keywords)


def test_kept_kernels_change_no_byte_and_are_no_part_of_the_run(
    arguments: list[str], out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "WORTH_KEEPING", 0)
    assert call(*arguments) == 0
    without = content(out, SAME_BYTES)
    state = json.loads((out / "state" / "run.json").read_text())
    kernels = tmp_path / "kernels"
    for _ in range(2):  # empty, then warm
        assert call(*arguments, "--overwrite", "--kernel-cache", str(kernels)) == 0
        assert content(out, SAME_BYTES) == without
        assert json.loads((out / "state" / "run.json").read_text()) == state
    assert any(kernels.iterdir())
    # A run that somebody else made names no folder of ours.
    state["about"]["settings"] = state["about"]["settings"].replace(
        "[compute]", f"[compute]\nkernel_cache = {json.dumps(str(tmp_path / 'theirs'))}"
    )
    (out / "state" / "run.json").write_text(json.dumps(state))
    assert pm.load_run(out).settings.compute.kernel_cache is None


def test_a_cache_that_is_a_file_is_refused(
    arguments: list[str], out: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert call(*arguments, "--kernel-cache", str(tmp_path / "file")) == 2
    assert "--kernel-cache must be a folder" in capfd.readouterr().err
    assert not out.exists()


def test_json_is_one_object(
    arguments: list[str], out: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert call(*arguments, "--json") == 0
    summary = json.loads(capfd.readouterr().out)
    assert summary["output"] == str(out)
    assert summary["samples"] == 12
    assert all((out / file).is_file() for file in summary["files"].values())
    assert summary == {"output": str(out), **json.loads((out / "summary.json").read_text())}


def test_a_bar_is_shown_on_a_terminal(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert call(*[word for word in arguments if word != "--quiet"]) == 0
    shown = capfd.readouterr().err
    assert "━" in shown
    assert "12 of 12" in shown


def test_options_reach_the_model(patient: Path, out: Path) -> None:
    chosen = ["--seed", "3", "--temperature", "2", "--clip", "1e-3", "--estimator", "conditional"]
    chosen += ["--spatial-sigma", "2", "--spatial-weight", "0.5", "--bilateral-sigma-space", "9"]
    chosen += [
        "--bilateral-sigma-intensity-sd",
        "0.7",
        "--bilateral-weight",
        "2",
        "--accuracy",
        "plain",
    ]
    chosen += ["--threads", "1", "--memory", "1 GB", "--engine", "cpu", "--colour-map", "hot"]
    assert call("run", *options(patient), "--output", str(out), *QUICK, *chosen) == 0
    parameters = json.loads((out / "summary.json").read_text())["parameters"]
    wanted = {"seed": 3, "temperature": 2.0, "clip": 1e-3, "estimator": "conditional"}
    wanted |= {"samples": 12, "iterations": 2, "accuracy": "plain", "engine": "cpu"}
    assert {name: parameters[name] for name in wanted} == wanted
    spatial, bilateral = parameters["kernels"]
    assert (spatial["sigma_space"], spatial["weight"]) == (2.0, 0.5)
    assert (bilateral["sigma_space"], bilateral["weight"]) == (9.0, 2.0)
    assert bilateral["sigma_intensity_sd"] == 0.7


def test_options_come_before_a_settings_file(patient: Path, tmp_path: Path) -> None:
    path = tmp_path / "tuned.toml"
    tuned = RunSettings().changed(samples=9, seed=4, temperature=3.0, noise_length=30.0)
    write_settings(path, tuned)
    common = ["run", *options(patient), "--settings", str(path), "--quiet", "--iterations", "1"]
    assert call(*common, "--output", str(tmp_path / "file")) == 0
    assert call(*common, "--output", str(tmp_path / "option"), "--seed", "5") == 0
    summaries = [
        json.loads((tmp_path / name / "summary.json").read_text()) for name in ("file", "option")
    ]
    assert [summary["seed"] for summary in summaries] == [4, 5]
    for summary in summaries:
        assert summary["samples"] == 9
        assert summary["parameters"]["temperature"] == 3.0
        assert summary["parameters"]["iterations"] == 1
        assert summary["volumes_reflect_voxel_noise_alone"] is False


def test_until_allows_as_many_samples_as_it_takes(patient: Path, out: Path) -> None:
    given = ["--until", "0.3", "--iterations", "1", "--quiet"]
    assert call("run", *options(patient), "--output", str(out), *given) == 0
    summary = json.loads((out / "summary.json").read_text())
    most = pm.Precision(0.3).samples_to_reach(3)
    assert summary["parameters"]["samples"] == most
    assert 32 <= summary["samples"] <= most


def test_one_file_a_label_gives_the_same(arguments: list[str], patient: Path, out: Path) -> None:
    assert call(*arguments) == 0
    names = []
    for l, p in enumerate(probabilities()):
        save(patient / f"p{l}.nii.gz", p)
        names.append(str(patient / f"p{l}.nii.gz"))
    images = options(patient)[:3]
    other = out.with_name("each")
    given = ["--probabilities", *names, "--output", str(other), *QUICK]
    assert call("run", *images, *given) == 0
    assert content(other) == content(out)


def test_logits_give_what_their_softmax_gives(
    arguments: list[str], patient: Path, out: Path
) -> None:
    assert call(*arguments) == 0
    save(patient / "logits.nii.gz", np.moveaxis(np.log(probabilities()) + 2.0, 0, -1))
    other = out.with_name("logits")
    given = ["--probabilities", str(patient / "logits.nii.gz"), "--kind", "logits"]
    assert call("run", *options(patient)[:3], *given, "--output", str(other), *QUICK) == 0
    assert (labels(other) != labels(out)).mean() < 0.001


def test_a_hard_label_map_is_warned_of(
    patient: Path, out: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    values = np.array([0, 1, 4])[truth()].astype(np.uint8)
    save(patient / "hard.nii.gz", values)
    given = ["--probabilities", str(patient / "hard.nii.gz"), "--kind", "labels"]
    given += ["--confidence", "0.8", "--output", str(out), *QUICK[:-1]]
    assert call("run", *options(patient)[:3], *given) == 0
    assert "perturb-mpm: warning: " in capfd.readouterr().err
    assert set(np.unique(labels(out))) <= {0, 1, 4}
    assert json.loads((out / "summary.json").read_text())["warnings"]


def test_bids_names_and_titles(arguments: list[str], out: Path) -> None:
    assert call(*arguments, "--bids", "sub-01/ses-pre", "--title", "Patient 1") == 0
    assert list(out.glob("sub-01/ses-pre/anat/sub-01_ses-pre_*_dseg.nii.gz"))
    summary = json.loads(next(out.rglob("*_summary.json")).read_text())
    assert summary["title"] == "Patient 1"
    assert all((out / file).is_file() for file in summary["files"].values())


def test_the_help_shows_an_example_and_the_exit_codes(capfd: pytest.CaptureFixture[str]) -> None:
    assert call("run", "--help") == 0
    shown = " ".join(capfd.readouterr().out.split())
    for text in ("Example: perturb-mpm run", "Exit codes: 0 done; 2 bad input", "130 interrupted"):
        assert text in shown


def damaged(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-60])


def with_nan(path: Path) -> None:
    p = np.moveaxis(probabilities(), 0, -1).copy()
    p[6, 7, 5, 1] = np.nan
    save(path, p)


def elsewhere(path: Path) -> None:
    moved = AFFINE.copy()
    moved[0, 3] += 0.01
    save(path, np.moveaxis(probabilities(), 0, -1), moved)


@pytest.mark.parametrize(
    ("spoil", "more", "message"),
    [
        (lambda p: (p / "t1.nii.gz").unlink(), [], "t1.nii.gz"),
        (lambda p: damaged(p / "t1.nii.gz"), [], "t1.nii.gz"),
        (lambda p: damaged(p / "p.nii.gz"), [], "p.nii.gz"),
        (
            lambda p: save(p / "flair.nii.gz", np.ones(SHAPE[:2])),
            [],
            "must have 3 or 4 axes",
        ),
        (lambda p: save(p / "flair.nii.gz", np.ones((3, 3, 3))), [], "flair.nii.gz"),
        (lambda p: elsewhere(p / "p.nii.gz"), [], "p.nii.gz"),
        (lambda p: with_nan(p / "p.nii.gz"), [], "NaN"),
        (None, ["--labels", "0", "1"], "--labels must give one for each of the 3"),
        (None, ["--labels", "a", "b", "c"], "--labels must be one of brats2021"),
        (None, ["--labels", "0:a", "1:a", "2:b"], "label names must be different"),
        (None, ["--mask", "none.nii.gz"], "none.nii.gz"),
        (None, ["--settings", "none.toml"], "none.toml cannot be read"),
        (None, ["--temperature", "-1"], "temperature must be positive, got -1.0"),
        (None, ["--seed", "one"], "one"),
        (None, ["--seed", str(2**64)], "seed must be"),
        (None, ["--threads", "5000000000"], "threads must be at most"),
        (None, ["--batch", "5000000000"], "batch must be at most"),
        (None, ["--temperature", "inf"], "temperature must be finite"),
        (None, ["--until", "0.01"], "must be reachable within 12 samples"),
        (None, ["--memory", "lots"], "memory must be a positive number of bytes"),
        (None, ["--model", "model.npz"], "either --probabilities or --model must be given"),
        (None, ["--also", "sr"], "--also sr needs --dicom"),
        (None, ["--dicom", "nowhere"], "--dicom must be a folder with a DICOM series, got nowhere"),
        (None, ["--bids", "a_b"], "--bids must name the subject by letters and digits only"),
        (None, ["--resume", "--overwrite"], "must not be given together"),
        (None, ["--smaples", "3"], "--smaples"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(
    spoil: object,
    more: list[str],
    message: str,
    arguments: list[str],
    patient: Path,
    out: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    if callable(spoil):
        spoil(patient)
    assert call(*arguments, *more) == 2
    printed = capfd.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("perturb-mpm: ")
    assert printed.err.count("\n") == 1
    assert message in printed.err
    assert not out.exists()


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--samples", "5000000000", "samples must be at most 10000000, got 5000000000"),
        ("--iterations", "5000000000", "iterations must be at most"),
        ("--until", "0.0005", "--until must be reachable within 10000000 samples, got 0.0005"),
        ("--until", "1e-9", "must be at least 0.0001, got 1e-09"),
        ("--temperature", "1e-300", "temperature must be at least 1e-06"),
        ("--spatial-weight", "1e300", "weight of a spatial kernel must be at least 0 and below"),
    ],
)
def test_numbers_have_limits(
    option: str,
    value: str,
    message: str,
    patient: Path,
    out: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert call("run", *options(patient), "--output", str(out), option, value) == 2
    shown = capfd.readouterr().err
    assert message in shown.splitlines()[-1]
    assert not out.exists()


def test_both_affines_are_shown(
    arguments: list[str], patient: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    elsewhere(patient / "p.nii.gz")
    assert call(*arguments) == 2
    shown = capfd.readouterr().err
    assert "20.01" in shown
    assert "20" in shown.replace("20.01", "")


def test_an_unknown_key_in_the_settings_suggests_the_nearest(
    arguments: list[str], patient: Path, out: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (patient / "wrong.toml").write_text("[unary]\ntemprature = 2.0\n")
    assert call(*arguments, "--settings", str(patient / "wrong.toml")) == 2
    shown = capfd.readouterr().err
    assert "wrong.toml: unknown key 'temprature' in [unary]: did you mean temperature?" in shown
    assert shown.count("\n") == 1
    assert not out.exists()


def test_options_for_one_of_several_kernels_are_refused(
    arguments: list[str], patient: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    plain = RunSettings().kernels[0]
    write_settings(patient / "two.toml", RunSettings(kernels=(plain, plain)))
    given = ["--settings", str(patient / "two.toml"), "--spatial-weight", "2"]
    assert call(*arguments, *given) == 2
    assert "--settings with 2 spatial kernels: change them in the file" in capfd.readouterr().err


def test_a_folder_that_is_not_empty_is_refused(
    arguments: list[str], out: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out.mkdir()
    (out / "thesis.tex").write_text("mine")
    assert call(*arguments) == 2
    shown = capfd.readouterr().err
    assert "--output must be an empty folder" in shown
    assert "--resume or begin anew with --overwrite" in shown
    assert os.listdir(out) == ["thesis.tex"]
    assert call(*arguments, "--overwrite") == 0
    assert (out / "thesis.tex").read_text() == "mine"


def test_a_folder_that_cannot_be_used_is_refused_before_files_are_read(
    patient: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "mine.txt").write_text("kept")
    file = tmp_path / "file"
    file.write_text("")
    given = ["--image", str(tmp_path / "none.nii"), "--probabilities", str(tmp_path / "none.npz")]
    for output, words in ((taken, "must be an empty folder"), (file, "got the file")):
        assert call("run", *given, "--output", str(output), *QUICK) == 2
        shown = capfd.readouterr().err
        assert f"--output {words}" in shown or words in shown
        assert "none.n" not in shown
    assert call("run", *given, "--output", str(tmp_path / "new"), *QUICK) == 2
    assert "none.n" in capfd.readouterr().err
    assert not (tmp_path / "new").exists()


def test_an_output_that_is_a_file_is_refused(
    arguments: list[str], out: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out.write_text("mine")
    assert call(*arguments) == 2
    assert "--output must be a folder, got the file" in capfd.readouterr().err
    assert out.read_text() == "mine"


def test_a_full_disk_is_told_before_anything_is_done(
    arguments: list[str],
    out: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 10**9 - 5 * 10**6, 5 * 10**6))
    assert call(*arguments) == 2
    shown = capfd.readouterr().err
    assert "--output must have room for about" in shown
    assert "got 5 MB free" in shown
    assert shown.count("\n") == 1
    assert not out.exists()


def test_a_disk_that_fills_up_is_one_line_too(
    arguments: list[str], out: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    with mock.patch.object(os, "fsync", side_effect=full):
        assert call(*arguments) == 2
    shown = capfd.readouterr().err
    assert "--output has no room left (No space left on device): make room" in shown
    assert shown.count("\n") == 1
    assert not out.exists()
    assert call(*arguments, "--resume") == 0


def test_a_folder_that_may_not_be_written_to_is_refused(
    arguments: list[str],
    out: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    # Told rather than tried: the superuser may write everywhere.
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert call(*arguments) == 2
    shown = capfd.readouterr().err
    assert "no write permission in" in shown
    assert shown.count("\n") == 1
    assert not out.exists()


def test_too_little_memory_is_one_line_and_code_1(
    arguments: list[str], out: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert call(*arguments, "--memory", "10 kB") == 1
    shown = capfd.readouterr().err
    assert "memory allows" in shown
    assert shown.count("\n") == 1
    assert not out.exists()


def test_ctrl_c_says_how_to_go_on(
    patient: Path, out: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    whole = out.with_name("whole")
    again = ["run", *options(patient), "--samples", "60", "--iterations", "2", "--quiet"]
    assert call(*again, "--output", str(whole)) == 0
    again += ["--output", str(out)]
    told: list[int] = []

    class Interrupting:
        def stage(self, words: str) -> None:
            pass

        def warn(self, words: str) -> None:
            pass

        def __call__(self, done: float, _: float) -> None:
            told.append(done)
            if done >= 50:
                signal.raise_signal(signal.SIGINT)

    with mock.patch("perturb_mpm.cli.console.shown_progress") as shown_progress:
        shown_progress.return_value.__enter__.return_value = Interrupting()
        shown_progress.return_value.__exit__.return_value = None
        assert call(*again) == 130
    shown = capfd.readouterr().err
    assert shown == (
        "perturb-mpm: interrupted: the same command with --resume goes on where it stopped\n"
    )
    assert not set(SAME_BYTES) & set(os.listdir(out))
    assert call(*again, "--resume") == 0
    assert content(out) == content(whole)


def test_resume_with_other_parameters_is_refused(
    arguments: list[str], out: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert call(*arguments) == 0
    before = content(out)
    assert call(*arguments, "--resume", "--seed", "1") == 2
    assert "got others: parameters.seed was 0, is 1" in capfd.readouterr().err
    assert call(*arguments, "--resume") == 0
    assert content(out) == before


def test_a_pickle_beside_the_probabilities_is_never_opened(
    arguments: list[str], patient: Path, out: Path
) -> None:
    """nnU-Net's layout: the .npz with axes C, Z, Y, X, its NIfTI, and a pickle that would raise."""
    assert call(*arguments) == 0
    folder = patient / "nnunet"
    folder.mkdir()
    np.savez(folder / "case.npz", probabilities=probabilities().transpose(0, 3, 2, 1))
    save(folder / "case.nii.gz", probabilities().argmax(axis=0).astype(np.uint8))
    # Unpickled, this would divide by zero.
    (folder / "case.pkl").write_bytes(b"cbuiltins\ndivmod\n(I1\nI0\ntR.")
    other = out.with_name("nnunet-out")
    given = ["--probabilities", str(folder / "case.npz"), "--output", str(other), *QUICK]
    given += ["--npz-axes", "image"]  # the label map is not what these probabilities decide
    assert call("run", *options(patient)[:3], *given) == 0
    assert content(other) == content(out)


def test_the_gzip_of_an_output_carries_no_time_and_no_name(arguments: list[str], out: Path) -> None:
    assert call(*arguments) == 0
    for name in SAME_BYTES:
        if name.endswith(".gz"):
            start = (out / name).read_bytes()[:10]
            assert start[3] == 0  # no name
            assert start[4:8] == bytes(4)  # no time
            assert gzip.decompress((out / name).read_bytes())


def test_a_model_makes_the_probabilities(
    arguments: list[str], patient: Path, out: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert call(*arguments) == 0
    (patient / "model.npz").write_bytes(b"trained")
    other = out.with_name("by-model")
    given = ["--model", str(patient / "model.npz"), "--output", str(other), *QUICK]
    trained = mock.Mock(
        sequences=("t1",),
        labels=LabelScheme((0, 1, 2), ("background", "label_1", "label_2")),
    )
    trained.probabilities.return_value = read(patient).probabilities
    loader = "perturb_mpm.segmenter.model.SegmenterModel.load"
    with mock.patch(loader, return_value=trained) as model:
        assert call("run", *options(patient)[:3], *given) == 0
        wrong = ["--labels", "0", "1", "--overwrite"]
        assert call("run", *options(patient)[:3], *given, *wrong) == 2
    assert model.call_args.args[0] == patient / "model.npz"
    assert content(other) == content(out)
    summary = json.loads((other / "summary.json").read_text())
    assert summary["inputs_sha256"]["model.npz"] == hashlib.sha256(b"trained").hexdigest()
    assert "one for each of the 3 labels, background first, got 2" in capfd.readouterr().err


def test_a_model_that_is_not_there(patient: Path, capfd: pytest.CaptureFixture[str]) -> None:
    given = ["--model", "none.npz", "--output", "out", *QUICK]
    assert call("run", *options(patient)[:3], *given) == 2
    assert "--model must be a file, got none.npz" in capfd.readouterr().err


def test_dicom_files_come_beside_the_others(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("highdicom", reason="the extra dicom is not installed")
    from helpers.dicom_series import COLUMNS, ROWS, SLICES, scanner_affine, write_series

    series = write_series(tmp_path / "series")
    rng = np.random.default_rng(0)
    shape = (COLUMNS, ROWS, SLICES)
    p = rng.dirichlet(np.ones(3), size=shape).astype(np.float32)  # (X, Y, Z, L)
    save(tmp_path / "t1.nii.gz", rng.uniform(1, 2, shape).astype(np.float32), scanner_affine())
    save(tmp_path / "p.nii.gz", p, scanner_affine())
    given = ["--image", str(tmp_path / "t1.nii.gz"), "--probabilities", str(tmp_path / "p.nii.gz")]
    out = tmp_path / "out"
    command = ["run", *given, "--output", str(out), "--dicom", str(series), "--also", "sr", *QUICK]
    assert call(*command) == 0
    files = json.loads((out / "summary.json").read_text())["files"]
    dicom = [out / file for name, file in files.items() if name.startswith("dicom")]
    assert len(dicom) == 2
    assert all(file.read_bytes()[128:132] == b"DICM" for file in dicom)
    before = [file.read_bytes() for file in dicom]
    assert call(*command, "--resume") == 0
    assert [file.read_bytes() for file in dicom] == before

    save(tmp_path / "p.nii.gz", p)
    save(tmp_path / "t1.nii.gz", rng.uniform(1, 2, shape).astype(np.float32))
    other = tmp_path / "elsewhere"
    assert call("run", *given, "--output", str(other), "--dicom", str(series), *QUICK) == 2
    assert "series" in capfd.readouterr().err
    assert not other.exists()


def test_labels_for_other_programs(tmp_path: Path) -> None:
    given = write_files(tmp_path / "in")
    output = tmp_path / "out"
    words = ["--output", str(output), "--samples", "3", "--quiet", "--also", "slicer", "itksnap"]
    assert call("run", *given, *words) == 0
    assert (output / "labels.seg.nrrd").is_file()
    assert "label_1" in (output / "labels-itksnap.txt").read_text()
