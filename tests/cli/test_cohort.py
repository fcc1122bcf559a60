"""``perturb-mpm cohort`` case after case: rows, failures, going on, refusals."""

from __future__ import annotations

import csv
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.small_case import call, content
from helpers.small_cohort import NAMES, outputs, write_one, write_small_cohort
from helpers.tiny_cohort import write_cohort
from perturb_mpm.cohort.one_case import CaseRunner
from perturb_mpm.run import load_run, read_settings

SETTINGS = ["--samples", "12", "--iterations", "3", "--seed", "5", "--threads", "1", "--quiet"]


def rows_of(out: Path) -> list[dict[str, str]]:
    with (out / "cohort.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def cohort(tmp_path: Path) -> list[str]:
    return ["cohort", *write_small_cohort(tmp_path), *SETTINGS]


def test_each_case_is_what_run_writes_and_a_row_a_label(cohort: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    truths = ["--truth", str(tmp_path / "labelsTs")]
    assert call(*cohort, *truths, "--output", str(out)) == 0
    images = [str(tmp_path / "imagesTs" / f"A1_000{k}.nii.gz") for k in range(2)]
    maps = str(tmp_path / "predicted" / "A1.npz")
    alone = tmp_path / "alone"
    one = ["run", "--image", *images, "--probabilities", maps, *SETTINGS, "--output", str(alone)]
    assert call(*one) == 0
    assert content(out / "A1") == content(alone)

    rows = rows_of(out)
    assert {row["case"] for row in rows} == set(NAMES)
    of_one = {row["name"]: row for row in rows if row["case"] == "A1"}
    assert set(of_one) == {"oedema", "core", "all of these together"}
    found = json.loads((alone / "summary.json").read_text())["labels"][1]
    row = of_one["oedema"]
    for column in ("volume_ml", "interval_lower_ml", "mean_entropy_bits", "uncertain_frac"):
        assert float(row[column]) == pytest.approx(found[column], rel=1e-12)
    assert row["intervals_rest_on"] == "assumed"
    assert float(row["temperature"]) >= 1
    assert float(row["image_evidence"]) <= 1

    run = load_run(alone)
    here, inside = run.labels == 1, run.case.mask
    share = run.marginals[1].astype(float)
    expected = 2 * share[here].sum() / (here.sum() + share[inside].sum())
    assert float(row["expected_dice"]) == pytest.approx(expected, rel=1e-6)
    assert 0 < float(row["dice"]) <= 1


def test_a_model_makes_the_probabilities_as_in_run(tmp_path: Path) -> None:
    patients = write_cohort(tmp_path / "patients")
    model = tmp_path / "model.npz"
    training = ["--data", str(patients), "--layout", "brats", "--labels", "brats2021", "--quiet"]
    few = ["--folds", "3", "--trees", "6", "--seed", "0", "--sequences", "t1ce", "flair"]
    assert call("train", *training, *few, "--output", str(model)) == 0
    out, alone = tmp_path / "out", tmp_path / "alone"
    named = ["--model", str(model), *SETTINGS]
    chosen = ["--images", str(patients), "--match", "P0", "P1"]
    assert call("cohort", *chosen, *named, "--output", str(out)) == 0
    names = ("flair", "t1", "t1ce", "t2")
    images = [str(patients / "P0" / f"P0_{name}.nii.gz") for name in names]
    assert call("run", "--image", *images, *named, "--output", str(alone)) == 0
    assert content(out / "P0") == content(alone)
    assert {row["case"] for row in rows_of(out)} == {"P0", "P1"}
    both = ["--probabilities", str(tmp_path), "--output", str(out)]
    assert call("cohort", *chosen, *named, *both) == 2


def test_folds_of_nnunet_are_an_ensemble_with_the_names_of_its_dataset(tmp_path: Path) -> None:
    named = write_small_cohort(tmp_path, ("A1",))
    maps = tmp_path / "predicted"
    for fold in range(2):
        own = maps / f"fold_{fold}"
        own.mkdir()
        write_one(tmp_path, "A1", fold)  # the images of the last one stay
        for path in maps.glob("A1.*"):
            path.replace(own / path.name)
    note = {"list_of_lists_or_source_folder": str(tmp_path / "imagesTs")}
    (maps / "fold_0" / "predict_from_raw_data_args.json").write_text(json.dumps(note))
    one_line = ["cohort", *named[named.index("--probabilities") :][:2], *SETTINGS]
    assert call(*one_line, "--output", str(tmp_path / "out")) == 0
    assert (tmp_path / "out" / "cohort.html").is_file()
    run = load_run(tmp_path / "out" / "A1")
    assert run.case.ensemble is not None
    assert run.case.ensemble.count == 2
    assert tuple(run.case.images) == ("t1", "flair")
    assert run.case.labels.names == ("background", "oedema", "core")
    assert (tmp_path / "out" / "A1" / "mutual_information.nii.gz").is_file()


def test_pictures_of_a_folder_are_cases(tmp_path: Path) -> None:
    from PIL import Image

    images, maps = tmp_path / "photos", tmp_path / "predicted"
    images.mkdir()
    maps.mkdir()
    rng = np.random.default_rng(2)
    for name in ("leaf", "stone"):
        foreground = (rng.random((20, 24)) > 0.5).astype(np.float32)  # (Y, X)
        Image.fromarray((60 + 120 * foreground).astype(np.uint8)).save(images / f"{name}.png")
        p = 0.2 + 0.6 * foreground
        np.savez(maps / f"{name}.npz", probabilities=np.stack([1 - p, p])[:, np.newaxis])
    given = ["--images", str(images), "--probabilities", str(maps), *SETTINGS]
    assert call("cohort", *given, "--output", str(tmp_path / "out")) == 0
    assert {row["case"] for row in rows_of(tmp_path / "out")} == {"leaf", "stone"}
    found = np.asarray(Image.open(tmp_path / "out" / "stone" / "labels.tif"))
    np.testing.assert_array_equal(found, foreground)


def test_evaluate_takes_the_folder_as_it_is(
    cohort: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, measured = tmp_path / "out", tmp_path / "measured"
    command = ["evaluate", "--table", str(out), "--output", str(measured), "--quiet"]
    assert call(*cohort, "--output", str(out), "--match", "A1") == 0
    assert call(*command) == 2
    assert "must have a case that is done and has a truth" in capsys.readouterr().err
    out = tmp_path / "with_truth"
    truths = ["--truth", str(tmp_path / "labelsTs")]
    (tmp_path / "predicted" / "B1.npz").write_bytes(b"no archive")
    assert call(*cohort, *truths, "--output", str(out)) == 3
    command[2] = str(out)
    assert call(*command) == 0
    with (measured / "metrics.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["metric"] == "dice"]
    rows = [row for row in rows if row["method"] != "network alone"]
    found = {(r["case"], r["region"]): float(r["value"]) for r in rows if r["domain"] == "brain"}
    assert {case for case, _ in found} == {"A1", "A2"}
    for row in rows_of(out):
        if row["kind"] == "label":
            assert float(row["dice"]) == pytest.approx(found[row["case"], row["name"]])


def test_a_case_that_another_run_took_the_place_of_is_refused(
    cohort: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, own = tmp_path / "out", ["--match", "A1", "A2"]
    assert call(*cohort, *own, "--output", str(out)) == 0
    images = [str(tmp_path / "imagesTs" / f"B1_000{number}.nii.gz") for number in range(2)]
    maps = ["--probabilities", str(tmp_path / "predicted" / "B1.npz"), *SETTINGS]
    another = ["run", "--image", *images, *maps, "--output", str(out / "A1"), "--overwrite"]
    assert call(*another) == 0
    command = ["evaluate", "--table", str(out), "--truth", str(tmp_path / "labelsTs")]
    assert call(*command, "--output", str(tmp_path / "evaluation"), "--quiet") == 2
    assert f"got another run in {out / 'A1'}: remove that folder" in capsys.readouterr().err
    shutil.rmtree(out / "A1")
    assert call(*cohort, *own, "--output", str(out)) == 0
    assert call(*command, "--output", str(tmp_path / "evaluation"), "--quiet") == 0


def test_evaluate_takes_truths_of_a_folder_and_workers(cohort: list[str], tmp_path: Path) -> None:
    pytest.importorskip("distributed", reason="the extra cluster is not installed")
    out, truths = tmp_path / "out", tmp_path / "labelsTs"
    assert call(*cohort, "--output", str(out)) == 0
    command = ["evaluate", "--table", str(out), "--truth", str(truths), "--quiet"]
    for workers in ("1", "2"):
        place = ["--output", str(tmp_path / f"by{workers}"), "--workers", workers]
        assert call(*command, *place) == 0
    one, two = ((tmp_path / f"by{n}" / "metrics.csv").read_bytes() for n in (1, 2))
    assert one == two
    assert b"B1" in one
    (truths / "B1.nii.gz").unlink()  # a case without a truth is left out
    assert call(*command, "--output", str(tmp_path / "fewer")) == 0
    assert b"B1" not in (tmp_path / "fewer" / "metrics.csv").read_bytes()
    assert call(*command[:3], "--truth", str(out / "cohort.csv"), "--quiet") == 2


def test_biomarkers_takes_both_sessions_of_the_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = tuple(f"sub-{n}_ses-{when}" for n in (1, 2, 3) for when in ("pre", "post"))
    files = write_small_cohort(tmp_path, names)
    out, truths = tmp_path / "out", tmp_path / "labelsTs"
    (tmp_path / "predicted" / f"{names[5]}.npz").write_bytes(b"no archive")
    settings = [*SETTINGS, "--noise-length", "8", "--truth", str(truths)]
    assert call("cohort", *files, *settings, "--output", str(out)) == 3
    command = ["biomarkers", "--table", str(out), "--region", "core=2", "--quiet"]
    assert call(*command, "--output", str(tmp_path / "found")) == 0
    with (tmp_path / "found" / "biomarkers.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["method"] == "original"]
    volumes = {row["case"]: row["volume_ml"] for row in rows_of(out) if row["name"] == "core"}
    assert [row["case"] for row in rows] == ["sub-1", "sub-2"]  # the third has no scan after
    for row in rows:
        before, after = (float(volumes[f"{row['case']}_ses-{when}"]) for when in ("pre", "post"))
        assert float(row["before_ml"]) == pytest.approx(before)
        assert float(row["rtv_ml"]) == pytest.approx(after)
    assert (tmp_path / "found" / "calibration.json").is_file()  # of the cohort's truths
    assert call(*command, "--sessions", "a", "b", "--output", str(tmp_path / "none")) == 2
    assert "must have both cases NAME_ses-a and NAME_ses-b" in capsys.readouterr().err
    # Two rows by subject and session are two runs.
    change = ["change", str(out), "--subject", "1", "--structure", "core", "--quiet"]
    sessions = ["--sessions", "pre", "post"]
    assert call(*change, *sessions, "--output", str(tmp_path / "rows")) == 0
    (row,) = json.loads((tmp_path / "rows" / "change.json").read_text())["changes"]
    assert row["before"] == pytest.approx(float(volumes["sub-1_ses-pre"]))
    assert row["after"] == pytest.approx(float(volumes["sub-1_ses-post"]))
    assert call(*change[:2], "--subject", "3", "--output", str(tmp_path / "one")) == 2
    assert "--sessions must be two of subject 3" in capsys.readouterr().err


def test_pairs_of_the_folder_teach_the_correlation_of_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = tuple(f"sub-{n}_ses-{when}" for n in (1, 2) for when in ("pre", "post"))
    files, out = write_small_cohort(tmp_path, names), tmp_path / "out"
    assert call("cohort", *files, *SETTINGS, "--noise-length", "8", "--output", str(out)) == 0

    def refuse(*arguments: str) -> str:
        assert call("tune", *arguments) == 2
        return capsys.readouterr().err

    tuned = ["--output", str(tmp_path / "tuned")]
    pairs = ["--pairs", str(out), *tuned]
    assert "--pairs must be at least 3, got 2" in refuse(*pairs)
    for option, value in (("--measure", "diameter"), ("--samples", "9"), ("--data", str(out))):
        assert f"{option} must not be given with --pairs" in refuse(*pairs, option, value)
    words = "--pairs must have both cases NAME_ses-a and NAME_ses-b"
    assert words in refuse(*pairs, "--sessions", "a", "b")
    table = tmp_path / "pairs.csv"

    def write_pairs(*rows: tuple[int, int]) -> list[str]:
        lines = [f"{n},out/{names[a]},out/{names[b]}" for n, (a, b) in enumerate(rows)]
        table.write_text("\n".join(["case,before,after", *lines]))
        return ["--pairs", str(table)]

    assert "got two runs of the same files in 2" in refuse(
        *write_pairs((0, 1), (2, 3), (1, 1)), *tuned
    )
    assert call("tune", *write_pairs((0, 1), (2, 3), (0, 3)), *tuned) == 0
    assert "may be of different patients" in capsys.readouterr().err
    given = write_pairs((0, 1), (2, 3), (0, 1))
    assert "is what --pairs names" in refuse(*given, "--output", str(tmp_path))
    assert table.read_text().startswith("case,before,after")  # what the user wrote
    assert call("tune", *given, *tuned, "--json") == 0
    learned = json.loads(capsys.readouterr().out)
    settings = read_settings(tmp_path / "tuned" / "settings.toml")
    assert settings.basis.scan_correlation == learned["scan_correlation"]
    assert set(learned["structures"]) == {row["name"] for row in rows_of(out) if row["name"]} - {
        "background"
    }


def test_tune_takes_the_folder_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = tuple(f"A{n}" for n in range(5))
    files = write_small_cohort(tmp_path, names)
    out, truths = tmp_path / "out", tmp_path / "labelsTs"
    assert call("cohort", *files, *SETTINGS, "--output", str(out)) == 0
    options = ["--folds", "2", "--samples", "8", "--quiet", "--threads", "1"]
    command = ["tune", "--data", str(out), *options]
    assert call(*command, "--output", str(tmp_path / "none")) == 2
    assert "must have a case that is done and has a truth" in capsys.readouterr().err
    tuned = tmp_path / "tuned"
    assert call(*command, "--truth", str(truths), "--output", str(tuned)) == 0
    again = ["--settings", str(tuned / "settings.toml"), "--match", "A0", "--quiet"]
    assert call("cohort", *files, *again, "--samples", "4", "--output", str(tmp_path / "b")) == 0
    labels = ["--labels", "0:background", "1:oedema", "2:core"]
    assert call(*command, *labels, "--output", str(tuned)) == 2
    assert "--labels must not be given for the folder of a cohort" in capsys.readouterr().err


def test_broken_cases_are_rows_and_stop_nobody(cohort: list[str], tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    assert call(*cohort, "--output", str(whole)) == 0
    expected = outputs(whole)
    broken = ("X1", "X2", "X3", "X4", "X5")
    for name in broken:
        write_one(tmp_path, name, 9)
    maps, images = tmp_path / "predicted", tmp_path / "imagesTs"
    archive = maps / "X1.npz"
    archive.write_bytes(archive.read_bytes()[:200])  # cut short
    (maps / "X2.npz").unlink()
    (maps / "X2.nii.gz").unlink()
    np.savez(maps / "X3.npz", probabilities=np.ones((3, 2, 2, 2), np.float32))  # another grid
    (images / "X4_0001.nii.gz").write_bytes(b"not an image")
    np.savez(maps / "X5.npz", other=np.ones(3))
    out = tmp_path / "out"
    assert call(*cohort, "--output", str(out)) == 3
    assert outputs(out) == expected
    rows = {row["case"]: row for row in rows_of(out)}
    errors = {name: rows[name]["error"] for name in rows if rows[name]["status"] == "failed"}
    assert sorted(errors) == list(broken)
    assert "X1.npz" in errors["X1"]
    assert "must hold X2.npz or X2.nii.gz" in errors["X2"]
    assert "X3" in errors["X3"]
    assert "X4_0001.nii.gz" in errors["X4"]
    assert "must hold the array probabilities" in errors["X5"]
    for name in broken:
        assert not (out / name).exists()

    write_one(tmp_path, "X1", 9)  # mended: the same command tries it again
    assert call(*cohort, "--output", str(out)) == 3
    assert "X1" not in json.loads((out / "cohort.json").read_text())["failed"]


def test_the_same_command_again_skips_what_is_done(
    cohort: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    assert call(*cohort, "--output", str(out), "--match", "A*") == 0
    asked: list[str] = []
    real = CaseRunner.run

    def watched(self: CaseRunner, case: Any) -> Any:
        asked.append(case.name)
        return real(self, case)

    monkeypatch.setattr(CaseRunner, "run", watched)
    assert call(*cohort, "--output", str(out)) == 0
    assert asked == ["B1"]
    (out / "A2" / "labels.nii.gz").unlink()
    assert call(*cohort, "--output", str(out)) == 0
    assert asked == ["B1", "A2"]
    write_one(tmp_path, "A1", 77)  # another patient under the name of one that is done
    assert call(*cohort, "--output", str(out)) == 0
    assert asked == ["B1", "A2", "A1"]
    assert call(*cohort, "--output", str(tmp_path / "fresh")) == 0
    assert outputs(out) == outputs(tmp_path / "fresh")


def test_an_input_of_equal_size_and_time_is_known_by_its_content(
    cohort: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cohort = [option for option in cohort if option != "--quiet"] + ["--match", "A*"]
    out, maps = tmp_path / "out", tmp_path / "predicted"
    truths = ["--truth", str(tmp_path / "labelsTs")]
    assert call(*cohort, *truths, "--output", str(out)) == 0
    (out / "A1" / "notes.txt").write_text("of the reader")
    for path in maps.glob("A2*"):
        os.utime(path)  # another time, the same content: not run again
    written = (out / "A2" / "summary.json").stat().st_mtime_ns
    file, status = maps / "A1.npz", (maps / "A1.npz").stat()
    other = file.with_name("other.npz")
    p = np.load(file)["probabilities"]
    np.savez(other, probabilities=np.ascontiguousarray(p[:, ::-1]))
    other.replace(file)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)
    capsys.readouterr()
    assert call(*cohort, *truths, "--output", str(out)) == 0
    assert "A1 is run anew: the content of " in capsys.readouterr().err
    assert (out / "A2" / "summary.json").stat().st_mtime_ns == written
    assert call(*cohort, *truths, "--output", str(tmp_path / "fresh")) == 0
    assert outputs(out, ("A1", "A2")) == outputs(tmp_path / "fresh", ("A1", "A2"))
    assert (out / "A1" / "notes.txt").read_text() == "of the reader"
    records = {r["case"]: r for r in json.loads((out / "cohort.json").read_text())["records"]}
    assert "A1.npz has changed" in records["A1"]["run_anew"]
    assert records["A2"]["run_anew"] is None


def test_results_of_an_input_before_leave_the_tables_while_it_is_run_anew(
    cohort: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    one = [*cohort, "--match", "A1", "--output", str(out)]
    assert call(*one) == 0
    before = outputs(out, ("A1",))
    kept = {path: path.read_bytes() for path in (tmp_path / "predicted").glob("A1*")}
    write_one(tmp_path, "A1", 77)
    from perturb_mpm.run import running

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "draw_samples", interrupt)
    assert call(*one) == 130
    monkeypatch.undo()
    (row,) = rows_of(out)
    assert (row["status"], row["volume_ml"]) == ("failed", "")
    for path, content_before in kept.items():
        path.write_bytes(content_before)
    again = tmp_path / "again"
    write_small_cohort(again, ("A1",))  # the images of before
    for path in (again / "imagesTs").glob("A1*"):
        path.replace(tmp_path / "imagesTs" / path.name)
    assert call(*one) == 0
    assert outputs(out, ("A1",)) == before


def test_a_case_that_is_killed_while_its_run_is_removed_is_run_by_the_same_command(
    cohort: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    one = [*cohort, "--match", "A1", "--output"]
    assert call(*one, str(out)) == 0
    (out / "A1" / "notes.txt").write_text("of the reader")
    write_one(tmp_path, "A1", 77)
    from perturb_mpm.run import running

    def interrupt(layout: Any) -> None:
        (layout.state / "run.json").unlink()
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "clear", interrupt)
    assert call(*one, str(out)) == 130
    monkeypatch.undo()
    assert call(*one, str(out)) == 0
    assert call(*one, str(tmp_path / "fresh")) == 0
    assert outputs(out, ("A1",)) == outputs(tmp_path / "fresh", ("A1",))
    assert (out / "A1" / "notes.txt").exists()


def test_a_run_that_is_not_the_cohorts_is_never_replaced(cohort: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    images = [str(tmp_path / "imagesTs" / f"A2_000{k}.nii.gz") for k in range(2)]
    maps = str(tmp_path / "predicted" / "A2.npz")
    own = ["run", "--image", *images, "--probabilities", maps, *SETTINGS]
    assert call(*own, "--output", str(out / "A1")) == 0
    before = outputs(out, ("A1",))
    for _ in range(2):
        assert call(*cohort, "--match", "A1", "--output", str(out)) == 3
        (row,) = rows_of(out)
        assert "holds a run that is not of this cohort" in row["error"]
        assert "overwrite" not in row["error"]
        assert outputs(out, ("A1",)) == before


def test_ctrl_c_leaves_everything_resumable(
    cohort: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole, out = tmp_path / "whole", tmp_path / "out"
    assert call(*cohort, "--output", str(whole)) == 0
    from perturb_mpm.run import running as one

    real = one.write_sampled_volumes

    def interrupted(run: Any) -> None:
        if run.title == "A2":
            raise KeyboardInterrupt
        real(run)

    monkeypatch.setattr(one, "write_sampled_volumes", interrupted)
    assert call(*cohort, "--output", str(out)) == 130
    assert "the same command goes on where it stopped" in capsys.readouterr().err
    assert (out / "A1" / "summary.json").is_file()
    assert not (out / "A2" / "summary.json").exists()
    monkeypatch.undo()
    assert call(*cohort, "--output", str(out)) == 0
    assert outputs(out) == outputs(whole)
    assert list(out.rglob("*.part")) == []


def test_other_parameters_are_refused_before_any_work(
    cohort: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--output", str(tmp_path / "out")]
    assert call(*cohort, *out, "--match", "A1") == 0
    assert call(*cohort, *out, "--temperature", "2") == 2
    message = capsys.readouterr().err
    assert "--output must be a new folder or one of the same parameters" in message
    assert "temperature was null, is 2.0" in message
    assert not (tmp_path / "out" / "A2").exists()


def test_a_dry_run_lists_every_case_and_writes_nothing(
    cohort: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "predicted" / "B1.npz").write_bytes(b"no archive")
    command = [each for each in cohort if each != "--quiet"]
    assert call(*command, "--output", str(tmp_path / "out"), "--dry-run") == 3
    text = capsys.readouterr().out
    assert "2 to run, 0 done, 1 cannot be read" in text
    assert "time: not known before a case is done" in text
    assert not (tmp_path / "out").exists()
    assert call(*cohort, "--output", str(tmp_path / "out"), "--match", "A1") == 0
    capsys.readouterr()
    assert call(*command, "--output", str(tmp_path / "out"), "--dry-run", "--match", "A*") == 0
    text = capsys.readouterr().out
    assert "1 to run, 1 done, all can be read" in text
    assert "by the cases that are done" in text


def test_json_is_a_line_a_case_and_one_for_all(
    cohort: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "predicted" / "B1.npz").write_bytes(b"no archive")
    assert call(*cohort, "--output", str(tmp_path / "out"), "--json") == 3
    *cases, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert [(each["case"], each["status"]) for each in cases] == [
        ("A1", "done"),
        ("A2", "done"),
        ("B1", "failed"),
    ]
    assert cases[0]["peak_memory_mb"] > 0
    assert list(last["failed"]) == ["B1"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--workers", "0"], "--workers must be between 1 and"),
        (["--workers", "2", "--scheduler", "tcp://x:1"], "must not be given together"),
        (["--until", "0.1"], "--until must come with --samples"),
        (["--match", "nobody"], "--match must choose at least one of 3 cases"),
        (["--images", "nowhere"], "--images: not found: nowhere"),
    ],
)
def test_bad_options_are_refused(
    options: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = write_small_cohort(tmp_path)
    left = named[2:] if "--images" in options else named
    assert call("cohort", *left, *options, "--output", str(tmp_path / "out")) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
