"""``state/files.json``: the name of every file that a run and its corrections write.

A name is listed before its file is written, so that a process that is killed leaves no file that is
not listed. What begins anew in the folder removes the listed files and no others: nothing of an
earlier patient stays, and nothing of the user goes. Names are relative to the run's folder; a name
stays listed when its file is gone.

Two kinds of files go by a pattern instead: ranges of samples that others draw at the same time
(``state/part-0-10.npz``), and what a killed process leaves of a listed file.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from perturb_mpm.files import DICOM_FILES, ENDINGS, PROGRAM_FILES, bids_sidecar_names
from perturb_mpm.run.state import CORRECTED_SUMMARY, FORMAT, STATE, STATE_FILES, path_inside
from perturb_mpm.storage import DAMAGE, read_json, write_json

MANIFEST = f"{STATE}/files.json"
_MANIFEST_FORMAT = "perturb-mpm files"
_PARTIAL = re.compile(r"\.(.+)\.[0-9a-f]{8}\.part")  # what a killed ``atomic_open`` leaves
_RANGE = re.compile(r"part-\d+-\d+(-labels)?\.npz")
_OF_CORRECTIONS = (  # before they were listed
    *("labels-corrected.nii.gz", "entropy-corrected.nii.gz", "report-corrected.html"),
    *(CORRECTED_SUMMARY, "edits.json"),
    *(f"{STATE}/{name}" for name in ("correction.npz", "correction.json")),
)


def register_files(folder: Path, names: Iterable[str]) -> None:
    """List files that are about to be written to the locked folder of a run.

    Parameters
    ----------
    folder
        The run's folder.
    names
        Their paths in it, such as ``state/run.json``; names that are listed already stay so.
    """
    listed = list_files(folder) or ()
    every = dict.fromkeys([*listed, *(PurePosixPath(name).as_posix() for name in names)])
    if tuple(every) != _read_manifest(folder):
        write_json(folder / MANIFEST, {"format": _MANIFEST_FORMAT, "files": list(every)})


def list_files(folder: Path, outputs: Mapping[str, str] | None = None) -> tuple[str, ...] | None:
    """Return the names of the files of the run in a folder; None where no run is known.

    A run without a list, or with a damaged one, has the names that were known before there were
    lists. ``outputs`` are the names of its outputs where nothing in the folder says them.
    """
    listed = _read_manifest(folder)
    if listed is not None:
        return listed
    outputs = _read_outputs(folder) or outputs
    return None if outputs is None else tuple(_known_names(folder, outputs))


def is_begun(folder: Path) -> bool:
    """Whether any of the listed files exists; a run that was killed at once leaves its list."""
    return any((folder / name).exists() for name in _read_manifest(folder) or ())


def find_range_files(folder: Path) -> Iterator[Path]:
    """Yield the files with ranges of samples that are not yet among the run's votes."""
    for file in sorted(_list_folder(folder / STATE)):
        if _RANGE.fullmatch(file.name):
            yield file


def remove_files(folder: Path, names: Collection[str]) -> None:
    """Remove files of a run, ``run.json`` last: cut short, the folder still says what is in it.

    The edits stay until all that was made of them is gone. No link is followed out of the folder,
    and folders stay.
    """
    last = ("edits.json", f"{STATE}/run.json")
    for name in sorted({*names} - {MANIFEST}, key=lambda name: (name in last, name)):
        path = folder / name
        if _is_within(path.parent, folder) and (path.is_symlink() or not path.is_dir()):
            path.unlink(missing_ok=True)


def remove_partial(folder: Path, names: Collection[str]) -> None:
    """Remove what a killed process was writing under these names."""
    listed = {folder / name for name in (*names, MANIFEST)}
    for parent in {path.parent for path in listed}:
        for file in _list_folder(parent) if _is_within(parent, folder) else ():
            if (found := _PARTIAL.fullmatch(file.name)) is None:
                continue
            is_range = parent == folder / STATE and _RANGE.fullmatch(found[1])
            if is_range or parent / found[1] in listed:
                file.unlink(missing_ok=True)


def is_partial(file: Path) -> bool:
    """Whether a file is what a killed process was writing."""
    return _PARTIAL.fullmatch(file.name) is not None


def _read_manifest(folder: Path) -> tuple[str, ...] | None:
    """Return the listed names, None where there is no list or a damaged one."""
    try:
        page = read_json(folder / MANIFEST)
        if page["format"] != _MANIFEST_FORMAT:
            return None
        return tuple(_plain_name(folder, name) for name in page["files"])
    except DAMAGE:
        return None


def _read_outputs(folder: Path) -> dict[str, str] | None:
    """Return plain and file names of a run's outputs by its run.json, None where that is none."""
    try:
        page: Any = read_json(folder / STATE / "run.json")
        if page["format"] != FORMAT:
            return None
        files = page["about"]["files"]
        return {name: _plain_name(folder, file) for name, file in files.items()}
    except DAMAGE:
        return None


def _known_names(folder: Path, outputs: Mapping[str, str]) -> Iterator[str]:
    """Yield the names that a run without a list may have written, of files that exist."""
    names = [*outputs.values(), *DICOM_FILES.values(), *PROGRAM_FILES.values(), *_OF_CORRECTIONS]
    if any("/" in name for name in outputs.values()):  # BIDS names
        names += bids_sidecar_names(outputs)
    else:  # maps have the format of that run's images
        stems = [name.partition(".")[0] for name in outputs.values() if _ending(name) in ENDINGS]
        names += [stem + ending for stem in stems for ending in ENDINGS]
    names += [f"{STATE}/{name}" for name in STATE_FILES]
    for name in dict.fromkeys(names):
        if (folder / name).is_symlink() or (folder / name).is_file():
            yield name


def _plain_name(folder: Path, name: str) -> str:
    """Return a name without what means nothing in it; ValueError where it leads out."""
    return path_inside(folder, name).relative_to(folder).as_posix()


def _ending(name: str) -> str:
    return name[name.find(".") :]


def _is_within(path: Path, folder: Path) -> bool:
    return path.resolve().is_relative_to(folder.resolve())


def _list_folder(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []
