"""Where and how a problem is computed, with how many cores and how much memory."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from perturb_mpm import checks
from perturb_mpm.engines.protocol import Accuracy
from perturb_mpm.fields import CheckedSettings, one_of, setting

Engine = Literal["auto", "reference", "cpu", "gpu"]

MOST_ITERATIONS = 10**5
MOST_THREADS = 4096
MOST_PROBLEMS = 65536
SHARE_OF_FREE = 0.6
UNKNOWN_MACHINE = 4 * 10**9
REMEDY = "use a larger memory, a tighter mask, or larger sigmas"

# M_MMAP_MAX, M_ARENA_MAX and M_TRIM_THRESHOLD of malloc.h, and the same to start a process with.
_HEAP = {-4: 0, -8: 1, -1: 2**31 - 1}
KEEPS_FREED_MEMORY = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1),
}
_UNITS = {"": 1, "B": 1}
_UNITS |= {f"{prefix}B": 1000**power for power, prefix in enumerate("KMGT", start=1)}
_UNITS |= {f"{prefix}IB": 1024**power for power, prefix in enumerate("KMGT", start=1)}


def available_cores() -> int:
    """Return the number of cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass(frozen=True)
class Compute(CheckedSettings):
    """Where and how to compute; all but engine and accuracy change no result.

    Examples
    --------
    >>> pm.Compute(engine="cpu", threads=2, memory="4 GB").accuracy
    'calibrated'
    """

    engine: Engine = setting("auto", "Where to compute; auto chooses", one_of(Engine))
    accuracy: Accuracy = setting(
        "calibrated",
        "How closely the filter follows the Gaussian kernels; exact visits all pairs",
        one_of(Accuracy),
    )
    batch: int | None = setting(
        None,
        "How many samples to solve at once",
        partial(checks.integer, minimum=1, maximum=MOST_PROBLEMS),
        unset="as many as memory allows",
        example=16,
        changes_results=False,
    )
    threads: int | None = setting(
        None,
        "How many threads",
        partial(checks.integer, minimum=1, maximum=MOST_THREADS),
        unset="all cores",
        example=2,
        changes_results=False,
    )
    memory: int | str | None = setting(
        None,
        'How much memory to use, as in "4 GB"',
        lambda value, _: _check_budget(value),
        unset="60 % of what is free",
        example="4 GB",
        option=str,
        changes_results=False,
    )
    kernel_cache: str | Path | None = setting(
        None,
        "A folder that keeps prepared kernels for the next run of the same images, up to 8 GB",
        lambda value, name: _folder(value, f"`{name}`"),
        unset="none",
        example="kernels",
        option=Path,
        changes_results=False,
    )


def _check_budget(value: int | str) -> int | str:
    resolve_budget(value)  # refuses what cannot be read
    return value


def _folder(value: object, name: str) -> str:
    """Return the whole path of a folder, which may be made later."""
    if not isinstance(value, str | Path):
        raise TypeError(f"{name} must be the path of a folder, got {value!r}")
    path = Path(value).absolute()
    try:
        usable = (
            bool(str(value)) and "\0" not in str(value) and (path.is_dir() or not path.exists())
        )
    except OSError:  # a name too long, a folder that may not be entered
        usable = False
    if not usable:
        raise ValueError(f"{name} must be a folder, or one that can be made, got {str(value)!r}")
    return str(path)


def resolve_budget(memory: int | str | None) -> int:
    """Return the memory budget in bytes: a number, a text such as "4 GB", or 60 % of the free."""
    if memory is None:
        return int(SHARE_OF_FREE * available_bytes())
    if isinstance(memory, str):
        return _bytes_from_text(memory)
    return int(checks.number(memory, "memory", minimum=1))


def require(needed: int, budget: int, what: str, remedy: str) -> None:
    """Raise MemoryError where ``what`` needs more bytes than the budget, naming the remedy."""
    if needed > budget:
        raise MemoryError(
            f"{what} needs {gigabytes(needed)}, memory allows {gigabytes(budget)}: {remedy}"
        )


def require_batch(needed: int, budget: int, problems: int, what: str) -> None:
    """Raise MemoryError where a batch of so many problems needs more bytes than the budget."""
    smaller = "use a smaller batch, " + REMEDY.removeprefix("use ")
    require(needed, budget, f"batch {problems} of {what}", smaller if problems > 1 else REMEDY)


def gigabytes(size: int) -> str:
    """Write a number of bytes in GB (10⁹ bytes)."""
    return f"{size / 1e9:.3g} GB"


def available_bytes() -> int:
    """Return how many bytes this process can still take without swapping or being killed."""
    free = _free_on_linux()
    if free is None:
        return _half_of_the_machine()
    return max(0, min([free, *_free_in_control_groups()]))


def give_back() -> None:
    """Return freed memory to the system where the C library keeps it (glibc)."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


def keep_freed_memory() -> None:
    """Let this process take new arrays from memory that others have freed (glibc).

    The C library returns every large array to the system at once, and the next one gets new pages,
    which the system clears, and a virtual machine asks its host for: a quarter of the seconds of a
    run. From one heap of all threads the peak grows by up to 15 %. Threads that run already
    have heaps of their own: workers start with ``KEEPS_FREED_MEMORY`` instead.
    """
    if sys.platform == "linux":
        change = getattr(ctypes.CDLL(None), "mallopt", None)
        for setting, value in _HEAP.items():
            if change is not None:
                change(setting, value)


def _bytes_from_text(text: str) -> int:
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    size = 0
    if match and match[2].upper() in _UNITS:
        size = int(float(match[1]) * _UNITS[match[2].upper()])
    if size <= 0:
        raise ValueError(
            f'memory must be a positive number of bytes or a text such as "4 GB", got {text!r}'
        )
    return size


def _free_on_linux() -> int | None:
    found = re.search(r"^MemAvailable:\s+(\d+) kB", _file_text(Path("/proc/meminfo")), re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def _free_in_control_groups(
    own: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")
) -> list[int]:
    """Return what is left in each cgroup (version 2) around this process that has a limit."""
    found = re.search(r"^0::/(.*)$", _file_text(own), re.MULTILINE)
    if not found:
        return []
    group = root / found[1]
    free = []
    for folder in (group, *group.parents):
        limit = _file_text(folder / "memory.max").strip()
        if folder.is_relative_to(root) and limit.isdigit():
            used = int(_file_text(folder / "memory.current"))
            # The kernel drops cached files before it kills anything: they count as free.
            cached = re.search(
                r"^inactive_file (\d+)", _file_text(folder / "memory.stat"), re.MULTILINE
            )
            free.append(int(limit) - used + (int(cached[1]) if cached else 0))
    return free


def _file_text(path: Path) -> str:
    """Return the content of a file of the system, nothing where there is none."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


def _half_of_the_machine() -> int:
    """Return half of the physical memory where the system tells it, 4 GB where it does not."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, ValueError, OSError):
        return UNKNOWN_MACHINE
