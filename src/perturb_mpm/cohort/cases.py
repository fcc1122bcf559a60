"""Where the files of a cohort's cases lie: a table of paths, or folders in the usual layouts.

Nothing is read here. A case whose files are missing stays in the list: that is found when the case
is read, and is then the error of that case alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from perturb_mpm.files import InputError, Source, TableRow, read_table

RECORDS = "cohort"
"""The folder in the output that holds a record of every case; no case may have its name."""
_MAPS = (".npz", ".nii.gz", ".nii", ".nrrd", ".mha", ".mgz")  # in the order of preference
_LABEL_MAPS = _MAPS[1:]
_CHANNEL = re.compile(r"(?P<case>.+)_(?P<channel>\d{4})(?P<ending>\.nii\.gz|\.nii|\.nrrd|\.mha)")
_SEPARATOR = ";"
_LONGEST_NAME = 200


@dataclass(frozen=True)
class CohortCase:
    """The files of one case, and the name of its folder in the output.

    Examples
    --------
    >>> from pathlib import Path
    >>> from perturb_mpm.cohort import CohortFolders, find_cohort
    >>> case, *others = find_cohort(CohortFolders(Path("imagesTs"), (Path("predicted"),)))
    >>> [path.name for path in case.images]
    ['A_0000.nii.gz', 'A_0001.nii.gz']
    """

    name: str
    images: tuple[Path, ...]
    probabilities: tuple[Path, ...]
    mask: Path | None = None
    truth: Path | None = None
    image_names: tuple[str, ...] | None = None
    missing: str | None = None  # what was looked for and is not there

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file of the case."""
        others = [path for path in (self.mask, self.truth) if path is not None]
        return (*self.images, *self.probabilities, *others)


@dataclass(frozen=True)
class CohortFolders:
    """Where to look: images, folders of probabilities (several are an ensemble), masks, truths.

    Examples
    --------
    >>> from pathlib import Path
    >>> from perturb_mpm.cohort import CohortFolders, find_cohort
    >>> CohortFolders(Path("imagesTs"), (Path("predicted"),)).images.name
    'imagesTs'
    """

    images: Path
    probabilities: tuple[Path, ...] = ()
    mask: Path | None = None
    truth: Path | None = None
    match: tuple[str, ...] = ()
    without_probabilities: bool = False  # a model makes them from the images


def find_cohort(folders: CohortFolders, layout: str | None = None) -> list[CohortCase]:
    """Return the cases sorted by name; without a ``layout`` it is told by what is there.

    Examples
    --------
    >>> from pathlib import Path
    >>> from perturb_mpm.cohort import CohortFolders, find_cohort
    >>> cases = find_cohort(CohortFolders(Path("imagesTs"), (Path("predicted"),)))
    >>> [case.name for case in cases]
    ['A', 'B']
    """
    if layout is not None and layout not in COHORT_LAYOUTS:
        raise InputError(f"`layout` must be one of {', '.join(COHORT_LAYOUTS)}, got {layout}")
    if not folders.images.exists():
        raise InputError(f"`images` must be there, got {folders.images}, which is not")
    places = (*folders.probabilities, folders.mask, folders.truth)
    names = (*("probabilities" for _ in folders.probabilities), "mask", "truth")
    for name, place in zip(names, places, strict=True):
        if place is not None and not place.is_dir():
            raise InputError(f"`{name}` must be a folder with a file a case, got {place}")
    layout = layout or _layout_of(folders.images)
    found = sorted(COHORT_LAYOUTS[layout](folders), key=lambda case: case.name)
    if not found:
        raise InputError(
            f"`images` must hold cases in the layout {layout}, got {folders.images} without any"
        )
    _check_names(found)
    chosen = [each for each in found if _matches(each.name, folders.match)]
    if not chosen:
        raise InputError(
            f"`match` must choose at least one of {len(found)} cases, got "
            f"{' '.join(folders.match)}; the first case is {found[0].name}"
        )
    return chosen


def _layout_of(images: Path) -> str:
    """Tell the layout by what is there."""
    if images.is_file():
        return "table"
    inside = sorted(images.iterdir())
    if any(_CHANNEL.fullmatch(path.name) for path in inside):
        return "nnunet"
    if any(path.name.startswith("sub-") and path.is_dir() for path in inside):
        return "bids"
    if any(path.is_dir() and any(path.glob(f"{path.name}[_-]*")) for path in inside):
        return "brats"
    raise InputError(
        "`images` must be a table or a folder with CASE_0000.nii.gz (nnU-Net), CASE/CASE_t1.nii.gz "
        f"(BraTS) or sub-01/anat (BIDS), got {images}, which has none of these"
    )


def _of_nnunet(folders: CohortFolders) -> Iterator[CohortCase]:
    """Yield the cases of CASE_0000.nii.gz, CASE_0001.nii.gz … in one folder."""
    channels: dict[str, dict[int, Path]] = {}
    for path in sorted(folders.images.iterdir()):
        found = _CHANNEL.fullmatch(path.name)
        if found and path.is_file():
            channels.setdefault(found["case"], {})[int(found["channel"])] = path
    for name, images in channels.items():
        yield _case(name, tuple(images[channel] for channel in sorted(images)), folders)


def _of_brats(folders: CohortFolders) -> Iterator[CohortCase]:
    """Yield the cases of CASE/CASE_t1.nii.gz …; CASE_seg is the truth, where there is one."""
    for folder in sorted(path for path in folders.images.iterdir() if path.is_dir()):
        files = {
            _stem(path).removeprefix(folder.name).strip("_-"): path
            for path in sorted(folder.iterdir())
            if path.name.startswith(folder.name) and path.name.endswith(_LABEL_MAPS)
        }
        truth = files.pop("seg", None)
        if files:
            names = tuple(files)
            yield _case(folder.name, tuple(files.values()), folders, names=names, truth=truth)


def _of_bids(folders: CohortFolders) -> Iterator[CohortCase]:
    """Yield the cases of sub-01[/ses-pre]/anat; derivatives hold _probseg, a mask and _dseg."""
    root = folders.images
    for anat in sorted([*root.glob("sub-*/anat"), *root.glob("sub-*/ses-*/anat")]):
        inside = anat.relative_to(root)
        name = "_".join(inside.parts[:-1])
        places = [*folders.probabilities] or sorted(root.glob("derivatives/*"))
        maps = [path for place in places for path in sorted((place / inside).glob("*_probseg.*"))]
        masks = sorted(root.glob(f"derivatives/*/{inside}/*desc-brain*_mask.nii*"))
        truths = sorted(root.glob(f"derivatives/*/{inside}/*_dseg.nii*"))
        maps = [path for path in maps if path.name.endswith(_MAPS)]
        yield _case(
            name,
            tuple(sorted(anat.glob("*.nii*"))),
            folders,
            maps=tuple(maps) or None,
            mask=masks[0] if masks else None,
            truth=truths[0] if len(truths) == 1 else None,
        )


def _of_table(folders: CohortFolders) -> Iterator[CohortCase]:
    """Yield the cases of a CSV or TSV file, a row a case; paths are relative to its folder.

    Several files in one field stand apart by a semicolon; columns such as image_t1c name images.
    """
    source = Source("images", folders.images)
    optional = ("case", "probabilities", "mask", "truth", "subject", "session")
    for row in read_table(source, (), optional, prefix="image"):
        columns = [column for column in row.fields if column.startswith("image")]
        images = [path for column in columns for path in _paths(row, column)]
        one_each = all(column.startswith("image_") for column in columns)
        names = tuple(column.removeprefix("image_") for column in columns) if one_each else None
        yield _case(
            _name_of(row),
            tuple(images),
            folders,
            maps=_paths(row, "probabilities") or None,
            names=names if names and len(names) == len(images) else None,
            mask=row.path("mask"),
            truth=row.path("truth"),
        )


COHORT_LAYOUTS: dict[str, Callable[[CohortFolders], Iterator[CohortCase]]] = {
    "nnunet": _of_nnunet,
    "brats": _of_brats,
    "bids": _of_bids,
    "table": _of_table,
}


def _case(
    name: str,
    images: tuple[Path, ...],
    folders: CohortFolders,
    *,
    maps: tuple[Path, ...] | None = None,
    names: tuple[str, ...] | None = None,
    mask: Path | None = None,
    truth: Path | None = None,
) -> CohortCase:
    """Return a case with what its layout says, and what the folders hold under its name."""
    missing = None
    if not images:
        missing = "`images` must hold at least one image of the case, got none"
    if folders.without_probabilities:
        maps = ()
    if maps is None:
        found = [_named(folder, name, _MAPS) for folder in folders.probabilities]
        maps = tuple(path for path in found if path is not None)
        if len(maps) < len(found) or not found:
            where = ", ".join(str(folder) for folder in folders.probabilities) or "no folder"
            missing = (
                missing
                or f"`probabilities` must hold {name}.npz or {name}.nii.gz, got none in {where}"
            )
    if mask is None and folders.mask is not None:
        mask = _named(folders.mask, name, _LABEL_MAPS)
        if mask is None:
            missing = missing or f"`mask` must hold {name}.nii.gz, got none in {folders.mask}"
    if folders.truth is not None:
        truth = _named(folders.truth, name, _LABEL_MAPS)  # a case may lack one
    return CohortCase(name, images, maps, mask, truth, names, missing)


def _named(folder: Path, name: str, endings: Sequence[str]) -> Path | None:
    candidates = (folder / f"{name}{ending}" for ending in endings)
    return next((path for path in candidates if path.is_file()), None)


def _paths(row: TableRow, column: str) -> tuple[Path, ...]:
    parts = row.fields.get(column, "").split(_SEPARATOR)
    return tuple(row.source.path.parent / part.strip() for part in parts if part.strip())


def _name_of(row: TableRow) -> str:
    """Return the case of a row, else its subject and session."""
    if "case" in row.fields:
        return row.fields["case"]
    if "subject" not in row.fields:
        raise row.error("must give a case or a subject, got neither")
    subject = f"sub-{row.fields['subject'].removeprefix('sub-')}"
    session = row.fields.get("session")
    return subject if session is None else f"{subject}_ses-{session.removeprefix('ses-')}"


def _check_names(cases: Sequence[CohortCase]) -> None:
    """Refuse names that are no folder of their own in the output."""
    seen: set[str] = set()
    for each in cases:
        name = each.name
        if (
            not name.isprintable()
            or name != name.strip()
            or name.startswith(".")
            or re.search(r'[/\\:*?"<>|]', name)
            or not 0 < len(name.encode()) <= _LONGEST_NAME
            or name.split(".")[0].lower() == RECORDS
        ):
            raise InputError(
                "`images` must name cases so that a folder can have their name, without slashes, "
                f'a dot in front or the name "{RECORDS}", got {name!r}'
            )
        if name.lower() in seen:  # some file systems do not tell upper case from lower
            raise InputError(f"`images` must hold a case once, got {name} twice")
        seen.add(name.lower())


def _matches(name: str, patterns: Sequence[str]) -> bool:
    """Whether a name is chosen: by a pattern such as BraTS2021_* or by being named."""
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)


def _stem(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(path.suffix).removesuffix(".nii")
