"""Where a file comes from: the argument that named it, its digest, and the error it may cause."""

from __future__ import annotations

import hashlib
import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np

from perturb_mpm.checks import ExpectedError
from perturb_mpm.storage import DamagedError, error_text, parse_json, require_file

AnyPath = str | os.PathLike[str]
Paths = AnyPath | Sequence[AnyPath]
_LOGGERS = ("nibabel.global", "pydicom", "highdicom")


class InputError(ExpectedError):
    """A file or argument is wrong; one line says which, what it must be and what it got.

    Examples
    --------
    >>> from perturb_mpm.files import InputError
    >>> try:
    ...     pm.read_case("nowhere.nii.gz", "case.npz")
    ... except InputError as error:
    ...     print(error)
    `images` nowhere.nii.gz: there is no such file
    """


@dataclass(frozen=True)
class Source:
    """A file and the argument that named it, as errors name them: `mask` brain.nii.gz."""

    argument: str
    path: Path

    def __str__(self) -> str:
        return f"`{self.argument}` {self.path}"

    def error(self, words: str) -> InputError:
        """Return the error about this file, in one line."""
        return InputError(f"{self}: {' '.join(words.split())}")

    @contextmanager
    def open(self) -> Iterator[BufferedReader]:
        """Open the file for reading, or say in one line why that cannot be."""
        try:
            require_file(self.path)
            file = self.path.open("rb")
        except DamagedError:
            raise self.error("must be a file, got a pipe or a device") from None
        except FileNotFoundError:
            raise self.error("there is no such file") from None
        except OSError as error:
            words = os.strerror(error.errno) if error.errno else str(error)
            raise self.error(f"cannot be read ({words})") from error
        with file:
            yield file

    @contextmanager
    def refuse_damage(self, words: str = "is damaged, perhaps cut short") -> Iterator[None]:
        """Turn whatever damaged bytes raise or print inside the block into one line."""
        try:
            with quiet_libraries():
                yield
        except (InputError, ImportError):
            raise
        except DamagedError as error:
            raise self.error(f"is too large: {error}") from error
        except Exception as error:  # libraries have errors of their own that are nothing else
            raise self.error(f"{words} ({error_text(error)})") from error

    def read_json(self) -> Any:  # noqa: ANN401 - whatever the file says
        """Return what a JSON file says."""
        with self.open() as file:
            try:
                return parse_json(file.read(), "it")
            except DamagedError as error:
                words = str(error).removeprefix("it cannot be read: ")
                raise self.error(f"is not JSON ({words})") from error


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Keep libraries from printing and warning: our one line says it, or it does not matter.

    Without handlers Python would print the lines of their loggers itself. What float32 cannot hold
    is infinite, and found later.
    """
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, disabled in zip(loggers, before):
            logger.disabled = disabled


def all_paths(paths: Paths) -> list[Path]:
    """Return one path, or several, as a list."""
    if isinstance(paths, str | os.PathLike):
        return [Path(paths)]
    return [Path(path) for path in paths]


def require_readable(sources: Sequence[Source]) -> None:
    """Refuse files that cannot be opened before the first of them is read."""
    for source in sources:
        with source.open():
            pass


class Digests:
    """The SHA-256 of every file that was read, under the shortest name that tells it apart."""

    def __init__(self) -> None:
        self._by_path: dict[Path, str] = {}

    def add(self, source: Source) -> None:
        """Take the digest of a file; the same path again changes nothing."""
        if source.path not in self._by_path:
            with source.open() as file:
                self._by_path[source.path] = hashlib.file_digest(file, "sha256").hexdigest()

    def take(self, other: Digests) -> None:
        """Take the digests of another, after those that are here."""
        self._by_path |= {**other._by_path, **self._by_path}

    def by_name(self) -> dict[str, str]:
        """Return name -> SHA-256 in reading order; folders only where names are the same."""
        names = [path.name for path in self._by_path]
        return {
            path.name if names.count(path.name) == 1 else str(path): digest
            for path, digest in self._by_path.items()
        }
