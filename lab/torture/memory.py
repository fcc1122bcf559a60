"""Many cases in one process: the memory it holds must not grow with their number."""

from __future__ import annotations

import gc
import random
import re
import shutil
import sys
from pathlib import Path

import numpy as np

from lab.torture.attack import NOTE, Attack, Finding, Trial
from lab.torture.patient import patient_case, write_patient, write_run
from perturb_mpm.engines import give_back
from perturb_mpm.run import load_run

MOST_BYTES_A_CASE = 1000.0
_FIRST = 100  # cases that fill what is kept on purpose: compiled templates, fonts, headers
_NAMES = 200_000
_BLOCK = 50
_LEAST = 1000  # cases before a slope is judged


def prepare_memory(folder: Path) -> Trial:
    """Return a trial that makes, runs and loads one case and looks at the memory used."""
    write_patient(folder)
    used: list[int] = []

    def trial(_: random.Random, trial_folder: Path) -> Finding:
        write_run(folder, trial_folder / "run")
        load_run(trial_folder / "run")
        patient_case(folder)
        shutil.rmtree(trial_folder / "run")
        used.append(memory_used())
        if len(used) == _FIRST // 2:
            fill_name_table(trial_folder)
        words = (
            f"{block_slope(used):.0f} bytes a case over {len(used)} cases "
            f"({straight_slope(used):.0f} by a straight line)"
        )
        if len(used) % 50 == 0:
            words += f"; every 100th held {[n >> 10 for n in used[::100]]} KiB"
            (folder / NOTE).write_text(words, encoding="utf-8")
        if len(used) >= _LEAST and len(used) % 100 == 0 and block_slope(used) > MOST_BYTES_A_CASE:
            return Finding(kind="growth", words=f"{block_slope(used):.0f} bytes a case")
        return Finding()

    return trial


def fill_name_table(folder: Path) -> None:
    """Let Python's table of names, which paths enter, grow now: it does so once, by 1.9 MB."""
    for number in range(_NAMES):
        _ = (folder / f"{number}.part").name


def block_slope(used: list[int]) -> float:
    """Return the bytes that a case adds: the median of what blocks of cases add.

    A single step is no slope.
    """
    blocks = (len(used) - _FIRST) // _BLOCK
    if blocks < 2:
        return 0.0
    rest = np.array(used[_FIRST : _FIRST + blocks * _BLOCK], dtype=np.float64)
    levels = np.median(rest.reshape(blocks, _BLOCK), axis=1)
    return float(np.median(np.diff(levels)) / _BLOCK)


def straight_slope(used: list[int]) -> float:
    """Return the bytes that a case adds, by a straight line through all cases after the first."""
    rest = np.array(used[_FIRST:], dtype=np.float64)
    if len(rest) < 2:
        return 0.0
    return float(np.polyfit(np.arange(len(rest)), rest, 1)[0])


def memory_used() -> int:
    """Return what this process holds now, in bytes, after giving back what it can."""
    gc.collect()
    give_back()
    if sys.platform != "linux":
        return 0
    # Without pages of files, which the system drops and reads again as it likes.
    status = Path("/proc/self/status").read_text(encoding="ascii")
    found = re.search(r"^RssAnon:\s+(\d+) kB", status, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


MEMORY = Attack("memory", "cases in one process", prepare_memory, longest=60, grows=False)
