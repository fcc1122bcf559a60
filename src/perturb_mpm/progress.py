"""How far a long computation is: one way to say it, from the sampler to the command line."""

from __future__ import annotations

import sys
import time
from typing import Protocol


class Progress(Protocol):
    """What long computations call: how much of the total is done.

    Examples
    --------
    >>> def show(done, total):
    ...     print(f"{done:g} of {total:g}")
    >>> crf = pm.DenseCRF(pm.unary_from_logits(np.zeros((2, 3))))
    >>> posterior = pm.sample(crf, samples=4, batch=2, engine="reference", progress=show)
    2 of 4
    4 of 4
    """

    def __call__(self, done: float, total: float, /) -> object:
        """Take what is done of the total, in the same unit."""


class StagedProgress(Progress, Protocol):
    """What a computation of several stages takes: the name of each stage, and warnings too."""

    def stage(self, words: str, /) -> None:
        """Take what is being done now, as in "writing the report"."""

    def warn(self, words: str, /) -> None:
        """Take something that the user should know."""


class Silent:
    """Shows nothing."""

    def __call__(self, done: float, total: float, /) -> None:
        """Show nothing."""

    def stage(self, words: str, /) -> None:
        """Show nothing."""

    def warn(self, words: str, /) -> None:
        """Show nothing."""


SILENT = Silent()
"""Where nobody asks for progress."""


class StageClock:
    """Passes everything on, and notes how long each stage takes."""

    def __init__(self, show: StagedProgress) -> None:
        self._show = show
        self._began = self._since = time.monotonic()
        self._name = ""
        self.seconds: dict[str, float] = {}

    def __call__(self, done: float, total: float, /) -> None:
        """Pass on how much is done."""
        self._show(done, total)

    def stage(self, words: str, /) -> None:
        """Begin a stage, which ends the one before."""
        self._note()
        self._name = words
        self._show.stage(words)

    def warn(self, words: str, /) -> None:
        """Pass on a warning."""
        self._show.warn(words)

    def stop(self) -> dict[str, float]:
        """End the last stage; return the seconds of each, and of all together as ``total``."""
        self._note()
        total = round(time.monotonic() - self._began, 3)
        return {**{name: round(s, 3) for name, s in self.seconds.items()}, "total": total}

    def _note(self) -> None:
        now = time.monotonic()
        if self._name:
            self.seconds[self._name] = self.seconds.get(self._name, 0.0) + now - self._since
        self._since = now


class StatusLine:
    """Shows one line on stderr, again and again: how much is done, and the time that is left."""

    def __init__(self) -> None:
        self._began = self._said = time.monotonic()

    def __call__(self, done: float, total: float, /) -> None:
        """Write the line, at most four times a second; end it when all is done."""
        now, finished = time.monotonic(), done >= total
        if now - self._said < _SECONDS_BETWEEN_LINES and not finished:
            return
        self._said = now
        left = (now - self._began) / done * (total - done) if done else 0.0
        rest = f", about {left:.0f} s left" if left >= 1 else ""
        sys.stderr.write(f"\r{done:g} of {total:g}{rest}".ljust(_WIDTH) + "\n" * finished)
        sys.stderr.flush()


_SECONDS_BETWEEN_LINES = 0.25
_WIDTH = 40


def progress_from(progress: Progress | bool | None) -> Progress | None:  # noqa: FBT001
    """Return what to call: True stands for a line on stderr, False and None for nothing."""
    if progress is None or progress is False:
        return None
    if progress is True:
        return StatusLine()
    if not callable(progress):
        raise TypeError(
            "`progress` must be True, False or a function of done and total, got "
            f"{type(progress).__name__}"
        )
    return progress
