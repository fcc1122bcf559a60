"""Where a command writes: a folder to put files in, and what it prints."""

from __future__ import annotations

import os
from pathlib import Path

from perturb_mpm.cli.errors import UsageError


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
