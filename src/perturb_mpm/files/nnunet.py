"""Probabilities as nnU-Net saves them: an .npz with its axes reversed, and files beside it.

The .pkl beside it is never opened: a pickle can run anything. What it would tell, where the voxels
are, stands in the label map ``CASE.nii.gz`` that is written with ``CASE.npz``.
"""

from __future__ import annotations

from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.checks import in_short
from perturb_mpm.files.geometry import Geometry
from perturb_mpm.files.labels import LabelScheme
from perturb_mpm.files.regions import NestedRegions, Region
from perturb_mpm.files.source import Digests, Source, open_source, sha256
from perturb_mpm.storage import DAMAGE, DamagedError, array_names, arrays_in, error_text

_ARRAY = "probabilities"
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

    def decided(self, maps: NDArray[np.float32]) -> NDArray[np.integer]:
        """Return the label values (X, Y, Z) that nnU-Net decides on from its maps (C, X, Y, Z)."""
        if self.regions is not None:
            return self.regions.painted(maps)
        decided: NDArray[np.integer] = np.asarray(self.labels.values)[maps.argmax(axis=0)]
        return decided


def read_dataset(source: Source) -> Dataset:
    """Read a dataset.json of nnU-Net, version 1 or 2."""
    with open_source(source) as file:
        digest = sha256(file)
        content = source.json(file)
    if not isinstance(content, dict) or not isinstance(content.get("labels"), dict):
        raise source.error("must be nnU-Net's dataset.json with an entry labels, got none")
    try:
        labels = _name_to_value(content["labels"])
        regions = _regions(labels, content.get("regions_class_order"))
        scheme = regions.scheme() if regions else _scheme(labels)
        channels = content.get("channel_names") or content.get("modality") or {}
        names = {int(place): str(name) for place, name in dict(channels).items()}
    except (AttributeError, OverflowError, TypeError, ValueError) as error:
        raise source.error(str(error)) from error
    return Dataset(source, scheme, regions, names, digest)


def read_npz(source: Source) -> tuple[NDArray[np.float32], str]:
    """Return the maps (C, X, Y, Z) of nnU-Net's .npz, stored as (C, Z, Y, X), and its SHA-256."""
    with open_source(source) as file:
        digest = sha256(file)
        stored = _probability_array(source, file)
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
        content = plans.json(file)
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
    decided: NDArray[np.integer], background: int, label_map: NDArray[np.float32]
) -> str | None:
    """Say that labels (X, Y, Z) decided as nnU-Net does are far from its label map, or None.

    They need not agree everywhere: nnU-Net may take small pieces out of its label map.
    """
    expected = label_map != background
    if not expected.any():
        return None
    foreground = expected | (decided != background)
    share = float((decided == label_map)[foreground].mean())
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


def _probability_array(source: Source, file: BufferedReader) -> NDArray[Any]:
    try:
        names = array_names(file)
    except DAMAGE as error:
        raise source.error(f"is no .npz file, or damaged ({error_text(error)})") from error
    if _ARRAY not in names:
        hint = "predict with nnU-Net's option save_probabilities"
        if "softmax" in names:
            hint = (
                "softmax is nnU-Net version 1's, which covers only the cropped box and does not "
                "say where that is; " + hint
            )
        listed = in_short(", ".join(names), 100)
        raise source.error(f"must hold the array {_ARRAY}, got {listed}; {hint}")
    try:
        return arrays_in(file, [_ARRAY])[_ARRAY]
    except DamagedError as error:
        raise source.error(f"is too large: {error}") from error
    except DAMAGE as error:
        raise source.damaged(error) from error
