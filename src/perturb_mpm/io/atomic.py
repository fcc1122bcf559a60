"""Files that appear whole under their name, or not at all."""

from __future__ import annotations

import io
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_open(path: str | os.PathLike[str]) -> Iterator[io.BufferedRandom]:
    """Open a binary file that takes the name ``path`` only once all of it is on disk.

    Until then the bytes go to a hidden file in the same folder, which is removed when the block
    raises or is interrupted. A file that already has the name is replaced in one step.
    """
    final = Path(path)
    partial = final.with_name(f".{final.name}.{secrets.token_hex(4)}.part")
    # Opened by hand and not by tempfile, whose files only their owner may read.
    file = partial.open("x+b")
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(final)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    _sync_folder(final.parent)


def _sync_folder(folder: Path) -> None:
    """Make the new name itself survive a power cut, where the system can open folders."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
