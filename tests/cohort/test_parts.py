"""A cohort in parts: arrays of jobs into one folder end with the bytes of one command."""

from __future__ import annotations

import csv
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.small_case import call
from helpers.small_cohort import outputs, write_small_cohort
from perturb_mpm.cohort import CohortPart
from perturb_mpm.run import SettingsError
from perturb_mpm.storage import open_lock

NAMES = ("A1", "A2", "B1", "B2")
SETTINGS = ["--samples", "12", "--iterations", "3", "--seed", "5", "--threads", "1", "--quiet"]
PAGE = Path(__file__).resolve().parents[2] / "docs" / "cohort.md"


def table(out: Path) -> list[list[str]]:
    """Return the columns of cohort.csv that are the same bytes every time."""
    with (out / "cohort.csv").open(encoding="utf-8") as file:
        rows = list(csv.reader(file))
    return [row[: rows[0].index("seconds")] for row in rows]


def start(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "perturb_mpm", *arguments])


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    while not condition() and process.poll() is None:
        time.sleep(0.002)


@pytest.fixture
def cohort(tmp_path: Path) -> list[str]:
    return ["cohort", *write_small_cohort(tmp_path, NAMES), *SETTINGS]


@pytest.mark.parametrize("count", [1, 2, 3, 7, 50])
def test_parts_are_every_case_once(count: int) -> None:
    cases = list(range(11))
    parts = [CohortPart(number, count).choose(cases) for number in range(1, count + 1)]
    assert sorted(case for part in parts for case in part) == cases
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize(
    "text", ["0/2", "3/2", "1", "1/0", "-1/2", "1/2/3", "x/2", "1/1000000", ""]
)
def test_what_is_no_part_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="`part` must be a number and how many parts"):
        CohortPart.from_text(text)


@pytest.mark.slow
def test_two_parts_one_of_them_killed_end_as_one_cohort(cohort: list[str], tmp_path: Path) -> None:
    whole, out = tmp_path / "whole", tmp_path / "out"
    assert call(*cohort, "--output", str(whole)) == 0
    into = [*cohort, "--output", str(out)]
    killed = start(*into, "--part", "1/2")
    wait_for((out / "A1" / "state" / "run.json").exists, killed)
    other = start(*into, "--part", "2/2")  # at the same time, into the same folder
    killed.kill()
    assert killed.wait() == -signal.SIGKILL
    assert other.wait() == 0
    assert not (out / "cohort.csv").exists()

    assert call(*into, "--gather") == 3
    status = {row[0]: row[1] for row in table(out)[1:]}
    assert status["A2"] == status["B2"] == "done"
    assert status["B1"] == "failed"  # it was never begun
    assert call(*into, "--part", "1/2") == 0
    assert call(*into, "--gather") == 0
    assert outputs(out, NAMES) == outputs(whole, NAMES)
    assert table(out) == table(whole)


def test_a_part_with_another_input_takes_back_the_tables(
    cohort: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    into = [*cohort, "--match", "A*", "--output", str(tmp_path / "out")]
    assert call(*into) == 0
    (tmp_path / "predicted" / "A1.npz").write_bytes(b"no archive")
    assert call(*into, "--part", "2/2") == 0  # A2, of which nothing has changed
    assert (tmp_path / "out" / "cohort.csv").exists()
    assert call(*into, "--part", "1/2") == 3
    assert not (tmp_path / "out" / "cohort.csv").exists()
    assert call(*into, "--gather") == 3
    assert [row[1] for row in table(tmp_path / "out") if row[0] == "A1"] == ["failed"]


def test_a_part_without_cases_is_done(cohort: list[str], tmp_path: Path) -> None:
    assert call(*cohort, "--match", "A1", "--output", str(tmp_path / "out"), "--part", "9/9") == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--part", "3/2"], "--part must be a number and how many parts there are"),
        (["--gather", "--part", "1/2"], "--gather must not be given with --part"),
        (["--gather", "--workers", "2"], "--gather must not be given with --workers"),
        (["--gather", "--dry-run"], "--gather must not be given with --dry-run"),
    ],
)
def test_options_that_exclude_each_other_are_refused(
    cohort: list[str],
    options: list[str],
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert call(*cohort, "--output", str(tmp_path / "out"), *options) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(os.name == "nt", reason="Windows has no shared locks")
def test_who_runs_what_at_the_same_time(
    cohort: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    into = [*cohort, "--match", "A1", "--output", str(out)]
    with open_lock(out / "cohort" / "lock", "", shared=True):  # another part
        assert call(*into, "--part", "1/1") == 0
        assert call(*into, "--gather") == 2
        assert call(*into) == 2
        with open_lock(out / "cohort" / "part-1-of-1.lock", ""):
            assert call(*into, "--part", "1/1") == 2
    with open_lock(out / "cohort" / "lock", ""):  # a cohort
        assert call(*into, "--part", "1/1") == 2
    assert capsys.readouterr().err.count("--output must not be in use") == 4
    assert call(*into, "--gather") == 0


def test_the_examples_for_slurm_and_snakemake_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their commands are written down by a stand-in, and run here."""
    write_small_cohort(tmp_path, NAMES)
    monkeypatch.chdir(tmp_path)
    bash = shutil.which("bash") or pytest.skip("needs bash")
    program = tmp_path / "bin" / "perturb-mpm"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\" >command.txt\n")
    program.chmod(0o755)
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"

    def run(script: str, **environment: str) -> None:
        everything = {**os.environ, "PATH": path, **environment}
        subprocess.run([bash, "-e", "-c", script], env=everything, check=True)
        command = Path("command.txt").read_text().splitlines()
        assert call(*command, "--samples", "4", "--iterations", "1") == 0

    page = PAGE.read_text()
    part, gather = re.findall(r"```bash\n(#!/bin/bash\n.*?)```", page, re.DOTALL)
    for number in ("1", "2"):
        run(part.replace("/40", "/2"), SLURM_ARRAY_TASK_ID=number)
    run(gather)
    in_slurm = table(tmp_path / "out")
    assert {row[1] for row in in_slurm[1:]} == {"done"}

    (tmp_path / "out").rename(tmp_path / "slurm")
    (snakefile,) = re.findall(r"```text\n(PARTS = 40\n.*?)```", page, re.DOTALL)
    (common,) = re.findall(r'^COHORT = "(.*)"$', snakefile, re.MULTILINE)
    each, last = re.findall(r'shell: COHORT \+ "([^"]*)"', snakefile)
    for number in (1, 2):
        run(common + each.format(threads=1, wildcards=CohortPart(number, 2)) + "2")
    run(common + last)
    assert table(tmp_path / "out") == in_slurm
