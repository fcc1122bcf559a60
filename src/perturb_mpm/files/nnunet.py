"""Predictions as nnU-Net saves them: an .npz with its axes reversed, and files beside it.

The .pkl beside it is never opened: a pickle can run anything. What it would tell, where the voxels
are, stands in the label map ``CASE.nii.gz`` that is written with ``CASE.npz``.

A model may be trained on nested regions, such as whole tumour ⊃ core ⊃ enhancing. It gives every
region its own probability p between 0 and 1, and the regions overlap. Where any two of them are
disjoint or one inside the other they form trees, and what a region has more than the regions
directly inside it belongs to the label it is painted with:

    p(label of a region) = max(p(region) − Σ p(regions directly inside it), 0)
    p(background)        = max(1 − Σ p(outermost regions), 0)

The sum of all of these is at least 1, and more only where a network's own regions contradict each
other (an inner one more likely than the one around it); they are divided by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.checks import in_short
from perturb_mpm.files.geometry import Geometry
from perturb_mpm.files.labels import LabelScheme, join_values
from perturb_mpm.files.source import AnyPath, Digests, Source
from perturb_mpm.files.volumes import Volume, read_volume
from perturb_mpm.storage import array_names, arrays_in

_ARRAY = "probabilities"
_REORIENTING_READER = "NibabelIOWithReorient"
_LEAST_AGREEMENT = 0.5
_THRESHOLD = 0.5  # a region is where its probability is above this
_MANY = 0.2  # of an inner region's voxels, and at least so many
_MANY_VOXELS = 50


@dataclass(frozen=True)
class Region:
    """A set of labels with a map of its own, and the label that is painted where it is found."""

    name: str
    labels: frozenset[int]
    painted: int


class NestedRegions:
    """Regions in the order of their maps, which may be any: which lies in which is in their labels.

    nnU-Net paints in this order, so that an outer region that comes after an inner one hides it in
    nnU-Net's own label map (``paint``), but never in the distribution.
    """

    def __init__(self, regions: Sequence[Region]) -> None:
        self.regions = tuple(regions)
        _check_regions(self.regions)
        self._around = [self._directly_around(index) for index in range(len(regions))]

    def __len__(self) -> int:
        return len(self.regions)

    def scheme(self) -> LabelScheme:
        """Return the exclusive labels: 0 for background, then every painted value."""
        values = sorted({region.painted for region in self.regions})
        return LabelScheme((0, *values), ("background", *map(self._name, values)))

    def members(self) -> dict[str, tuple[int, ...]]:
        """Return the exclusive labels, indices of ``scheme``, that each region is made of."""
        values = self.scheme().values
        return {
            region.name: tuple(i for i, value in enumerate(values) if value in region.labels)
            for region in self.regions
        }

    def exclusive(self, regions: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the distribution (L, X, Y, Z) over the labels from region maps (R, X, Y, Z)."""
        row_of = {value: row for row, value in enumerate(self.scheme().values)}
        result = np.zeros((len(row_of), *regions.shape[1:]), dtype=np.float32)
        for index, region in enumerate(self.regions):
            rest = regions[index].copy()  # (X, Y, Z)
            for inner in self._directly_inside(index):
                rest -= regions[inner]
            result[row_of[region.painted]] += np.maximum(rest, 0, out=rest)
        outermost = [index for index, around in enumerate(self._around) if around is None]
        result[0] = np.maximum(1 - regions[outermost].sum(axis=0), 0)
        result /= result.sum(axis=0)
        return result

    def paint(self, regions: NDArray[np.float32]) -> NDArray[np.int64]:
        """Return the labels (X, Y, Z) as nnU-Net decides on them: above ½, in the order of maps."""
        labels = np.zeros(regions.shape[1:], dtype=np.int64)
        for region, probability in zip(self.regions, regions):
            labels[probability > _THRESHOLD] = region.painted
        return labels

    def contradiction(self, regions: NDArray[np.float32]) -> str | None:
        """Say which region often lies outside the one around it, as swapped maps do, or None."""
        for index, around in enumerate(self._around):
            if around is None:
                continue
            inner = regions[index] > _THRESHOLD  # (X, Y, Z)
            outside = int((inner & (regions[around] <= _THRESHOLD)).sum())
            if outside >= _MANY_VOXELS and outside > _MANY * int(inner.sum()):
                return (
                    f"the region {self.regions[index].name!r} (map {index}) must lie inside "
                    f"{self.regions[around].name!r} (map {around}), got {outside} of its "
                    f"{int(inner.sum())} voxels outside: are the maps in the order of the regions?"
                )
        return None

    def _directly_around(self, index: int) -> int | None:
        """Return the smallest region around one; those around it lie in each other."""
        own = self.regions[index].labels
        around = [i for i, region in enumerate(self.regions) if region.labels > own]
        return min(around, key=lambda i: len(self.regions[i].labels), default=None)

    def _directly_inside(self, index: int) -> list[int]:
        return [inner for inner, around in enumerate(self._around) if around == index]

    def _name(self, value: int) -> str:
        """Return the region that is this label alone, or the one of which it is the rest."""
        alone = [region.name for region in self.regions if region.labels == {value}]
        rests = [f"{region.name} (rest)" for region in self.regions if region.painted == value]
        return (alone or rests)[0]


def _check_regions(regions: tuple[Region, ...]) -> None:
    """Refuse regions that cannot be split into exclusive labels."""
    for index, region in enumerate(regions):
        if 0 in region.labels:
            raise ValueError(f"the region {region.name!r} must not contain background (0)")
        for earlier in regions[:index]:
            _check_pair(earlier, region)
        inside = frozenset[int]().union(*(r.labels for r in regions if r.labels < region.labels))
        own = region.labels - inside
        if region.painted not in (own or region.labels):
            raise ValueError(
                f"the region {region.name!r} must be painted with a label of its own "
                f"({join_values(sorted(own or region.labels))}), got {region.painted}"
            )


def _check_pair(earlier: Region, later: Region) -> None:
    if earlier.labels == later.labels:
        raise ValueError(f"the regions {earlier.name!r} and {later.name!r} have the same labels")
    nested = later.labels < earlier.labels or earlier.labels < later.labels
    if not nested and later.labels & earlier.labels:
        raise ValueError(
            "regions must be nested or apart, but "
            f"{earlier.name!r} ({join_values(sorted(earlier.labels))}) and {later.name!r} "
            f"({join_values(sorted(later.labels))}) overlap; give the probabilities of exclusive "
            "labels"
        )


@dataclass(frozen=True)
class Dataset:
    """What a model was trained on, as far as its maps are concerned."""

    source: Source
    labels: LabelScheme
    regions: NestedRegions | None  # of a model whose maps are regions and not labels
    channels: dict[int, str]  # input channel -> name of the sequence

    @property
    def map_count(self) -> int:
        """The number of maps that the model gives."""
        return len(self.labels) if self.regions is None else len(self.regions)

    def decide(self, maps: NDArray[np.float32]) -> NDArray[np.integer]:
        """Return the label values (X, Y, Z) that nnU-Net decides on from its maps (C, X, Y, Z)."""
        if self.regions is not None:
            return self.regions.paint(maps)
        values: NDArray[np.integer] = np.asarray(self.labels.values)[maps.argmax(axis=0)]
        return values


def read_dataset(source: Source) -> Dataset:
    """Read a dataset.json of nnU-Net, version 1 or 2."""
    content = source.read_json()
    if not isinstance(content, dict) or not isinstance(content.get("labels"), dict):
        raise source.error("must be nnU-Net's dataset.json with an entry labels, got none")
    try:
        labels = _name_to_value(content["labels"])
        regions = _read_regions(labels, content.get("regions_class_order"))
        scheme = regions.scheme() if regions else _scheme(labels)
        channels = content.get("channel_names") or content.get("modality") or {}
        names = {int(channel): str(name) for channel, name in dict(channels).items()}
    except (AttributeError, OverflowError, TypeError, ValueError) as error:
        raise source.error(str(error)) from error
    return Dataset(source, scheme, regions, names)


def file_beside(path: Path, name: str) -> Path | None:
    """Return a file that nnU-Net copies to where it predicts, such as dataset.json, or None."""
    found = path.with_name(name)
    return found if found.is_file() else None


def label_map_beside(path: Path) -> Path | None:
    """Return the label map that nnU-Net wrote with an .npz, or None."""
    candidates = (path.with_suffix(ending) for ending in (".nii.gz", ".nii"))
    return next((found for found in candidates if found.is_file()), None)


def read_npz(source: Source) -> NDArray[np.float32]:
    """Return the maps (C, X, Y, Z) of nnU-Net's .npz, stored as (C, Z, Y, X)."""
    with source.open() as file:
        with source.refuse_damage("is no .npz file, or damaged"):
            names = array_names(file)
        if _ARRAY not in names:
            hint = "predict with nnU-Net's option save_probabilities"
            if "softmax" in names:
                hint = (
                    "softmax is nnU-Net version 1's, which covers only the cropped box and does "
                    "not say where that is; " + hint
                )
            found = in_short(", ".join(names), 100)
            raise source.error(f"must hold the array {_ARRAY}, got {found}; {hint}")
        with source.refuse_damage():
            stored = arrays_in(file, [_ARRAY])[_ARRAY]
    if stored.ndim != 4 or 0 in stored.shape or stored.dtype.kind not in "biuf":
        raise source.error(
            "must hold numbers with the axes C, Z, Y, X, "
            f"got shape {stored.shape} of type {stored.dtype}"
        )
    with np.errstate(over="ignore"):
        return stored.transpose(0, 3, 2, 1).astype(np.float32, order="C")


def read_prediction(
    source: Source,
    dataset: Dataset | None,
    reference: AnyPath | None,
    image: Volume,
    digests: Digests,
) -> Volume:
    """Read an .npz as maps (X, Y, Z, C) where its label map, a reference or an image lies."""
    maps = read_npz(source)
    digests.add(source)
    notes: tuple[str, ...] = ()
    beside = label_map_beside(source.path)
    if reference is not None:
        grid = read_volume(Source("reference", Path(reference)), digests)
    elif beside is not None:
        grid = read_volume(Source("probabilities", beside), digests)
    else:
        grid = image
        words = (
            f"{source.path.name} does not say where its voxels are, and no label map lies beside "
            f"it: they are taken to be where those of {image.source.path.name} are"
        )
        notes = (words,)
    if _was_reoriented(source, digests):
        maps = _undo_reorientation(maps, grid.geometry)
    if maps.shape[1:] != grid.geometry.shape:
        z, y, x = maps.shape[:0:-1]
        raise source.error(
            f"must have the shape of {grid.source}, got Z, Y, X = {z}, {y}, {x} against "
            f"{', '.join(map(str, grid.geometry.shape[::-1]))}"
            + ("; name a file of its own grid by `reference`" if notes else "")
        )
    if reference is None and beside is not None and grid.voxels.ndim == 3:
        notes += _label_map_warnings(maps, dataset, grid.voxels)
    return Volume(source, np.moveaxis(maps, 0, -1), grid.geometry, notes)


def _was_reoriented(npz: Source, digests: Digests) -> bool:
    """Return whether a plans.json beside an .npz names the reader that turns images to RAS."""
    path = file_beside(npz.path, "plans.json")
    if path is None:
        return False
    plans = Source(npz.argument, path)
    digests.add(plans)
    content = plans.read_json()
    return isinstance(content, dict) and content.get("image_reader_writer") == _REORIENTING_READER


def _undo_reorientation(maps: NDArray[np.float32], geometry: Geometry) -> NDArray[np.float32]:
    """Return maps (C, X, Y, Z) that point right, anterior, superior in the order of a grid."""
    from nibabel.orientations import (
        apply_orientation,
        axcodes2ornt,
        io_orientation,
        ornt_transform,
    )

    turn = ornt_transform(axcodes2ornt("RAS"), io_orientation(geometry.affine))
    return np.stack([apply_orientation(one, turn) for one in maps])


def _label_map_warnings(
    maps: NDArray[np.float32], dataset: Dataset | None, label_map: NDArray[np.float32]
) -> tuple[str, ...]:
    """Say that labels decided as nnU-Net does are far from its label map (X, Y, Z).

    They need not agree everywhere: nnU-Net may take small pieces out of its label map.
    """
    if dataset is not None and dataset.map_count != len(maps):
        return ()  # which is refused later
    labels = dataset.decide(maps) if dataset else maps.argmax(axis=0)  # (X, Y, Z)
    background = dataset.labels.values[0] if dataset else 0
    expected = label_map != background
    if not expected.any():
        return ()
    foreground = expected | (labels != background)
    share = float((labels == label_map)[foreground].mean())
    if share >= _LEAST_AGREEMENT:
        return ()
    words = (
        f"the most probable labels are those of nnU-Net's label map beside the .npz in only "
        f"{share:.0%} of the foreground: are both of one patient, and in one voxel order?"
    )
    return (words,)


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


def _read_regions(labels: dict[str, frozenset[int]], order: object) -> NestedRegions | None:
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
