"""Where a file comes from: the argument that named it, its digest, and the error it may cause."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedIOBase, BufferedReader
from pathlib import Path
from typing import Any

from perturb_mpm.checks import ExpectedError
from perturb_mpm.storage import DamagedError, error_text, parse_json, require_file

AnyPath = str | os.PathLike[str]
Paths = AnyPath | Sequence[AnyPath]


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

    def damaged(self, reason: BaseException | str) -> InputError:
        """Return the error about a file that ends too early or holds what it should not."""
        words = reason if isinstance(reason, str) else error_text(reason)
        return self.error(f"is damaged, perhaps cut short ({words})")

    def json(self, file: BufferedIOBase) -> Any:  # noqa: ANN401 - whatever the file says
        """Return what an open JSON file says."""
        try:
            return parse_json(file.read(), "it")
        except DamagedError as error:
            words = str(error).removeprefix("it cannot be read: ")
            raise self.error(f"is not JSON ({words})") from error


@contextmanager
def open_source(source: Source) -> Iterator[BufferedReader]:
    """Open a file for reading, or say in one line why that cannot be."""
    try:
        require_file(source.path)
        file = source.path.open("rb")
    except DamagedError:
        raise source.error("must be a file, got a pipe or a device") from None
    except FileNotFoundError:
        raise source.error("there is no such file") from None
    except OSError as error:
        words = os.strerror(error.errno) if error.errno else str(error)
        raise source.error(f"cannot be read ({words})") from error
    with file:
        yield file


def all_paths(paths: Paths) -> list[Path]:
    """Return one path, or several, as a list."""
    if isinstance(paths, str | os.PathLike):
        return [Path(paths)]
    return [Path(path) for path in paths]


def require_readable(sources: Sequence[Source]) -> None:
    """Refuse files that cannot be opened before the first of them is read."""
    for source in sources:
        with open_source(source):
            pass


def sha256(file: BufferedIOBase) -> str:
    """Return the SHA-256 of a file from its beginning, and go back there."""
    file.seek(0)
    digest = hashlib.file_digest(file, "sha256").hexdigest()
    file.seek(0)
    return digest


class Digests:
    """The SHA-256 of every file that was read, under the shortest name that tells it apart."""

    def __init__(self) -> None:
        self._by_path: dict[Path, str] = {}

    def add(self, path: Path, digest: str) -> None:
        """Note the digest of a file; the same path again changes nothing."""
        self._by_path.setdefault(path, digest)

    def named(self) -> dict[str, str]:
        """Return name -> SHA-256 in reading order; folders only where names are the same."""
        names = [path.name for path in self._by_path]
        return {
            path.name if names.count(path.name) == 1 else str(path): digest
            for path, digest in self._by_path.items()
        }
