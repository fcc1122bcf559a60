"""Many cases in one process: the memory it holds must not grow with their number.

What is counted are the bytes that the allocator of the C library has handed out and not got back.
Python takes all of its memory there in this attack. The pages of a process say less: free memory
lies between what is used, and they grow by whole arenas.
"""

from __future__ import annotations

import ctypes
import gc
import random
from contextlib import closing
from pathlib import Path

import numpy as np

from lab.torture.attack import NOTE, Attack, Finding, Trial
from lab.torture.sequences import QUICK_SETTINGS, update, write_case
from perturb_mpm.engines import give_back
from perturb_mpm.run import load_run, run_case
from perturb_mpm.view import open_session

MOST_BYTES_A_CASE = 1000.0
BLOCK = 50  # cases between two looks at the memory
_FIRST = 100  # cases that fill what is kept on purpose: compiled templates, fonts, headers
_LEAST = 300  # cases before a slope is judged


def prepare_memory(folder: Path) -> Trial:
    """Return a trial that reads, runs and loads a case, corrects every tenth, looks at memory."""
    used: list[int] = []
    number = 0

    def trial(_: random.Random, trial_folder: Path) -> Finding:
        nonlocal number
        output = trial_folder / "run"
        case = write_case(trial_folder / "patient", 0)
        run_case(case, QUICK_SETTINGS, output, title="patient")
        load_run(output)
        number += 1
        if number % 10 == 0:
            with closing(open_session(output)) as session:
                update(session, ((31, 0),))
        if number % BLOCK or number < _FIRST:
            return Finding()
        used.append(memory_used())
        slope = bytes_a_case(used)
        words = f"{slope:.0f} bytes a case over {number} cases, limit {MOST_BYTES_A_CASE:.0f}"
        (folder / NOTE).write_text(words, encoding="utf-8")
        is_growth = number >= _LEAST and slope > MOST_BYTES_A_CASE
        return Finding(kind="growth", words=words) if is_growth else Finding()

    return trial


def bytes_a_case(used: list[int]) -> float:
    """Return the bytes that a case adds: the median of what blocks of cases add.

    A single step, such as a table of Python that doubles, is no slope.
    """
    return float(np.median(np.diff(used)) / BLOCK) if len(used) > 1 else 0.0


class _Allocated(ctypes.Structure):
    """What glibc's ``mallinfo2`` returns."""

    _names = (
        *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
        *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
    )
    _fields_ = [(name, ctypes.c_size_t) for name in _names]


def memory_used() -> int:
    """Return the bytes that the allocator has handed out; 0 where it does not tell."""
    gc.collect()
    give_back()
    tell = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if tell is None:
        return 0
    tell.restype = _Allocated
    found = tell()
    return int(found.uordblks + found.hblkhd)


MEMORY = Attack(
    "memory",
    "cases in one process",
    prepare_memory,
    longest=60,
    grows=False,
    environment=(("PYTHONMALLOC", "malloc"),),
)
