"""The installed version."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed


def version() -> str:
    """Return the version of the installed package."""
    try:
        return installed("perturb-mpm")
    except PackageNotFoundError:
        return "0+unknown"
