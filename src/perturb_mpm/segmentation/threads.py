"""One task for each channel of a volume, on as many threads as the process may use."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def threads_available() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def in_threads(task: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Return ``task`` of every item, in order; SciPy's filters run side by side."""
    with ThreadPoolExecutor(threads_available()) as pool:
        return list(pool.map(task, items))
