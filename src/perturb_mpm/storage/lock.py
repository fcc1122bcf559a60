"""A lock on an open file, which ends with the file or with the process."""

from __future__ import annotations

import sys
from typing import BinaryIO

if sys.platform == "win32":  # pragma: no cover - another system
    import errno
    import msvcrt

    def lock_file(file: BinaryIO) -> None:
        """Lock a file for this process alone; BlockingIOError where another one has it."""
        file.seek(0)
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError as error:
            if error.errno in {errno.EACCES, errno.EDEADLK}:
                raise BlockingIOError(error.errno, "the file is locked") from error
            raise

else:

    def lock_file(file: BinaryIO) -> None:
        """Lock a file for this process alone; BlockingIOError where another one has it."""
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
