"""The folder a run writes to: its files, whether it may be used, and held against a second run."""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from perturb_mpm.files import FILES as DICOM_FILES
from perturb_mpm.run.settings import OutputError
from perturb_mpm.run.state import STATE

PLAIN_NAMES = {
    "labels": "labels.nii.gz",
    "marginals": "marginals.nii.gz",
    "entropy": "entropy.nii.gz",
    "uncertainty": "uncertainty.nii.gz",
    "volumes": "volumes.csv",
    "summary": "summary.json",
    "report": "report.html",
}


@dataclass(frozen=True)
class BidsNames:
    """The subject and session that BIDS names carry."""

    subject: str
    session: str | None = None


@dataclass(frozen=True)
class Layout:
    """The folder a user named, the one of this run inside it, and the name of every output."""

    root: Path
    run: Path  # the root itself, or the subject's (and session's) folder in it
    files: Mapping[str, Path]  # plain name -> file
    bids: BidsNames | None = None

    @property
    def state(self) -> Path:
        """The folder of what is needed to go on."""
        return self.run / STATE

    @property
    def folders(self) -> tuple[Path, ...]:
        """Every folder that gets files."""
        return tuple(dict.fromkeys([self.run, *(file.parent for file in self.files.values())]))


def layout_of(folder: Path, bids: BidsNames | None = None) -> Layout:
    """Return the layout; nothing is made yet."""
    if bids is None:
        return Layout(folder, folder, {name: folder / file for name, file in PLAIN_NAMES.items()})
    from perturb_mpm.files import bids_names

    run = folder / f"sub-{bids.subject}"
    if bids.session is not None:
        run /= f"ses-{bids.session}"
    names = bids_names(bids.subject, bids.session)
    return Layout(folder, run, {name: folder / names[name] for name in PLAIN_NAMES}, bids)


_LOG = logging.getLogger("perturb_mpm")
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_PARTIAL = re.compile(r"\..+\.[0-9a-f]{8}\.part")  # what a killed ``atomic_open`` leaves


def check_usable(layout: Layout, needed: int, *, resume: bool, overwrite: bool) -> None:
    """Refuse a folder that cannot take ``needed`` bytes or holds something else; change nothing."""
    for folder in (layout.root, *layout.folders, layout.state):
        if folder.exists() and not folder.is_dir():
            raise OutputError(f"--output must be a folder, got the file {folder}; name another")
    existing = next(place for place in (layout.run, *layout.run.parents) if place.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        raise OutputError(
            f"--output must be a folder you may write to, got {layout.run}: no write permission "
            f"in {existing}"
        )
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise OutputError(
            f"--output must have room for about {needed / 1e6:.0f} MB, got {free / 1e6:.0f} MB "
            f"free in {existing}: the disk is full; make room or name another folder"
        )
    _check_content(layout, resume=resume, overwrite=overwrite)


def clear(layout: Layout) -> None:
    """Remove the outputs and the state of an earlier run, and nothing else.

    The name of that run goes last: cut short, the folder still says what is in it.
    """
    dicom = (layout.run / name for name in DICOM_FILES.values())
    for file in (*layout.files.values(), *dicom):
        file.unlink(missing_ok=True)
    remove_partial(layout)
    if layout.state.is_dir():
        for file in sorted(layout.state.iterdir(), key=lambda file: file.name == "run.json"):
            if file.name != "lock":
                file.unlink()


def remove_partial(layout: Layout) -> None:
    """Remove what was being written when an earlier run was killed."""
    for folder in (*layout.folders, layout.state):
        if folder.is_dir():
            for file in folder.iterdir():
                if _PARTIAL.fullmatch(file.name):
                    file.unlink(missing_ok=True)


@contextmanager
def held(layout: Layout) -> Iterator[None]:
    """Make the folders, and hold them against a second run at the same time."""
    import fcntl

    for folder in (*layout.folders, layout.state):
        folder.mkdir(parents=True, exist_ok=True)
    with (layout.state / "lock").open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OutputError(
                f"--output must not be in use, got {layout.run}, where another run is writing"
            ) from None
        except OSError:
            _LOG.debug("%s cannot be locked: a second run would not be noticed", layout.state)
        yield


@contextmanager
def room_expected() -> Iterator[None]:
    """Turn an error for want of room into one that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        raise OutputError(
            f"--output has no room left ({error.strerror}): make room, then the same command with "
            "--resume goes on where it stopped"
        ) from error


def _check_content(layout: Layout, *, resume: bool, overwrite: bool) -> None:
    if overwrite or not layout.run.is_dir():
        return
    started = (layout.state / "run.json").exists()
    if resume and started:
        return
    taken = sorted(file.name for file in _content(layout))
    if not taken and (resume or not layout.state.exists()):
        return
    if resume:
        raise OutputError(
            f"--output must be an empty folder or one with a run to resume, got {layout.run}, "
            f"which holds {taken[0]}; name another or add --overwrite"
        )
    remedy = "name another, go on with --resume or begin anew with --overwrite"
    raise OutputError(f"--output must be an empty folder, got {layout.run}, which is not: {remedy}")


def _content(layout: Layout) -> list[Path]:
    """Return what the folder holds besides a state; under BIDS names only what is this run's."""
    if layout.bids is not None:
        return [file for file in layout.files.values() if file.exists()]
    return [
        file
        for file in layout.run.iterdir()
        if file != layout.state and not _PARTIAL.fullmatch(file.name)
    ]
