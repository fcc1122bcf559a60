"""Where and how a problem is computed: one value object for every interface."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from perturb_mpm import checks
from perturb_mpm.engines.memory import resolve_budget
from perturb_mpm.engines.protocol import Accuracy
from perturb_mpm.fields import check_settings, one_of, setting

Engine = Literal["auto", "reference", "cpu", "gpu"]

MOST_ITERATIONS = 10**5
MOST_THREADS = 4096
MOST_PROBLEMS = 65536


def available_cores() -> int:
    """Return the number of cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass(frozen=True)
class Compute:
    """Where and how to compute; all but engine and accuracy change no result.

    Examples
    --------
    >>> pm.Compute(engine="cpu", threads=2, memory="4 GB").accuracy
    'calibrated'
    """

    engine: Engine = setting("auto", "Where to compute; auto takes what is there", one_of(Engine))
    accuracy: Accuracy = setting(
        "calibrated",
        "How close the filter comes to the Gaussian kernels; exact visits all pairs",
        one_of(Accuracy),
    )
    batch: int | None = setting(
        None,
        "How many samples are solved at once",
        partial(checks.integer, minimum=1, maximum=MOST_PROBLEMS),
        unset="planned from the memory",
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
        'How much memory may be taken, as in "4 GB"',
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

    def __post_init__(self) -> None:
        check_settings(self)


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
