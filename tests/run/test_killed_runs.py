"""``kill -9`` from the first file to the last: the next ``--resume`` ends with the same bytes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from helpers.small_case import FILES, SAME_BYTES, call, content, write_files
from perturb_mpm.cli import main

pytestmark = pytest.mark.slow

# Each run is killed as soon as one of these is there; `make torture` kills at every moment.
MOMENTS = (
    "state/run.json",
    "state/case.npz",
    "state/posterior.npz",
    "labels.nii.gz",
    "volumes.csv",
)
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
    assert ending(start([*command, str(whole)])) == 0
    expected = content(whole)

    killed = unfinished = 0
    for moment in MOMENTS:
        out = tmp_path / f"out {Path(moment).stem}"
        process = start([*command, str(out), "--resume"])
        wait_for(out / moment, process)
        process.kill()
        killed += ending(process) == -signal.SIGKILL
        found = {name for name in SAME_BYTES if (out / name).exists()}
        assert content(out, sorted(found)) == {name: expected[name] for name in sorted(found)}
        unfinished += not (out / "summary.json").exists()
        assert call(*command, str(out), "--resume") == 0
        assert content(out) == expected
        assert sorted(os.listdir(out)) == sorted([*FILES, "state"])
        assert list(out.rglob("*.part")) == []
    assert killed >= len(MOMENTS) - 1  # the last may end before it is noticed
    assert unfinished >= len(MOMENTS) - 1
