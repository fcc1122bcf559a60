"""A lock on a file, which ends when the file is closed or with the process."""

from __future__ import annotations

import errno
import logging
import os
import stat
import sys
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from perturb_mpm.checks import ExpectedError

_LOG = logging.getLogger(__name__)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_NO_WAITING = getattr(os, "O_NONBLOCK", 0)


class LockedError(ExpectedError):
    """Another process is using a folder or file."""


if sys.platform == "win32":  # pragma: no cover - another system
    import msvcrt

    def _lock(file: BinaryIO, *, shared: bool) -> None:
        if shared:
            return  # Windows knows none that several may have
        file.seek(0)
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError as error:
            if error.errno in {errno.EACCES, errno.EDEADLK}:
                raise BlockingIOError(error.errno, "the file is locked") from error
            raise

else:

    def _lock(file: BinaryIO, *, shared: bool) -> None:
        import fcntl

        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)


def open_lock(path: Path, message: str, *, shared: bool = False) -> BinaryIO:
    """Return a file, made where it is missing, that is locked for this process while it is open.

    If another process has it, ``LockedError`` says ``message``. A ``shared`` lock excludes only
    those that are not (on Windows it excludes nobody). A link, a pipe or a device in its
    stead is refused. Where the file system has no locks, a second process goes unnoticed, and the
    log says so.
    """
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            file = _open_regular(path)
        except FileNotFoundError:
            continue  # whoever had the lock has removed the folder meanwhile
        try:
            _lock(file, shared=shared)
        except BlockingIOError:
            file.close()
            raise LockedError(message) from None
        except OSError as error:
            _LOG.debug("%s cannot be locked (%s): a second process goes unnoticed", path, error)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        file.close()  # it was removed before we had its lock


def _open_regular(path: Path) -> BinaryIO:
    """Open a file without following a link and without waiting for the other end of a pipe."""
    refusal = ExpectedError(f"{path} must be a file, got a link, a pipe or a device: remove it")
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | _NO_LINK | _NO_WAITING
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK, errno.ENXIO):
            raise refusal from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise refusal
    return os.fdopen(descriptor, "ab")
