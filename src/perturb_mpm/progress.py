"""How far a long computation is: one way to say it, from the sampler to the command line."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """What long computations call: how much of the total is done."""

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
