"""Probabilities as nnU-Net saves them: an .npz with its axes reversed, and files beside it.

The .pkl beside it is never opened: a pickle can run anything. What it would tell, where the voxels
are, stands in the label map ``CASE.nii.gz`` that is written with ``CASE.npz``.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.files.geometry import Geometry
from perturb_mpm.files.labels import LabelScheme
from perturb_mpm.files.regions import NestedRegions, Region
from perturb_mpm.files.source import Digests, Source, open_source, sha256

_DAMAGE = (EOFError, NotImplementedError, OSError, RuntimeError, ValueError, zlib.error)
_REORIENTING_READER = "NibabelIOWithReorient"
_LEAST_AGREEMENT = 0.5


@dataclass(frozen=True)
class Dataset:
    """What a model was trained on, as far as its maps are concerned."""

    source: Source
    labels: LabelScheme
    regions: NestedRegions | None  # of a model whose maps are regions and not labels
    channels: dict[int, str]  # input channel -> name of the sequence
    digest: str  # SHA-256 of the file

    @property
    def map_count(self) -> int:
        """The number of maps that the model gives."""
        return len(self.labels) if self.regions is None else len(self.regions)


def read_dataset(source: Source) -> Dataset:
    """Read a dataset.json of nnU-Net, version 1 or 2."""
    with open_source(source) as file:
        digest = sha256(file)
        try:
            content = json.load(file)
        except ValueError as error:
            raise source.error(f"is not JSON ({error})") from error
    if not isinstance(content, dict) or not isinstance(content.get("labels"), dict):
        raise source.error("must be nnU-Net's dataset.json with an entry labels, got none")
    try:
        labels = _name_to_value(content["labels"])
        regions = _regions(labels, content.get("regions_class_order"))
        scheme = regions.scheme() if regions else _scheme(labels)
        channels = content.get("channel_names") or content.get("modality") or {}
        names = {int(place): str(name) for place, name in dict(channels).items()}
    except (TypeError, ValueError) as error:
        raise source.error(str(error)) from error
    return Dataset(source, scheme, regions, names, digest)


def read_npz(source: Source) -> tuple[NDArray[np.float32], str]:
    """Return the maps (C, X, Y, Z) of nnU-Net's .npz, stored as (C, Z, Y, X), and its SHA-256."""
    with open_source(source) as file:
        digest = sha256(file)
        try:
            with zipfile.ZipFile(file) as archive:
                stored = _probability_array(source, archive)
        except zipfile.BadZipFile as error:
            raise source.error(f"is no .npz file, or damaged ({error})") from error
    if stored.ndim != 4 or 0 in stored.shape or stored.dtype.kind not in "biuf":
        raise source.error(
            "must hold numbers with the axes C, Z, Y, X, "
            f"got shape {stored.shape} of type {stored.dtype}"
        )
    with np.errstate(over="ignore"):
        maps = stored.transpose(0, 3, 2, 1).astype(np.float32, order="C")
    return maps, digest


def label_map_beside(path: Path) -> Path | None:
    """Return the label map that nnU-Net wrote with an .npz, or None."""
    candidates = (path.with_suffix(ending) for ending in (".nii.gz", ".nii"))
    return next((found for found in candidates if found.is_file()), None)


def dataset_json_beside(path: Path) -> Path | None:
    """Return the dataset.json that nnU-Net copies to where it predicts, or None."""
    found = path.with_name("dataset.json")
    return found if found.is_file() else None


def was_reoriented(npz: Source, digests: Digests) -> bool:
    """Return whether a plans.json beside an .npz names the reader that turns images to RAS."""
    plans = Source(npz.argument, npz.path.with_name("plans.json"))
    if not plans.path.is_file():
        return False
    with open_source(plans) as file:
        digests.add(plans.path, sha256(file))
        try:
            content = json.load(file)
        except ValueError as error:
            raise plans.error(f"is not JSON ({error})") from error
    return isinstance(content, dict) and content.get("image_reader_writer") == _REORIENTING_READER


def undo_reorientation(maps: NDArray[np.float32], geometry: Geometry) -> NDArray[np.float32]:
    """Return maps (C, X, Y, Z) that point right, anterior, superior in the order of a grid."""
    from nibabel.orientations import (
        apply_orientation,
        axcodes2ornt,
        io_orientation,
        ornt_transform,
    )

    turn = ornt_transform(axcodes2ornt("RAS"), io_orientation(geometry.affine))
    return np.stack([apply_orientation(one, turn) for one in maps])


def label_map_warning(
    probabilities: NDArray[np.float32], values: tuple[int, ...], label_map: NDArray[np.float32]
) -> str | None:
    """Say that probabilities (L, X, Y, Z) and nnU-Net's label map (X, Y, Z) are far apart, or None.

    They never agree everywhere: regions are painted by another rule, and nnU-Net may take small
    pieces out of its label map. ``values`` are the label map's own for the L labels.
    """
    expected = label_map != values[0]
    if not expected.any():
        return None
    found = np.asarray(values)[probabilities.argmax(axis=0)]  # (X, Y, Z)
    foreground = expected | (found != values[0])
    share = float((found == label_map)[foreground].mean())
    if share >= _LEAST_AGREEMENT:
        return None
    return (
        f"the most probable labels are those of nnU-Net's label map beside the .npz in only "
        f"{share:.0%} of the foreground: are both of one patient, and in one voxel order?"
    )


def _name_to_value(labels: dict[str, Any]) -> dict[str, frozenset[int]]:
    """Return name -> the numbers it stands for; version 1 has it the other way round."""
    if all(key.isdecimal() and isinstance(name, str) for key, name in labels.items()):
        labels = {name: int(key) for key, name in labels.items()}
    return {
        name: frozenset(map(int, value if isinstance(value, list) else [value]))
        for name, value in labels.items()
        if name != "ignore"
    }


def _scheme(labels: dict[str, frozenset[int]]) -> LabelScheme:
    """Return labels in the order of their maps, which is that of their numbers."""
    ordered = sorted((min(value), name) for name, value in labels.items())
    return LabelScheme(tuple(v for v, _ in ordered), tuple(n for _, n in ordered))


def _regions(labels: dict[str, frozenset[int]], order: object) -> NestedRegions | None:
    """Return the regions in the order of the file, which is that of their maps."""
    if all(len(value) == 1 for value in labels.values()):
        return None
    found = [(name, value) for name, value in labels.items() if value != {0}]
    if not isinstance(order, list) or len(order) != len(found):
        raise ValueError(
            f"regions_class_order must name one label for each of the {len(found)} regions, "
            f"got {order}"
        )
    return NestedRegions([Region(name, v, int(c)) for (name, v), c in zip(found, order)])


def _probability_array(source: Source, archive: zipfile.ZipFile) -> np.ndarray:
    names = [name.removesuffix(".npy") for name in archive.namelist()]
    if "probabilities" not in names:
        hint = "predict with nnU-Net's option save_probabilities"
        if "softmax" in names:
            hint = (
                "softmax is nnU-Net version 1's, which covers only the cropped box and does not "
                "say where that is; " + hint
            )
        raise source.error(f"must hold the array probabilities, got {', '.join(names)}; {hint}")
    try:
        with archive.open("probabilities.npy") as entry:
            array = np.lib.format.read_array(entry, allow_pickle=False)
            entry.read(1)  # only at its end does an entry compare its checksum
    except _DAMAGE as error:
        raise source.damaged(error) from error
    return array
