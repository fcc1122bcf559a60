"""nnU-Net's dataset.json: the names and numbers of labels, nested regions, names of channels."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from perturb_mpm.io.case import LabelScheme
from perturb_mpm.io.errors import Source
from perturb_mpm.io.hashing import sha256
from perturb_mpm.io.nifti_read import opened
from perturb_mpm.io.regions import NestedRegions, Region


@dataclass(frozen=True)
class Dataset:
    """What a model was trained on, as far as its maps are concerned."""

    source: Source
    labels: LabelScheme
    regions: NestedRegions | None  # of a model whose maps are regions and not labels
    channels: dict[int, str]  # input channel -> name of the sequence
    digest: str  # SHA-256 of the file

    @property
    def maps(self) -> int:
        """The number of maps that the model gives."""
        return len(self.labels) if self.regions is None else len(self.regions)


def read_dataset(source: Source) -> Dataset:
    """Read a dataset.json of nnU-Net, version 1 or 2."""
    with opened(source) as file:
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
