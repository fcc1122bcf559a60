"""The installed version."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed


@cache
def version() -> str:
    """Return the version of the installed package."""
    try:
        return installed("perturb-mpm")
    except PackageNotFoundError:
        return "0+unknown"
