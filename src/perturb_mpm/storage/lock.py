"""A lock on an open file, which ends with the file or with the process."""

from __future__ import annotations

import logging
import sys
from typing import BinaryIO

from perturb_mpm.checks import ExpectedError

_LOG = logging.getLogger(__name__)


class LockedError(ExpectedError):
    """Another process is using a folder or file."""


if sys.platform == "win32":  # pragma: no cover - another system
    import errno
    import msvcrt

    def _lock(file: BinaryIO) -> None:
        file.seek(0)
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError as error:
            if error.errno in {errno.EACCES, errno.EDEADLK}:
                raise BlockingIOError(error.errno, "the file is locked") from error
            raise

else:

    def _lock(file: BinaryIO) -> None:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def lock_file(file: BinaryIO, message: str) -> None:
    """Lock a file for this process alone; ``LockedError`` with the message if another has it.

    Where the file system has no locks, a second process goes unnoticed, and the log says so.
    """
    try:
        _lock(file)
    except BlockingIOError:
        raise LockedError(message) from None
    except OSError as error:
        _LOG.debug("%s cannot be locked (%s): a second process goes unnoticed", file.name, error)
