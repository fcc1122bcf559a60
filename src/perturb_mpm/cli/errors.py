"""What a command raises when its arguments cannot be right."""

from __future__ import annotations


class UsageError(Exception):
    """An argument is wrong; the message says which, what it must be and what it got."""
