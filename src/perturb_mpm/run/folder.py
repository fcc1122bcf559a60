"""The folder a run writes to: its files, whether it may be used, and its lock."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from perturb_mpm.files import DICOM_FILES
from perturb_mpm.run.settings import OutputError
from perturb_mpm.run.state import STATE
from perturb_mpm.storage import open_lock

_ENDING = ".nii.gz"
PLAIN_NAMES = {
    "labels": "labels.nii.gz",
    "marginals": "marginals.nii.gz",
    "entropy": "entropy.nii.gz",
    "uncertainty": "uncertainty.nii.gz",
    "mutual_information": "mutual_information.nii.gz",  # of an ensemble
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
    folder: Path  # the root itself, or the subject's (and session's) folder in it
    files: Mapping[str, Path]  # plain name -> file
    bids: BidsNames | None = None

    @property
    def state(self) -> Path:
        """The folder of what is needed to go on."""
        return self.folder / STATE

    @property
    def folders(self) -> tuple[Path, ...]:
        """Every folder that gets files."""
        return tuple(dict.fromkeys([self.folder, *(file.parent for file in self.files.values())]))


def plan_layout(folder: Path, bids: BidsNames | None = None, ending: str = _ENDING) -> Layout:
    """Return the layout; nothing is made yet. Under BIDS names maps always end in .nii.gz."""
    if bids is None:
        names = {name: file.replace(_ENDING, ending) for name, file in PLAIN_NAMES.items()}
        return Layout(folder, folder, {name: folder / file for name, file in names.items()})
    from perturb_mpm.files import bids_names

    own = folder / f"sub-{bids.subject}"
    if bids.session is not None:
        own /= f"ses-{bids.session}"
    names = bids_names(bids.subject, bids.session)
    return Layout(folder, own, {name: folder / names[name] for name in PLAIN_NAMES}, bids)


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_PARTIAL = re.compile(r"\..+\.[0-9a-f]{8}\.part")  # what a killed ``atomic_open`` leaves
_LOCK, _NAME = "lock", "run.json"


def check_folder(layout: Layout, needed: int) -> None:
    """Refuse a place that is no folder or cannot take ``needed`` bytes; change nothing."""
    for folder in (layout.root, *layout.folders, layout.state):
        if folder.exists() and not folder.is_dir():
            raise OutputError(f"`output` must be a folder, got the file {folder}; name another")
    existing = next(place for place in (layout.folder, *layout.folder.parents) if place.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        raise OutputError(
            f"`output` must be a folder you may write to, got {layout.folder}: no write "
            f"permission in {existing}"
        )
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise OutputError(
            f"`output` must have room for about {needed / 1e6:.0f} MB, got {free / 1e6:.0f} MB "
            f"free in {existing}: the disk is full; make room or name another folder"
        )


def check_output(
    output: Path, *, bids: BidsNames | None = None, resume: bool = False, overwrite: bool = False
) -> None:
    """Refuse a folder that a run could not use, before anything is read; change nothing."""
    layout = plan_layout(output, bids)
    check_folder(layout, needed=0)
    if layout.folder.is_dir():
        check_content(layout, resume=resume, overwrite=overwrite)


def check_content(layout: Layout, *, resume: bool, overwrite: bool) -> None:
    """Refuse a folder that holds something else, or a run that may be neither resumed nor replaced.

    What is found stays true only while the folder is locked.
    """
    if overwrite or (resume and (layout.state / _NAME).exists()):
        return
    taken = sorted(file.name for file in _content(layout))
    if not taken:
        return
    if resume:
        raise OutputError(
            f"`output` must be an empty folder or one with a run to resume, got {layout.folder}, "
            f"which holds {taken[0]}; name another or pass `overwrite=True`"
        )
    raise OutputError(
        f"`output` must be an empty folder, got {layout.folder}, which is not: name another, go on "
        "with `resume=True` or begin anew with `overwrite=True`"
    )


def clear(layout: Layout) -> None:
    """Remove the outputs and the state of an earlier run, and nothing else.

    The name of that run goes last: cut short, the folder still says what is in it.
    """
    dicom = (layout.folder / name for name in DICOM_FILES.values())
    for file in (*layout.files.values(), *dicom):
        file.unlink(missing_ok=True)
    remove_partial(layout)
    for file in sorted(layout.state.iterdir(), key=lambda file: file.name == _NAME):
        if file.name != _LOCK:
            file.unlink()


def remove_partial(layout: Layout) -> None:
    """Remove what was being written when an earlier run was killed."""
    for folder in (*layout.folders, layout.state):
        if folder.is_dir():
            for file in folder.iterdir():
                if _PARTIAL.fullmatch(file.name):
                    file.unlink(missing_ok=True)


@contextmanager
def lock_folder(layout: Layout) -> Iterator[None]:
    """Lock the folder, made where it is missing, against a second run at the same time.

    Where the block ends in an error before a run is begun, no folder is left that was not there.
    """
    made: list[Path] = []
    for folder in (*layout.folders, layout.state):
        made += _make_folders(folder)
    lock = _open_lock(layout.folder)
    for folder in layout.folders:  # a run that was refused meanwhile may have removed them
        folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        if not (layout.state / _NAME).exists():
            (layout.state / _LOCK).unlink(missing_ok=True)
            _remove_empty(made)
        raise
    finally:
        lock.close()


def lock_run(folder: Path) -> BinaryIO | None:
    """Lock the folder of a run against runs and viewers, until the returned file is closed.

    Return None where the folder may only be read: nobody can change anything there.
    """
    try:
        return _open_lock(folder)
    except OSError as error:
        if os.access(folder, os.W_OK):
            raise OutputError(f"{folder} cannot be locked: {error}") from error
        return None


def _open_lock(folder: Path) -> BinaryIO:
    return open_lock(
        folder / STATE / _LOCK,
        f"`output` must not be in use, got {folder}: a run or viewer is using it",
    )


def _make_folders(folder: Path) -> list[Path]:
    """Make a folder and its parents; return those that were missing, outermost first."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()][::-1]
    folder.mkdir(parents=True, exist_ok=True)
    return missing


def _remove_empty(folders: list[Path]) -> None:
    for folder in reversed(folders):
        with suppress(OSError):  # it is not empty, or gone already
            folder.rmdir()


@contextmanager
def explain_full_disk() -> Iterator[None]:
    """Turn an error for want of room into one that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        raise OutputError(
            f"`output` has no room left ({error.strerror}): make room, then the same with "
            "`resume=True` goes on where it stopped"
        ) from error


def _content(layout: Layout) -> list[Path]:
    """Return what the folder holds besides a lock; under BIDS names only what is this run's."""
    if layout.bids is not None:
        found = [file for file in layout.files.values() if file.exists()]
    else:
        found = [
            file
            for file in layout.folder.iterdir()
            if file != layout.state and not _PARTIAL.fullmatch(file.name)
        ]
    state = [
        file
        for file in (layout.state.iterdir() if layout.state.is_dir() else ())
        if file.name != _LOCK and not _PARTIAL.fullmatch(file.name)
    ]
    return found + ([layout.state] if state else [])
