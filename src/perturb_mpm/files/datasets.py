"""Find the files of many cases: a table of paths, or folders laid out as in nnU-Net, BraTS or BIDS.

Nothing but tables and nnU-Net's dataset.json is read here. ``find_cases`` looks for cases to run: a
case whose files are missing stays in the list and says what is missing, so that it fails alone.
``find_labelled_cases`` looks for cases to learn from: those without a true label map are left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.files.conversion import OUR_SEGMENTATION
from perturb_mpm.files.formats import PICTURE_ENDINGS
from perturb_mpm.files.geometry import Geometry
from perturb_mpm.files.labels import LabelScheme, read_label_map
from perturb_mpm.files.names import name_images, select_sequences, standard_name, without_endings
from perturb_mpm.files.nnunet import read_dataset
from perturb_mpm.files.source import InputError, Source
from perturb_mpm.files.tables import TableRow, read_table

Key = TypeVar("Key", int, str)

_LABEL_MAPS = (".nii.gz", ".nii", ".nrrd", ".mha", ".mgz")
_FILES = (*_LABEL_MAPS, *PICTURE_ENDINGS)
_PROBABILITIES = (".npz", *_FILES)  # nnU-Net writes CASE.nii.gz, its labels, beside CASE.npz
_CHANNEL = re.compile(rf"(?P<case>.+)_(?P<channel>\d{{4}})({'|'.join(map(re.escape, _FILES))})")
_SEPARATOR = ";"  # between several files in one field of a table


@dataclass(frozen=True)
class CaseFiles:
    """The files of one case; which of them there are depends on what it is for.

    Examples
    --------
    >>> from pathlib import Path
    >>> from perturb_mpm.files import CaseFolders, find_cases
    >>> case, *others = find_cases(CaseFolders(Path("imagesTs"), (Path("predicted"),)))
    >>> [path.name for path in case.images]
    ['A_0000.nii.gz', 'A_0001.nii.gz']
    """

    name: str
    images: tuple[Path, ...] = ()
    image_names: tuple[str, ...] | None = None  # None: the names of the files say it
    probabilities: tuple[Path, ...] = ()  # several are an ensemble
    mask: Path | None = None
    truth: Path | None = None
    raters: tuple[Path, ...] = ()  # label maps of several raters
    prediction: Path | None = None  # to assess: a folder of a run, or a 4-D file
    missing: str | None = None  # the error about a file that was looked for and not found

    @property
    def paths(self) -> tuple[Path, ...]:
        """Every file of the case."""
        single = [path for path in (self.mask, self.truth, self.prediction) if path is not None]
        return (*self.images, *self.probabilities, *single, *self.raters)

    def sequences(self) -> dict[str, Path]:
        """Return the images by the names of their sequences."""
        return dict(zip(self.image_names or name_images(self.images), self.images, strict=True))

    def select_images(self, sequences: Sequence[str]) -> dict[str, Path]:
        """Return the wanted sequences of a labelled case, in order; a missing one is refused."""
        return select_sequences(self.sequences(), sequences, f"`data`: case {self.name}")

    def resolve(self) -> CaseFiles:
        """Return the case with absolute paths, which hold in any working folder."""
        return replace(
            self,
            images=tuple(path.resolve() for path in self.images),
            probabilities=tuple(path.resolve() for path in self.probabilities),
            mask=self.mask and self.mask.resolve(),
            truth=self.truth and self.truth.resolve(),
            raters=tuple(path.resolve() for path in self.raters),
            prediction=self.prediction and self.prediction.resolve(),
        )

    def read_truth(self, grid: Geometry, scheme: LabelScheme) -> NDArray[np.uint8]:
        """Return the true labels 0 … L − 1 of a labelled case, (X, Y, Z), on its images' grid."""
        if self.truth is None:
            raise InputError(f"`data`: case {self.name} must have a true label map, got none")
        first = Source("data", self.images[0])
        remedy = "; name the right scheme by `labels`"
        return read_label_map(Source("data", self.truth), scheme, grid, first, remedy)


@dataclass(frozen=True)
class CaseFolders:
    """Where to look: images, folders of probabilities (several are an ensemble), masks, truths.

    Examples
    --------
    >>> from pathlib import Path
    >>> from perturb_mpm.files import CaseFolders
    >>> CaseFolders(Path("imagesTs"), (Path("predicted"),)).images.name
    'imagesTs'
    """

    images: Path
    probabilities: tuple[Path, ...] = ()
    mask: Path | None = None
    truth: Path | None = None
    without_probabilities: bool = False  # a model computes them from the images
    cross_validated: bool = False  # a case is in one of the folders of probabilities

    def expand_folds(self) -> CaseFolders:
        """Return the same with nnU-Net's folders fold_0, fold_1 … in place of the one around them.

        Predictions of several folds are an ensemble. Of the folder of a trained model the
        predictions in fold_0/validation … are taken, where each case is in one fold.
        """
        folds = [sorted(folder.glob("fold_*/")) for folder in self.probabilities]
        if not any(folds):
            return self
        if len(folds) > 1:
            raise InputError(
                "`probabilities` must be one folder where it holds fold_0, fold_1 …, got "
                f"{len(folds)}"
            )
        validation = tuple(path / "validation" for path in folds[0])
        if all(path.is_dir() for path in validation):
            return replace(self, probabilities=validation, cross_validated=True)
        return replace(self, probabilities=tuple(folds[0]))


def find_cases(folders: CaseFolders, layout: str | None = None) -> list[CaseFiles]:
    """Return the cases to run, sorted by name; an omitted ``layout`` is recognised.

    Examples
    --------
    >>> from pathlib import Path
    >>> from perturb_mpm.files import CaseFolders, find_cases
    >>> cases = find_cases(CaseFolders(Path("imagesTs"), (Path("predicted"),)))
    >>> [case.name for case in cases]
    ['A', 'B']
    """
    searched = (*folders.probabilities, folders.mask, folders.truth)
    names = (*("probabilities" for _ in folders.probabilities), "mask", "truth")
    _check_data("images", folders.images, layout, RUN_LAYOUTS)
    for name, folder in zip(names, searched, strict=True):
        if folder is not None and not folder.is_dir():
            raise InputError(f"`{name}` must be a folder with a file a case, got {folder}")
    folders = folders.expand_folds()
    layout = layout or _recognise_layout(folders.images)
    found = (_add_named_files(case, folders) for case in _RUN_LAYOUTS[layout](folders))
    return _sort_cases(found, "images", folders.images, layout)


def find_labelled_cases(data: Path, layout: str) -> list[CaseFiles]:
    """Return the cases with a true label map in a folder or table, sorted by name."""
    _check_data("data", data, layout, LAYOUTS)
    return _sort_cases(_LABELLED_LAYOUTS[layout](data), "data", data, layout)


def common_sequences(cases: Sequence[CaseFiles]) -> tuple[str, ...]:
    """Return the sequences that every case has, by their standard names, sorted."""
    sets = [{standard_name(name) for name in case.sequences()} for case in cases]
    return tuple(sorted(set.intersection(*sets)))


def find_probabilities(folder: Path, case: str) -> Path | None:
    """Return CASE.npz or another file of probabilities of a case in a folder, None without."""
    return _find_file(folder, case, _PROBABILITIES)


def find_label_map(folder: Path, case: str) -> Path | None:
    """Return CASE.nii.gz or another label map or mask of a case in a folder, None without."""
    return _find_file(folder, case, _FILES)


def _find_file(folder: Path, case: str, endings: Sequence[str]) -> Path | None:
    candidates = [folder / f"{case}{ending}" for ending in endings]
    found = [path for path in candidates if path.is_file()]
    if found and found[0].suffix == ".npz":
        return found[0]
    volumes = [path for path in found if path.suffix not in PICTURE_ENDINGS]
    found = volumes or found  # a picture beside a volume only shows it
    if len(found) > 1:
        raise InputError(
            f"{folder} must hold one file of {case}, got {found[0].name} and {found[1].name}: "
            "remove the one that is not meant"
        )
    return found[0] if found else None


def _check_data(argument: str, data: Path, layout: str | None, known: Sequence[str]) -> None:
    if layout is not None and layout not in known:
        raise InputError(f"`layout` must be one of {', '.join(known)}, got {layout}")
    if not data.exists():
        raise InputError(f"`{argument}`: not found: {data}")


def _sort_cases(
    cases: Iterator[CaseFiles], argument: str, data: Path, layout: str
) -> list[CaseFiles]:
    """Return cases sorted by name; none at all, or the same name twice, is refused."""
    found = sorted(cases, key=lambda case: case.name)
    if not found:
        raise InputError(
            f"`{argument}` must hold cases in the layout {layout}, got {data} without any"
        )
    for one, other in pairwise(found):
        if one.name == other.name:
            raise InputError(f"`{argument}` must hold a case once, got {one.name} twice")
    return found


def _recognise_layout(images: Path) -> str:
    if images.is_file():
        return "table"
    inside = sorted(images.iterdir())
    if any(_CHANNEL.fullmatch(path.name) for path in inside):
        return "nnunet"
    if any(path.name.startswith("sub-") and path.is_dir() for path in inside):
        return "bids"
    if any(path.is_dir() and any(path.glob(f"{path.name}[_-]*")) for path in inside):
        return "brats"
    if any(path.is_file() and path.name.endswith(_FILES) for path in inside):
        return "flat"
    raise InputError(
        "`images` must be a table or a folder with CASE_0000.nii.gz (nnU-Net), CASE/CASE_t1.nii.gz "
        "(BraTS), sub-01/anat (BIDS), CASE.nii.gz or CASE.png (flat), got "
        f"{images}, which has none of these"
    )


def _nnunet_channels(folder: Path) -> dict[str, dict[int, Path]]:
    """Return case -> channel -> file of CASE_0000.nii.gz, CASE_0001.nii.gz … in one folder."""
    found: dict[str, dict[int, Path]] = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        match = _CHANNEL.fullmatch(path.name)
        if match and path.is_file():
            _add_once(found.setdefault(match["case"], {}), int(match["channel"]), path)
    return found


def _add_once(found: dict[Key, Path], key: Key, path: Path) -> None:
    """Add the file of a channel or sequence; refuse a second one, which may be another image."""
    if key in found:
        raise InputError(
            f"{path.parent} must hold an image once, got {found[key].name} and {path.name}: "
            "remove the one that is not meant"
        )
    found[key] = path


def _find_nnunet(folders: CaseFolders) -> Iterator[CaseFiles]:
    """Yield the cases of CASE_0000.nii.gz, CASE_0001.nii.gz … in one folder."""
    described = folders.images.parent / "dataset.json"  # of the raw data set
    names = read_dataset(Source("images", described)).channels if described.is_file() else {}
    for name, channels in _nnunet_channels(folders.images).items():
        numbers = sorted(channels)
        known = tuple(names[number] for number in numbers if number in names)
        yield CaseFiles(
            name,
            tuple(channels[number] for number in numbers),
            known if len(known) == len(numbers) else None,
        )


def _find_flat(folders: CaseFolders) -> Iterator[CaseFiles]:
    """Yield the cases of CASE.nii.gz in one folder, one image each; of pictures where all are."""
    files = [path for path in sorted(folders.images.iterdir()) if path.is_file()]
    volumes = [path for path in files if path.name.endswith(_LABEL_MAPS)]
    for path in volumes or files:
        ending = next((each for each in _FILES if path.name.endswith(each)), None)
        if ending:
            yield CaseFiles(path.name.removesuffix(ending), (path,), ("image",))


def _find_labelled_nnunet(root: Path) -> Iterator[CaseFiles]:
    """Yield the training cases of a raw data set: dataset.json, imagesTr and labelsTr."""
    names = read_dataset(Source("data", root / "dataset.json")).channels
    channels = _nnunet_channels(root / "imagesTr")
    labels = sorted((root / "labelsTr").glob("*"))
    for truth in (path for path in labels if path.name.endswith(_FILES)):
        case = without_endings(truth)
        images = {
            name: channels[case][number]
            for number, name in names.items()
            if number in channels.get(case, {})
        }
        yield CaseFiles(case, tuple(images.values()), tuple(images), truth=truth)


def _find_brats(root: Path) -> Iterator[CaseFiles]:
    """Yield the cases of CASE/CASE_t1.nii.gz … (or CASE-t1n); CASE_seg is the truth, if any."""
    for folder in sorted(path for path in root.iterdir() if path.is_dir()):
        files: dict[str, Path] = {}
        for path in sorted(folder.iterdir()):
            if path.name.startswith(folder.name) and path.name.endswith(_LABEL_MAPS):
                _add_once(files, without_endings(path).removeprefix(folder.name).strip("_-"), path)
        truth = files.pop("seg", None)
        yield CaseFiles(folder.name, tuple(files.values()), tuple(files), truth=truth)


def _find_bids(root: Path) -> Iterator[tuple[CaseFiles, Path, list[Path]]]:
    """Yield each case of sub-01[/ses-pre]/anat, its path inside the data set, and every _dseg.

    A derivative desc-brain_mask is the mask.
    """
    for anat in sorted([*root.glob("sub-*/anat"), *root.glob("sub-*/ses-*/anat")]):
        inside = anat.relative_to(root)
        masks = sorted(root.glob(f"derivatives/*/{inside}/*desc-brain*_mask.nii*"))
        truths = sorted(root.glob(f"derivatives/*/{inside}/*_dseg.nii*"))
        images = tuple(sorted(anat.glob("*.nii*")))
        case = CaseFiles(
            "_".join(inside.parts[:-1]),
            images,
            _bids_names(images),
            mask=masks[0] if masks else None,
        )
        yield case, inside, truths


def _bids_names(images: Sequence[Path]) -> tuple[str, ...]:
    """Return the suffixes of BIDS files as names; the entity ce marks a contrast-enhanced T1.

    Where several have the same suffix, their other entities tell them apart, as in run-2_T1w.
    """
    entities = [re.sub(r"^sub-[^_]*_(ses-[^_]*_)?", "", without_endings(path)) for path in images]
    names = [
        "t1c" if each.endswith("_T1w") and "ce-" in each else each.rsplit("_", 1)[-1]
        for each in entities
    ]
    return tuple(
        name if names.count(name) == 1 else each for name, each in zip(names, entities, strict=True)
    )


def _find_bids_to_run(folders: CaseFolders) -> Iterator[CaseFiles]:
    """Yield BIDS cases whose derivatives hold _probseg.

    The truth is a single _dseg of another derivative: one beside probabilities is their label map.
    What this program wrote itself is neither.
    """
    for case, inside, found in _find_bids(folders.images):
        derived = folders.probabilities or sorted(folders.images.glob("derivatives/*"))
        every = [path for each in derived for path in sorted((each / inside).glob("*_probseg.*"))]
        maps = [path for path in every if path.name.endswith(_PROBABILITIES)]
        predicted = {path.parent for path in maps}
        truths = [path for path in found if path.parent not in predicted]
        yield replace(
            case,
            probabilities=tuple(path for path in maps if OUR_SEGMENTATION not in path.name),
            truth=truths[0] if len(truths) == 1 else None,
        )


def _find_labelled_bids(root: Path) -> Iterator[CaseFiles]:
    """Yield the cases of a BIDS data set with a derivative _dseg, which must be one."""
    for case, inside, truths in _find_bids(root):
        if len(truths) > 1:
            raise InputError(f"`data`: {inside} must have one _dseg, got {len(truths)}")
        if truths:
            yield replace(case, truth=truths[0])


def _find_in_table(folders: CaseFolders) -> Iterator[CaseFiles]:
    """Yield the cases of a CSV or TSV file, a row a case; paths are relative to its folder.

    A semicolon separates several files in one field; columns such as image_t1c name images.
    """
    source = Source("images", folders.images)
    optional = ("case", "probabilities", "mask", "truth", "subject", "session")
    for row in read_table(source, (), optional, prefix="image", unique="case"):
        columns = [column for column in row.fields if column.startswith("image")]
        images = tuple(path for column in columns for path in _split_paths(row, column))
        one_each = len(columns) == len(images) and all(c.startswith("image_") for c in columns)
        names = tuple(column.removeprefix("image_") for column in columns)
        yield CaseFiles(
            _case_name(row),
            images,
            names if names and one_each else None,
            _split_paths(row, "probabilities"),
            row.path("mask"),
            row.path("truth"),
        )


def _split_paths(row: TableRow, column: str) -> tuple[Path, ...]:
    parts = row.fields.get(column, "").split(_SEPARATOR)
    return tuple(row.source.path.parent / part.strip() for part in parts if part.strip())


def _case_name(row: TableRow) -> str:
    """Return the case of a row, else its subject and session."""
    if "case" in row.fields:
        return row.fields["case"]
    if "subject" not in row.fields:
        raise row.error("must give a case or a subject, got neither")
    subject = f"sub-{row.fields['subject'].removeprefix('sub-')}"
    session = row.fields.get("session")
    return subject if session is None else f"{subject}_ses-{session.removeprefix('ses-')}"


def _find_labelled_in_table(path: Path) -> Iterator[CaseFiles]:
    """Yield the cases of a CSV or TSV file: case, labels, perhaps mask, one column a sequence.

    Paths are relative to the table's folder.
    """
    required, optional = ("case", "labels"), ("mask",)
    for row in read_table(Source("data", path), required, optional, prefix="", unique="case"):
        images = {
            column: path.parent / text
            for column, text in row.fields.items()
            if column not in (*required, *optional)
        }
        yield CaseFiles(
            row.fields["case"],
            tuple(images.values()),
            tuple(images),
            mask=row.path("mask"),
            truth=row.path("labels"),
        )


_RUN_LAYOUTS: dict[str, Callable[[CaseFolders], Iterator[CaseFiles]]] = {
    "nnunet": _find_nnunet,
    "brats": lambda folders: (case for case in _find_brats(folders.images) if case.images),
    "bids": _find_bids_to_run,
    "table": _find_in_table,
    "flat": _find_flat,
}
_LABELLED_LAYOUTS: dict[str, Callable[[Path], Iterator[CaseFiles]]] = {
    "nnunet": _find_labelled_nnunet,
    "brats": lambda root: (case for case in _find_brats(root) if case.truth),
    "bids": _find_labelled_bids,
    "table": _find_labelled_in_table,
}
RUN_LAYOUTS = tuple(_RUN_LAYOUTS)
LAYOUTS = tuple(_LABELLED_LAYOUTS)
"""How the files of labelled cases may be laid out; ``RUN_LAYOUTS`` are those of cases to run."""


def _add_named_files(case: CaseFiles, folders: CaseFolders) -> CaseFiles:
    """Return a case with what the folders hold under its name, and what is missing there."""
    name, maps, mask, truth = case.name, case.probabilities, case.mask, case.truth
    missing = [] if case.images else ["`images` must hold at least one image of the case, got none"]
    if folders.without_probabilities:
        maps = ()
    elif not maps:
        found = [find_probabilities(folder, name) for folder in folders.probabilities]
        maps = tuple(path for path in found if path is not None)
        if len(maps) != (1 if folders.cross_validated else len(found)) or not found:
            without = [f for f, path in zip(folders.probabilities, found) if path is None]
            where = ", ".join(str(folder) for folder in without) or "no folder"
            missing.append(
                f"`probabilities` must hold {name}.npz or {name}.nii.gz, got none in {where}"
            )
    if mask is None and folders.mask is not None:
        mask = find_label_map(folders.mask, name)
        if mask is None:
            missing.append(f"`mask` must hold {name}.nii.gz, got none in {folders.mask}")
    if folders.truth is not None:
        truth = find_label_map(folders.truth, name)  # a case may lack one
    first = missing[0] if missing else None
    return replace(case, probabilities=maps, mask=mask, truth=truth, missing=first)
