"""``kill -9`` at random moments: the next ``--resume`` ends with the same bytes."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from helpers.small_case import FILES, SAME_BYTES, call, content, write_files
from perturb_mpm.cli import main

pytestmark = pytest.mark.slow

KILLS = 6
SETTINGS = ["--samples", "60", "--iterations", "4", "--threads", "1", "--quiet"]
LOADED_ONCE = ["perturb_mpm.cli", "perturb_mpm.run.running", "perturb_mpm.engines.cpu.solver"]


def start(arguments: list[str]) -> BaseProcess:
    """Start the command in a process of its own, forked from one that has the library loaded."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*LOADED_ONCE, "perturb_mpm.report.report", "nibabel"])
    process = context.Process(target=main, args=(arguments,))
    process.start()
    return process


def wait_for(path: Path, process: BaseProcess) -> None:
    """Wait until the file is there, or the process has ended."""
    while not path.exists() and process.is_alive():
        time.sleep(0.002)


def ending(process: BaseProcess) -> int | None:
    process.join()
    code = process.exitcode
    process.close()
    return code


def test_killed_runs_end_with_the_same_bytes(tmp_path: Path) -> None:
    command = ["run", *write_files(tmp_path / "patient"), *SETTINGS, "--output"]
    whole = tmp_path / "whole"
    process = start([*command, str(whole)])
    wait_for(whole / "state" / "run.json", process)
    begun = time.monotonic()
    assert ending(process) == 0
    busy = time.monotonic() - begun  # from the first file to the last
    expected = content(whole)

    chance = random.Random(1)  # noqa: S311 - the same moments every time, as far as clocks allow
    killed = unfinished = 0
    for trial in range(KILLS):
        out = tmp_path / f"out{trial}"
        process = start([*command, str(out), "--resume"])
        wait_for(out / "state" / "run.json", process)
        time.sleep(chance.uniform(0.0, busy))
        process.kill()
        killed += ending(process) == -signal.SIGKILL
        found = {name for name in SAME_BYTES if (out / name).exists()}
        assert content(out, sorted(found)) == {name: expected[name] for name in sorted(found)}
        unfinished += not (out / "summary.json").exists()
        assert call(*command, str(out), "--resume") == 0
        assert content(out) == expected
        assert sorted(os.listdir(out)) == sorted([*FILES, "state"])
        assert list(out.rglob("*.part")) == []
    assert killed >= KILLS // 2
    assert unfinished >= KILLS // 2
