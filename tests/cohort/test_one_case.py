"""One case of a cohort: it waits for another process that writes to its folder."""

from __future__ import annotations

import re
import shutil
import socket
import threading
from pathlib import Path

import pytest

from helpers.small_cohort import write_one, write_small_cohort
from perturb_mpm.cohort import one_case
from perturb_mpm.cohort.one_case import CaseReading, CaseRunner
from perturb_mpm.files import CaseFiles, CaseFolders, find_cases
from perturb_mpm.run import RunSettings
from perturb_mpm.storage import open_lock


@pytest.fixture
def case(tmp_path: Path) -> CaseFiles:
    write_small_cohort(tmp_path, ("A1",))
    (found,) = find_cases(CaseFolders(tmp_path / "imagesTs", (tmp_path / "predicted",)))
    return found


def test_a_case_in_use_fails_at_once_or_is_waited_for(case: CaseFiles, tmp_path: Path) -> None:
    settings = RunSettings().changed(samples=4, iterations=2, threads=1)
    runner = CaseRunner(settings, CaseReading(), tmp_path / "out", {})
    path = runner.folder / "A1" / "state" / "lock"
    lock = open_lock(path, "in use")
    refused = runner.run(case)
    assert refused.outcome is None
    assert "`output` must not be in use" in str(refused.error)
    release = threading.Timer(0.5, lock.close)
    release.start()
    record = runner.run(case, wait_s=60)
    release.join()
    assert record.error is None
    assert record.outcome is not None


def test_a_record_names_no_machine_and_no_process(case: CaseFiles, tmp_path: Path) -> None:
    settings = RunSettings().changed(samples=4, iterations=2, threads=1)
    runner = CaseRunner(settings, CaseReading(), tmp_path / "out", {})
    record = runner.run(case)
    text = (runner.folder / "cohort" / "A1.json").read_text("utf-8")
    assert socket.gethostname() not in text.replace(str(tmp_path), "")
    assert re.fullmatch(r"[0-9a-f]{8}", str(record.worker))


def test_a_range_that_fails_is_logged_and_the_case_fails_with_its_error(
    case: CaseFiles,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings = RunSettings().changed(samples=4, iterations=2, threads=1)
    runner = CaseRunner(settings, CaseReading(), tmp_path / "out", {})

    def refuse(*_: object, **__: object) -> None:
        raise OSError("no memory for this range")

    monkeypatch.setattr(one_case, "draw_part", refuse)
    monkeypatch.setattr(one_case, "run_case", refuse)
    runner.draw(case, range(2, 4))
    assert "samples 2 to 3 of A1 are not drawn: no memory for this range" in caplog.text
    assert caplog.records[-1].levelname == "WARNING"
    assert runner.run(case).error == "no memory for this range"


def test_files_that_change_while_they_are_read_are_refused(
    case: CaseFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = CaseRunner(RunSettings().changed(samples=4), CaseReading(), tmp_path / "out", {})
    real = CaseReading.read

    def read(self: CaseReading, files: CaseFiles, **how: bool) -> object:
        found = real(self, files, **how)
        files.images[0].write_bytes(files.images[1].read_bytes())
        return found

    monkeypatch.setattr(CaseReading, "read", read)
    record = runner.run(case)
    assert record.outcome is None
    assert "must not change while they are read" in str(record.error)


def test_other_files_of_the_same_name_are_told(case: CaseFiles, tmp_path: Path) -> None:
    settings = RunSettings().changed(samples=4, iterations=2, threads=1)
    runner = CaseRunner(settings, CaseReading(), tmp_path / "out", {})
    runner.run(case)
    moved = tmp_path / "moved"
    shutil.copytree(tmp_path / "imagesTs", moved / "imagesTs")
    shutil.copytree(tmp_path / "predicted", moved / "predicted")
    (same,) = find_cases(CaseFolders(moved / "imagesTs", (moved / "predicted",)))
    assert runner.inspect(same).describe() is None  # only the folder has another name
    (moved / "labelsTs").mkdir()
    write_one(moved, "A1", 7)
    (other,) = find_cases(CaseFolders(moved / "imagesTs", (moved / "predicted",)))
    words = runner.inspect(other).describe()
    assert words is not None
    assert words.startswith("it was run from other files than ")
    assert str(moved / "predicted" / "A1.npz") in words
    assert runner.run(other).run_anew == words
