"""Labelled cases on disk: a table of paths, or a folder in one of the usual layouts.

``LabelledFiles`` say where a case lies. What is read of them is a ``Scene`` to train on, or a
``Case`` to tune on, each with its truth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.files import (
    Geometry,
    InputError,
    LabelScheme,
    Source,
    read_dataset,
    read_images,
    read_label_map,
    read_table,
)
from perturb_mpm.segmenter.feature_store import ReadScene
from perturb_mpm.segmenter.preprocessing import prepare_images, select_sequences, standard_name
from perturb_mpm.segmenter.scene import Scene

_ENDINGS = (".nii.gz", ".nii")
_ARGUMENT = "data"


@dataclass(frozen=True)
class LabelledFiles:
    """The files of one labelled case."""

    name: str
    images: dict[str, Path]  # by sequence
    labels: Path
    mask: Path | None = None


def find_cases(data: Path, layout: str) -> list[LabelledFiles]:
    """Return the cases in a folder or table, sorted by name."""
    if layout not in LAYOUTS:
        raise InputError(f"`layout` must be one of {', '.join(LAYOUTS)}, got {layout}")
    if not data.exists():
        raise InputError(f"`data` must be there, got {data}, which is not")
    cases = sorted(LAYOUTS[layout](data), key=lambda case: case.name)
    if not cases:
        raise InputError(f"`data` must hold cases in the layout {layout}, got {data} without any")
    names = [case.name for case in cases]
    twice = [name for name in sorted(set(names)) if names.count(name) > 1]
    if twice:
        raise InputError(f"`data` must hold a case once, got {twice[0]} twice")
    return cases


def training_cases(
    files: Sequence[LabelledFiles], sequences: Sequence[str], scheme: LabelScheme
) -> dict[str, ReadScene]:
    """Return how to read each case, by name; a missing sequence is refused at once."""
    for case in files:
        case_images(case, sequences)
    return {case.name: partial(read_scene, case, sequences, scheme) for case in files}


def case_images(case: LabelledFiles, sequences: Sequence[str]) -> dict[str, Path]:
    """Return the wanted sequences of a case in the wanted order; a missing one is refused."""
    return select_sequences(case.images, sequences, f"`data`: case {case.name}")


def read_scene(case: LabelledFiles, sequences: Sequence[str], scheme: LabelScheme) -> Scene:
    """Read a case: its sequences on one grid, and its labels on the same."""
    wanted = case_images(case, sequences)
    found = read_images(
        list(wanted.values()), mask=case.mask, image_names=list(wanted), named_by=_ARGUMENT
    )
    truth = read_truth(case, found.geometry, scheme)
    return prepare_images(found, f"`data`: case {case.name}", truth).scene


def read_truth(case: LabelledFiles, grid: Geometry, scheme: LabelScheme) -> NDArray[np.uint8]:
    """Return the true labels 0 … L − 1 of a case, (X, Y, Z), on the grid of its images."""
    first = Source(_ARGUMENT, next(iter(case.images.values())))
    remedy = "; name the right scheme by `labels`"
    return read_label_map(Source(_ARGUMENT, case.labels), scheme, grid, first, remedy)


def cases_of_table(path: Path) -> Iterator[LabelledFiles]:
    """Yield the cases of a CSV file: case, labels, perhaps mask, and one column a sequence.

    Paths are relative to the table's folder.
    """
    source = Source(_ARGUMENT, path)
    for row in read_table(source, ("case", "labels"), ("mask",), prefix="", unique="case"):
        paths = {column: path.parent / text for column, text in row.fields.items()}
        del paths["case"]
        labels, mask = paths.pop("labels"), paths.pop("mask", None)
        yield LabelledFiles(row.fields["case"], paths, labels, mask)


def cases_of_brats(root: Path) -> Iterator[LabelledFiles]:
    """Yield the cases of folders such as P/P_t1ce.nii.gz and P/P_seg.nii.gz (or P-t1c, P-seg)."""
    for folder in sorted(path for path in root.iterdir() if path.is_dir()):
        files = {
            _stem(path).removeprefix(folder.name).strip("_-"): path
            for path in sorted(folder.iterdir())
            if path.name.endswith(_ENDINGS) and path.name.startswith(folder.name)
        }
        labels = files.pop("seg", None)
        if labels:
            yield LabelledFiles(folder.name, files, labels)


def cases_of_nnunet(root: Path) -> Iterator[LabelledFiles]:
    """Yield the training cases of a raw data set: dataset.json, imagesTr and labelsTr."""
    channels = read_dataset(Source(_ARGUMENT, root / "dataset.json")).channels
    for labels in sorted((root / "labelsTr").glob("*.nii*")):
        name = _stem(labels)
        images = {
            channel_name: path
            for channel, channel_name in channels.items()
            for path in sorted((root / "imagesTr").glob(f"{name}_{channel:04d}.nii*"))
        }
        yield LabelledFiles(name, images, labels)


def cases_of_bids(root: Path) -> Iterator[LabelledFiles]:
    """Yield the cases of a BIDS data set whose label maps are derivatives ending in _dseg.

    Contrast-enhanced T1 is told by the entity ce; a derivative desc-brain_mask is the brain.
    """
    for anat in sorted([*root.glob("sub-*/anat"), *root.glob("sub-*/ses-*/anat")]):
        inside = anat.relative_to(root)
        labels = sorted(root.glob(f"derivatives/*/{inside}/*_dseg.nii*"))
        if not labels:
            continue
        if len(labels) > 1:
            raise InputError(f"`data`: {inside} must have one _dseg, got {len(labels)}")
        masks = sorted(root.glob(f"derivatives/*/{inside}/*desc-brain*_mask.nii*"))
        images = {_bids_sequence(path): path for path in sorted(anat.glob("*.nii*"))}
        name = "_".join(inside.parts[:-1])
        yield LabelledFiles(name, images, labels[0], masks[0] if masks else None)


LAYOUTS: dict[str, Callable[[Path], Iterator[LabelledFiles]]] = {
    "table": cases_of_table,
    "brats": cases_of_brats,
    "nnunet": cases_of_nnunet,
    "bids": cases_of_bids,
}


def common_sequences(files: Sequence[LabelledFiles]) -> tuple[str, ...]:
    """Return the sequences that every case has, by our names, sorted."""
    sets = [{standard_name(name) for name in case.images} for case in files]
    return tuple(sorted(set.intersection(*sets)))


def _bids_sequence(path: Path) -> str:
    stem = _stem(path)
    suffix = stem.rsplit("_", 1)[-1]
    return "t1c" if suffix == "T1w" and "_ce-" in stem else standard_name(suffix)


def _stem(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".nii")
