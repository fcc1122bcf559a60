"""What a reader raises when a file cannot be what it was given as."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


class InputError(ValueError):
    """A file or option is wrong; one line says which, what it must be and what it got."""


@dataclass(frozen=True)
class Source:
    """A file and the command-line option that named it, as errors name them."""

    option: str
    path: Path

    def __str__(self) -> str:
        return f"{self.option} {self.path}"

    def error(self, words: str) -> InputError:
        """Return the error about this file, in one line."""
        return InputError(f"{self}: {' '.join(words.split())}")
