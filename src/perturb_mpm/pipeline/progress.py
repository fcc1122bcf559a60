"""What a run tells while it goes on."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Something that shows how far a run is."""

    def stage(self, words: str) -> None:
        """Take what is being done now, as in "writing the report"."""

    def warn(self, words: str) -> None:
        """Take something that the user should know."""

    def samples(self, done: int, total: int) -> None:
        """Take how many of the samples are drawn."""


class Silent:
    """Shows nothing."""

    def stage(self, words: str) -> None:
        """Show nothing."""

    def warn(self, words: str) -> None:
        """Show nothing."""

    def samples(self, done: int, total: int) -> None:
        """Show nothing."""
