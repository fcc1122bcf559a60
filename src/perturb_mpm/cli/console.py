"""What commands share: usage errors, the output folder, progress on a terminal or in a log."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

    from perturb_mpm.run.drawing import Progress


class UsageError(Exception):
    """An argument is wrong; the message says which, what it must be and what it got."""


def prepare_folder(folder: Path) -> Path:
    """Make ``folder`` where it is missing, and make sure that files can be put there."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--output must be a folder, got the file {folder}; name another one")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"--output must be a folder that can be made, got {folder}: {error.strerror}"
        ) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"--output must be a folder you may write to, got {folder}")
    return folder


_SECONDS_BETWEEN_LINES = 5.0


@contextmanager
def shown_progress(*, quiet: bool) -> Iterator[Progress]:
    """Show progress on stderr in the form that suits it."""
    from perturb_mpm.run.drawing import Silent

    if quiet:
        yield Silent()
    elif not sys.stderr.isatty():
        yield Lines()
    else:
        with _rich_bar() as bar:
            yield Bar(bar)


class Lines:
    """Plain lines: each stage, and during sampling one every few seconds."""

    def __init__(self) -> None:
        self._said = self._began = time.monotonic()
        self._first: int | None = None

    def stage(self, words: str) -> None:
        """Print what is being done now."""
        _print(words)
        self._said = self._began = time.monotonic()
        self._first = None

    def warn(self, words: str) -> None:
        """Print a warning."""
        _print(f"warning: {words}")

    def samples(self, done: int, total: int) -> None:
        """Print how many samples are drawn, unless that was said just now."""
        now = time.monotonic()
        if self._first is None:
            self._first, self._began = done, now
        if now - self._said < _SECONDS_BETWEEN_LINES and done < total:
            return
        self._said = now
        drawn = done - self._first
        left = (now - self._began) / drawn * (total - done) if drawn else None
        rest = f", about {left:.0f} s left" if left else ""
        _print(f"{done} of {total} samples{rest}")


class Bar:
    """A bar with the remaining time; warnings stay above it."""

    def __init__(self, bar: RichProgress) -> None:
        self._bar = bar
        self._task = bar.add_task("", total=None)

    def stage(self, words: str) -> None:
        """Name what is being done now; how much of it there is, is not known yet."""
        self._bar.remove_task(self._task)
        self._task = self._bar.add_task(words, total=None)

    def warn(self, words: str) -> None:
        """Print a warning above the bar."""
        self._bar.console.print(f"warning: {words}", highlight=False, markup=False)

    def samples(self, done: int, total: int) -> None:
        """Move the bar."""
        self._bar.update(self._task, completed=done, total=total, refresh=True)


def _print(words: str) -> None:
    sys.stderr.write(f"perturb-mpm: {words}\n")
    sys.stderr.flush()


@contextmanager
def _rich_bar() -> Iterator[RichProgress]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        yield bar
