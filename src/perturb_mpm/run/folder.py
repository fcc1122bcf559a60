"""The folder a run writes to: its files, whether it may be used, and its lock."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from perturb_mpm.files import DICOM_FILES, PROGRAM_FILES, Program, bids_sidecar_names
from perturb_mpm.run.manifest import (
    MANIFEST,
    find_range_files,
    is_begun,
    is_partial,
    list_files,
    remove_files,
    remove_partial,
)
from perturb_mpm.run.settings import OutputError, UnusableRunError
from perturb_mpm.run.state import STATE, STATE_FILES
from perturb_mpm.storage import DAMAGE, fold_name, open_lock, read_json

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

    @property
    def outputs(self) -> dict[str, str]:
        """Plain name -> path in the run's folder."""
        return {n: file.relative_to(self.folder).as_posix() for n, file in self.files.items()}


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


def plan_files(
    layout: Layout, *, left_out: Collection[str] = (), dicom: bool, also: Sequence[Program]
) -> list[str]:
    """Return the path in its folder of every file that a run writes; ``left_out`` are outputs."""
    outputs = {name: file for name, file in layout.outputs.items() if name not in left_out}
    return [
        *outputs.values(),
        *(bids_sidecar_names(outputs) if layout.bids else ()),
        *(DICOM_FILES.values() if dicom else ()),
        *(PROGRAM_FILES[program] for program in also),
        *(f"{STATE}/{name}" for name in STATE_FILES),
    ]


_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_LOCK, _NAME = "lock", "run.json"


def check_folder(layout: Layout, needed: int) -> None:
    """Refuse an output that is no folder or cannot take ``needed`` bytes; change nothing."""
    for folder in (layout.root, *layout.folders, layout.state):
        if folder.is_symlink() and not folder.exists():
            raise OutputError(f"`output` must not be a link that leads nowhere, got {folder}")
        if folder.exists() and not folder.is_dir():
            raise OutputError(f"`output` must be a folder, got the file {folder}; name another")
    for folder in (*layout.folders, layout.state):
        if not folder.resolve().is_relative_to(layout.folder.resolve()):
            raise OutputError(
                f"`output` must not have a link that leads out of it, got {folder}; remove it"
            )
    for file in layout.files.values():
        if file.is_dir():
            raise OutputError(f"`output` must have no folder where a file goes, got {file}")
    existing = next(path for path in (layout.folder, *layout.folder.parents) if path.exists())
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


def check_inputs(
    layout: Layout, inputs: Iterable[Path], also: Sequence[Program], *, overwrite: bool
) -> None:
    """Refuse a file to read that the run would write over or remove; change nothing.

    ``also`` are the programs that the run writes the labels for.
    """
    names = plan_files(layout, dicom=True, also=also)
    names += find_earlier_files(layout) if overwrite and layout.folder.is_dir() else []
    written = {_location(layout.folder / name) for name in names}
    for path in inputs:
        if path.exists() and not written.isdisjoint({_location(path), _location(path.resolve())}):
            raise OutputError(
                f"`output` must not hold an input that the run would write over or remove, got "
                f"{path}; name another folder"
            )


def _location(path: Path) -> Path:
    """Return where a name lies, not what a link of that name leads to."""
    return path.parent.resolve() / fold_name(path.name)


def check_content(layout: Layout, *, resume: bool, overwrite: bool) -> None:
    """Refuse a folder that holds something else, or a run that may be neither resumed nor replaced.

    What is found stays true only while the folder is locked.
    """
    if overwrite or (resume and (layout.state / _NAME).exists()):
        find_earlier_files(layout)
        return
    taken = sorted(file.name for file in _content(layout))
    if not taken:
        return
    if resume:
        raise UnusableRunError(
            f"`output` must be an empty folder or one with a run to resume, got {layout.folder}, "
            f"which holds {taken[0]}; name another or pass `overwrite=True`",
            f"it holds {taken[0]} and no run to resume",
        )
    raise OutputError(
        f"`output` must be an empty folder, got {layout.folder}, which is not: name another, go on "
        "with `resume=True` or begin anew with `overwrite=True`"
    )


def find_earlier_files(layout: Layout) -> list[str]:
    """Return the names of the files of an earlier run in the folder, none where there was none.

    Refuse a folder in which a file of somebody else has the name of one of a run's state.
    """
    folder = layout.folder
    names = list_files(folder)
    if names is None:
        for name in (*(f"{STATE}/{name}" for name in STATE_FILES), MANIFEST):
            if os.path.lexists(folder / name):
                raise OutputError(
                    f"`output` must not hold other files where a run keeps its state, got "
                    f"{folder / name}, which no run of perturb-mpm has listed; move it away or "
                    "name another folder"
                )
        if _is_summary(layout.files["summary"]):
            names = list_files(folder, layout.outputs)
    if names is None:
        return []
    return [*names, *(file.relative_to(folder).as_posix() for file in find_range_files(folder))]


def clear(layout: Layout) -> None:
    """Remove the files of an earlier run and of its corrections, and nothing else."""
    names = find_earlier_files(layout)
    remove_partial(layout.folder, names)
    remove_files(layout.folder, names)
    (layout.folder / MANIFEST).unlink(missing_ok=True)


def _is_summary(file: Path) -> bool:
    """Whether a file is the summary of a run, whose state may have been deleted."""
    try:
        return "problem_sha256" in read_json(file)
    except DAMAGE:
        return False


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
            if list_files(layout.folder) and not is_begun(layout.folder):
                (layout.folder / MANIFEST).unlink(missing_ok=True)
            if not os.fstat(lock.fileno()).st_size:  # else it is a file of the user
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
    missing = [path for path in (folder, *folder.parents) if not path.exists()][::-1]
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
        if error.errno not in _DISK_FULL:
            raise
        raise OutputError(
            f"`output` has no room left ({error.strerror}): make room, then the same with "
            "`resume=True` goes on where it stopped"
        ) from error


def _content(layout: Layout) -> list[Path]:
    """Return what the folder holds besides a lock and a run's list of files.

    Under BIDS names it is only what is this run's.
    """
    if layout.bids is not None:
        found = [file for file in layout.files.values() if file.exists()]
    else:
        found = [
            file
            for file in layout.folder.iterdir()
            if file != layout.state and not is_partial(file)
        ]
    ours = {layout.state / _LOCK}
    if list_files(layout.folder) is not None:
        ours.add(layout.folder / MANIFEST)
    state = [
        file
        for file in (layout.state.iterdir() if layout.state.is_dir() else ())
        if file not in ours and not is_partial(file)
    ]
    return found + ([layout.state] if state else [])
