"""One case of a cohort: it waits for another process that writes to its folder."""

from __future__ import annotations

import re
import socket
import threading
from pathlib import Path

import pytest

from helpers.small_cohort import write_small_cohort
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
