"""Prepared kernels stored in a folder for the next time, named by all that they are made of.

The folder is bounded: what was not used for longest goes first. Whatever happens to it, a run goes
on: a file that is missing, damaged or foreign is made again, and where nothing can be written
nothing is stored. Processes may share it: files appear whole, and a file that another process
removes is made again.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import numpy as np
from llvmlite.binding import get_host_cpu_name
from numpy.typing import NDArray

from perturb_mpm.engines.cpu.chain import Filter
from perturb_mpm.engines.cpu.compile import sources
from perturb_mpm.engines.cpu.layout import Taps
from perturb_mpm.model import digest
from perturb_mpm.storage import DamagedError, read_arrays, write_arrays
from perturb_mpm.version import version

log = logging.getLogger("perturb_mpm")

LIMIT = 8 * 10**9  # bytes of a folder
RESERVE = 10**9  # bytes that are left free on the disk
WORTH_KEEPING = 30_000  # voxels: kernels of fewer are made about as quickly as they are read
_HEADERS = 1000  # bytes of a file around each array
# Only files of these names, finished or not, are ever removed.
_OURS = re.compile(r"[0-9a-f]{64}\.npz|\.[0-9a-f]{64}\.npz\.[0-9a-f]+\.part")
_TAPS_ARRAYS = ("pointers", "columns", "coefficients")
_FILTER_ARRAYS = ("columns", "coefficients", "total", "diagonal")

Arrays = dict[str, NDArray[Any]]
Made = TypeVar("Made")


class KernelStore:
    """A folder of prepared kernels, of at most ``limit`` bytes; without a folder nothing is stored.

    Parts are all that an entry depends on: arrays and plain values.
    """

    def __init__(self, folder: str | os.PathLike[str] | None, limit: int = LIMIT) -> None:
        self._folder = None if folder is None else Path(folder)
        self._limit = limit

    def filter(
        self, make: Callable[[], Filter], voxels: int, read_at: int, *parts: object
    ) -> Filter:
        """Return the filter of so many voxels, read at some of them, as ``make`` makes it."""

        def read(arrays: Arrays) -> Filter:
            return _read_filter(arrays, voxels, read_at)

        return self._entry("filter", parts, make, read, _to_arrays)

    def choice(self, make: Callable[[], int], count: int, *parts: object) -> int:
        """Return the number below ``count`` that ``make`` finds."""

        def read(arrays: Arrays) -> int:
            _require(arrays["choice"], np.int64, ())
            return range(count)[int(arrays["choice"])]

        return self._entry("choice", parts, make, read, _choice_to_arrays)

    def _entry(
        self,
        kind: str,
        parts: tuple[object, ...],
        make: Callable[[], Made],
        read: Callable[[Arrays], Made],
        to_arrays: Callable[[Made], Arrays],
    ) -> Made:
        """Return what is stored under its name, or else what is made, which is then stored."""
        if self._folder is None:
            return make()
        path = self._folder / f"{digest(_program_and_machine(), kind, *parts)}.npz"
        with suppress(DamagedError, LookupError, TypeError, ValueError):
            found = read(read_arrays(path, limit=self._limit))
            with suppress(OSError):
                os.utime(path)  # it was used just now
            return found
        made = make()
        self._write(path, to_arrays(made))
        return made

    def _write(self, path: Path, arrays: Arrays) -> None:
        size = sum(array.nbytes + _HEADERS for array in arrays.values())
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if size > self._limit or shutil.disk_usage(path.parent).free < size + RESERVE:
                return
            self._free_space(path.parent, size)
            write_arrays(path, arrays, to_cache=True)
        except OSError as error:
            _say_once(str(path.parent), error.strerror or str(error))

    def _free_space(self, folder: Path, size: int) -> None:
        """Remove what was not used for longest, until so many bytes are free."""
        found = []
        for path in folder.iterdir():
            with suppress(OSError):  # another process has removed it
                if _OURS.fullmatch(path.name):
                    about = path.lstat()
                    found.append((about.st_mtime_ns, about.st_size, path))
        taken = sum(length for _, length, _ in found)
        for _, length, path in sorted(found):
            if taken + size <= self._limit:
                return
            with suppress(OSError):
                path.unlink()
                taken -= length


NO_STORE = KernelStore(None)


def store_in(folder: str | os.PathLike[str] | None, voxels: int) -> KernelStore:
    """Return the store of a folder for a problem of so many voxels, if it is worth one."""
    return KernelStore(folder) if voxels >= WORTH_KEEPING else NO_STORE


@cache
def _program_and_machine() -> tuple[str, ...]:
    """Return what makes another program or machine of this one, whose kernels may differ."""
    return version(), sources(), get_host_cpu_name()


_warnings_given: set[tuple[str, str]] = set()
_one_at_a_time = Lock()  # filters are prepared in threads, and two may fail at once


def _say_once(folder: str, reason: str) -> None:
    with _one_at_a_time:
        known = (folder, reason) in _warnings_given
        _warnings_given.add((folder, reason))
    if not known:
        log.warning("prepared kernels cannot be stored in %s: %s", folder, reason)


def _choice_to_arrays(made: int) -> Arrays:
    return {"choice": np.array(made, dtype=np.int64)}


def _to_arrays(made: Filter) -> Arrays:
    stages = {
        f"{part}_{number}": getattr(stage, part)
        for number, stage in enumerate(made.stages)
        for part in _TAPS_ARRAYS
    }
    return {**stages, **{part: getattr(made, part) for part in _FILTER_ARRAYS}}


def _read_filter(arrays: Arrays, voxels: int, read_at: int) -> Filter:
    """Return the filter of some arrays; ValueError where it would read beyond any of them."""
    stages, rows = [], voxels
    count, rest = divmod(len(arrays) - len(_FILTER_ARRAYS), len(_TAPS_ARRAYS))
    for number in range(count):
        pointers, columns, coefficients = (arrays[f"{part}_{number}"] for part in _TAPS_ARRAYS)
        _require(pointers, np.int64, (len(pointers),))
        _require(columns, np.int32, (int(pointers[-1]),))
        _require(coefficients, np.float32, columns.shape)
        if pointers[0] != 0 or (np.diff(pointers) < 0).any():
            raise ValueError("rows must follow each other")
        _require_below(columns, rows)
        stages.append(Taps(pointers, columns, coefficients))
        rows = len(pointers) - 1
    columns, coefficients, total, diagonal = (arrays[part] for part in _FILTER_ARRAYS)
    _require(columns, np.int32, (read_at, columns.shape[-1]))
    _require(coefficients, np.float32, columns.shape)
    _require(total, np.float32, (read_at,))
    _require(diagonal, np.float32, (read_at,))
    _require_below(columns, rows)
    if rest or not stages:
        raise ValueError("there must be a stage at least, and nothing else")
    return Filter(tuple(stages), rows, columns, coefficients, total, diagonal)


def _require(array: NDArray[Any], dtype: type[np.generic], shape: tuple[int, ...]) -> None:
    if array.dtype != dtype or array.shape != shape or not array.flags.c_contiguous:
        raise ValueError(f"an array must be {shape} of {dtype}, got {array.shape} {array.dtype}")


def _require_below(columns: NDArray[np.int32], rows: int) -> None:
    if columns.size and not (columns.min() >= 0 and columns.max() < rows):
        raise ValueError(f"columns must lie below {rows}")
