"""What a run raises when it cannot go on: one line that says why and what to do."""

from __future__ import annotations


class SettingsError(ValueError):
    """A parameter is wrong, or does not fit the case."""


class OutputError(Exception):
    """The output folder cannot be used."""
