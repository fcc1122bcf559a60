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

import itertools
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.checks import in_short
from perturb_mpm.files.formats import PICTURE_ENDINGS, READ_ENDINGS
from perturb_mpm.files.geometry import Geometry, find_turn
from perturb_mpm.files.labels import LabelScheme, RegionValues, check_region_values, join_values
from perturb_mpm.files.source import AnyPath, Digests, InputError, Source
from perturb_mpm.files.volumes import Volume, align, copy_planes, read_volume
from perturb_mpm.posterior import decide_labels as most_probable
from perturb_mpm.storage import array_names, arrays_in

_ARRAY = "probabilities"
_REORIENTING_READERS = ("NibabelIOWithReorient", "SimpleITKIOWithReorient")  # all to RAS
_LEVELS_UP = 3  # from fold_0/validation/CASE.npz to the folder of the model, and one more
# Where the axes of an .npz are right, its labels are those of nnU-Net's label map (Dice).
_NEARLY_EXACT = 0.9
_PROMISING = 0.7  # of a few voxels of the foreground; a Dice of 0.9 means at least 0.82 of all
_FEW_POINTS = 20_000
_CLEARLY_MORE = 1.1  # times as many wrong voxels
_EQUAL = 1e-3  # of a probability
PROBABLE = 0.5  # a region is where its probability is above this
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

    def values(self) -> dict[str, tuple[int, ...]]:
        """Return the exclusive labels, by their values, that each region is made of."""
        return {
            name: tuple(self.scheme().values[i] for i in members)
            for name, members in self.members().items()
        }

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
            for inner, around in enumerate(self._around):
                if around == index:
                    rest -= regions[inner]
            result[row_of[region.painted]] += np.maximum(rest, 0, out=rest)
        outermost = [index for index, around in enumerate(self._around) if around is None]
        result[0] = np.maximum(1 - regions[outermost].sum(axis=0), 0)
        result /= result.sum(axis=0)
        return result

    def paint(self, regions: NDArray[np.float32], threshold: float = PROBABLE) -> NDArray[np.int64]:
        """Return the labels (X, Y, Z) as nnU-Net decides on them: maps are painted in order."""
        labels = np.zeros(regions.shape[1:], dtype=np.int64)
        for region, probability in zip(self.regions, regions):
            labels[probability > threshold] = region.painted
        return labels

    def contradiction(self, regions: NDArray[np.float32]) -> str | None:
        """Say which region often lies outside the one around it, as swapped maps do, or None."""
        for index, around in enumerate(self._around):
            if around is None:
                continue
            inner = regions[index] > PROBABLE  # (X, Y, Z)
            outside = int((inner & (regions[around] <= PROBABLE)).sum())
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

    def _name(self, value: int) -> str:
        """Return the region that is this label alone, or the one of which it is the rest."""
        alone = [region.name for region in self.regions if region.labels == {value}]
        rests = [f"{region.name} (rest)" for region in self.regions if region.painted == value]
        return (alone or rests)[0]


def nest_regions(values: RegionValues) -> NestedRegions:
    """Return regions in the order of their maps, each painted with a label of its own.

    Examples
    --------
    >>> from perturb_mpm.files import nest_regions
    >>> nested = nest_regions({"core": (1, 4), "whole": (1, 2, 4), "enhancing": (4,)})
    >>> nested.scheme().values  # background, core (rest), whole (rest), enhancing
    (0, 1, 2, 4)
    """
    sets = {name: frozenset(labels) for name, labels in check_region_values(values).items()}
    regions = []
    for name, labels in sets.items():
        own = labels.difference(*(other for other in sets.values() if other < labels))
        regions.append(Region(name, labels, min(own or labels)))
    return NestedRegions(regions)


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

    def fits(self, maps: int) -> bool:
        """Return whether so many maps may be the model's; a single one is a sigmoid."""
        sigmoid = self.regions is None and len(self.labels) == 2
        return maps == self.map_count or (maps == 1 and sigmoid)


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


def find_dataset(npz: Path) -> Path | None:
    """Return the dataset.json of an .npz: beside it, or in the folder of its model."""
    return _find_upwards(npz, "dataset.json")


def prediction_files(npz: Path) -> list[Path]:
    """Return dataset.json, plans.json and label maps of an .npz, beside it where there is none."""
    return [
        find_dataset(npz) or npz.with_name("dataset.json"),
        _find_upwards(npz, "plans.json") or npz.with_name("plans.json"),
        *(_find_label_maps(npz) or [npz.with_suffix(".nii.gz")]),
    ]


def _find_upwards(npz: Path, name: str) -> Path | None:
    """Return a file beside an .npz or in a folder around it, as nnU-Net has it for validation."""
    folders = npz.absolute().parents[: 1 + _LEVELS_UP]
    return next((folder / name for folder in folders if (folder / name).is_file()), None)


def _find_label_maps(npz: Path) -> list[Path]:
    """Return the files that may be the label map that nnU-Net wrote with an .npz."""
    candidates = [npz.with_suffix(ending) for ending in READ_ENDINGS]
    return [path for path in candidates if path.is_file()]


def _read_label_map(
    source: Source, image: Volume | None, reference: AnyPath | None, digests: Digests
) -> Volume | None:
    """Return the label map beside an .npz, in any of nnU-Net's formats; no image.

    Several that differ are refused, unless one of them is the reference: an older one would put
    the voxels elsewhere.
    """
    own = None if image is None else image.source.path.resolve()
    named = None if reference is None else Path(reference).resolve()
    paths = [path for path in _find_label_maps(source.path) if path.resolve() != own]
    volumes = [path for path in paths if path.suffix not in PICTURE_ENDINGS]
    paths = volumes or paths  # a picture beside a volume only shows it
    paths = [path for path in paths if path.resolve() == named] or paths
    read = (read_volume(Source(source.argument, path), digests) for path in paths)
    found = [each for each in read if each.voxels.ndim == 3]  # no picture in colour, no maps
    for each in found[1:]:
        apart = each.geometry.difference(found[0].geometry) is not None
        if apart or not np.array_equal(each.voxels, found[0].voxels):
            first, other = found[0].source.path.name, each.source.path.name
            raise source.error(
                f"must have one label map beside it, got {first} and {other}, which differ: "
                "remove the one that is not nnU-Net's, or name the right one by `reference`"
            )
    return found[0] if found else None


def _turn_to_reference(label_map: Volume, reference: Volume) -> Volume:
    """Return a label map with its axes turned to those of a reference of the same grid."""
    one, other = label_map.geometry, reference.geometry
    if one.difference(other) is None:
        return label_map
    if find_turn(one, other) is not None:
        return align(label_map, reference)
    if one.has_orientation and one.axis_codes != other.axis_codes:
        raise reference.source.error(
            f"must have the axes of {label_map.source.path.name}, which lies with the "
            f"probabilities, got {other.axis_codes} against {one.axis_codes}"
        )
    return label_map


def find_predicted_images(folders: Sequence[Path]) -> Path:
    """Return the folder of images that nnU-Net says it made these predictions from."""
    name, key = "predict_from_raw_data_args.json", "list_of_lists_or_source_folder"
    inside = [path for folder in folders for path in (folder, *sorted(folder.glob("fold_*/")))]
    found = next((each / name for each in inside if (each / name).is_file()), None)
    if found is None:
        raise InputError(
            f"`images` must be given where no {name} of nnU-Net lies with the probabilities"
        )
    content = Source("probabilities", found).read_json()
    images = content.get(key) if isinstance(content, dict) else None
    if not isinstance(images, str) or not Path(images).is_dir():
        raise InputError(
            f"`images` must be given: the folder that {found} names is not here, got {images}"
        )
    return Path(images)


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
    maps = np.empty((len(stored), *stored.shape[:0:-1]), dtype=np.float32)
    with np.errstate(over="ignore"):
        for turned, given in zip(maps, stored):
            copy_planes(given.T, turned)
    return maps


NpzAxes = Literal["image", "ras"]


@dataclass(frozen=True)
class KnownGrid:
    """What the caller knows of an .npz, and of where its voxels are."""

    reference: AnyPath | None = None  # a file of the same grid and order of axes
    axes: NpzAxes | None = None  # those of the grid, or turned to RAS; None: not known
    truth: AnyPath | None = None  # the true label map, which the maps resemble
    maps: Future[NDArray[np.float32]] | None = None  # what ``read_npz`` gives, asked for already


def read_prediction(
    source: Source,
    dataset: Dataset | None,
    known: KnownGrid,
    image: Volume | None,
    digests: Digests,
    *,
    threshold: float = PROBABLE,
) -> Volume:
    """Read an .npz as maps (X, Y, Z, C) where a reference, its label map or an image lies.

    A region is where its map is above ``threshold``: ½ for probabilities, 0 for logits.
    """
    reference = known.reference
    maps = read_npz(source) if known.maps is None else known.maps.result()
    digests.add(source)
    label_map = _read_label_map(source, image, reference, digests)
    grid = image
    if reference is not None:
        stated_by = Source("reference", Path(reference))
        if image is not None and image.source.path == stated_by.path:
            grid = replace(image, source=stated_by)
        else:
            grid = read_volume(stated_by, digests)
        label_map = label_map and _turn_to_reference(label_map, grid)
    elif label_map is not None:
        grid = label_map
    if grid is None:
        raise source.error(
            "does not say where its voxels are; name a file of the same grid by `reference`"
        )
    notes: tuple[str, ...] = ()
    if grid is image:
        words = (
            f"{source.path.name} does not say where its voxels are, and no label map lies beside "
            f"it: they are taken to be where those of {grid.source.path.name} are"
        )
        notes = (words,)
    placement = _Placement(source, maps.shape[1:], grid, _read_reader(source, digests), known.axes)
    stated = reference is not None
    if not placement.turns or (stated and label_map is None and not placement.is_likely):
        z, y, x = maps.shape[:0:-1]
        raise source.error(
            f"must have the shape of {grid.source}, got Z, Y, X = {z}, {y}, {x} against "
            f"{', '.join(map(str, grid.geometry.shape[::-1]))}"
            + ("; name a file of its own grid by `reference`" if notes else "")
        )
    turn: Turn | None = None
    if dataset is not None and not dataset.fits(len(maps)):
        turn = placement.turns[0]  # these maps are refused later
    elif label_map is not None and label_map.voxels.shape == grid.geometry.shape:
        labels = decide_labels(maps, dataset, threshold)
        background = dataset.labels.values[0] if dataset else 0
        turn, warnings = placement.compare(labels, label_map, background, stated=stated)
        notes += warnings
    elif known.truth is not None and not stated:
        truth = read_volume(Source(source.argument, Path(known.truth)), Digests())
        labels = decide_labels(maps, dataset, threshold)
        turn, warnings = placement.compare_truth(maps, labels, truth)
        notes += warnings
    turn = turn or placement.assume(maps, label_map, stated=stated)
    turned = _turn_axes(np.moveaxis(maps, 0, -1), turn)  # (X, Y, Z, C)
    return Volume(source, turned, grid.geometry, notes)


Turn = tuple[tuple[int, int], ...]
"""For each of the axes X, Y, Z the axis that it becomes, and −1 if it is flipped, as in nibabel."""
_AS_STORED: Turn = ((0, 1), (1, 1), (2, 1))


class _Placement:
    """In which order and direction the axes of an .npz lie on a grid.

    nnU-Net's readers keep the axes of a file or turn them to right, anterior, superior (RAS), and
    an .npz does not say which. Its label map does: of the 48 turns (6 permutations of the axes, 8
    directions each) only the right one gives the label map's voxels, unless these are symmetric.
    """

    def __init__(
        self,
        source: Source,
        shape: tuple[int, ...],
        grid: Volume,
        reader: str | None,
        axes: NpzAxes | None,
    ) -> None:
        self.source, self.grid = source, grid
        self.from_ras = _turn_from_ras(grid.geometry, shape)
        self.known: Turn | None = None
        if axes is not None:
            self.known = self.from_ras if axes == "ras" else _AS_STORED
        elif reader is not None:
            self.known = self.from_ras if reader in _REORIENTING_READERS else _AS_STORED
        elif grid.geometry.ending in PICTURE_ENDINGS:
            self.known = _AS_STORED
        flips = [(1, -1) if size > 1 else (1,) for size in shape]  # one slice has no direction
        every = [
            tuple(zip(axes, directions))
            for axes in itertools.permutations(range(3))
            for directions in itertools.product(*flips)
        ]
        # The most likely first: what the reader does, then what any of nnU-Net's readers does.
        likely = [self.known] if self.known else []
        ordered = dict.fromkeys([*likely, _AS_STORED, self.from_ras, *every])
        self.turns = [
            turn
            for turn in ordered
            if tuple(size for _, size in sorted(zip(turn, shape))) == grid.geometry.shape
        ]

    @property
    def is_likely(self) -> bool:
        """Whether the shape allows a turn that one of nnU-Net's readers makes."""
        return self.turns[0] in (self.known, _AS_STORED, self.from_ras)

    def assume(self, maps: NDArray[np.float32], label_map: Volume | None, *, stated: bool) -> Turn:
        """Return the turn where no label map shows it; refuse where it cannot be known.

        Maps (C, X, Y, Z) that are the same either way have nothing to be known.
        """
        first = self.turns[0]
        certain = first in (self.known, self.from_ras) or (stated and first == _AS_STORED)
        if not certain and not self._is_symmetric(maps):
            found, missing = "neither label map nor plans.json lies beside it", "one of them"
            if label_map is not None:
                found = (
                    f"its label map {label_map.source.path.name} is symmetric, empty or on another "
                    "grid and shows it neither"
                )
                missing = "its plans.json"
            raise self.source.error(
                f"does not say in which order its axes are, and {found}: nnU-Net may have turned "
                f"{self.grid.source.path.name} ({self.grid.geometry.axis_codes}) to RAS; put "
                f'{missing} there, or say `npz_axes="image"` if it has not, `npz_axes="ras"` if '
                "it has"
            )
        return first

    def _is_symmetric(self, maps: NDArray[np.float32]) -> bool:
        """Whether maps (C, X, Y, Z) are the same if a reader has turned them, and if not."""
        if self.from_ras not in self.turns:
            return False
        turned = (_turn_axes(each, self.from_ras) for each in maps)
        return all(np.allclose(a, b, rtol=0, atol=_EQUAL) for a, b in zip(maps, turned))

    def compare_truth(
        self, maps: NDArray[np.float32], labels: NDArray[np.integer], truth: Volume
    ) -> tuple[Turn | None, tuple[str, ...]]:
        """Return which of the turns that nnU-Net's readers make is most like a true label map.

        Where a network found nothing of it, the axes are taken as they are, which a note says.
        None where the reader is known, or the truth is on another grid.
        """
        if self.known is not None or truth.voxels.shape != self.grid.geometry.shape:
            return None, ()
        true, found = truth.voxels != 0, labels != 0  # (X, Y, Z)
        turns = dict.fromkeys(turn for turn in (_AS_STORED, self.from_ras) if turn in self.turns)
        wrong = {turn: int((_turn_axes(found, turn) ^ true).sum()) for turn in turns}
        best = min(wrong, key=lambda turn: wrong[turn], default=None)
        most = max(wrong.values(), default=0)
        if best is None or len(wrong) == 1 or most >= _CLEARLY_MORE * max(wrong[best], 1):
            return best, ()
        if self._is_symmetric(maps):
            return _AS_STORED, ()
        words = (
            f"nothing shows in which order the axes of {self.source.path.name} are, not even "
            f"{truth.source.path.name}: they are taken as they are; a plans.json there would tell"
        )
        return _AS_STORED, (words,)

    def compare(
        self, labels: NDArray[np.integer], label_map: Volume, background: int, *, stated: bool
    ) -> tuple[Turn | None, tuple[str, ...]]:
        """Return the turn that makes labels (X, Y, Z) those of the label map, and what is unsure.

        They need not agree everywhere: nnU-Net may take small pieces out of its label map. None
        where the label map is symmetric or empty and the reader is not known.
        """
        name = label_map.source.path.name
        dice, differing = self._score(labels, label_map.voxels, background)
        fewest = min(differing.values(), default=0)
        ties = [
            turn
            for turn in differing
            if dice[turn] >= _NEARLY_EXACT and differing[turn] <= 2 * fewest
        ]
        likely = ties and (len(ties) == 1 or ties[0] in (self.known, _AS_STORED, self.from_ras))
        if not likely:
            best = max(dice.values(), default=0.0)
            words = (
                f"the most probable labels have a Dice of {best:.2f} at most with nnU-Net's label "
                f"map {name}, however the axes are turned: are both of one patient?"
            )
            if not stated:
                raise self.source.error(f"{words} If so, name {name} by `reference`")
            return self.turns[0], (words,)
        if self.known is None and _AS_STORED in ties and self.from_ras in ties[1:]:
            return None, ()
        return ties[0], ()

    def _score(
        self, labels: NDArray[np.integer], expected: NDArray[np.float32], background: int
    ) -> tuple[dict[Turn, float], dict[Turn, int]]:
        """Return for each promising turn the Dice of all foreground, and how many voxels differ."""
        foreground = expected != background  # (X, Y, Z)
        points = np.flatnonzero(foreground)  # (P,)
        few = np.unravel_index(points[:: max(1, len(points) // _FEW_POINTS)], expected.shape)
        size = len(points) + int(np.count_nonzero(labels != background))
        labels = labels.astype(np.float32)  # label values are exact in it
        dice, differing = {}, {}
        for turn in self.turns:
            view = _turn_axes(labels, turn)
            if len(points) and (view[few] == expected[few]).mean() < _PROMISING:
                continue
            same = view == expected  # (X, Y, Z)
            differing[turn] = same.size - int(np.count_nonzero(same))
            same &= foreground
            dice[turn] = 2 * int(np.count_nonzero(same)) / size if size else 1.0
        return dice, differing


def _turn_axes(array: NDArray[Any], turn: Turn) -> NDArray[Any]:
    """Return a view of an array (X, Y, Z, …) with its axes turned."""
    from nibabel.orientations import apply_orientation

    return apply_orientation(array, np.array(turn))


def _turn_from_ras(geometry: Geometry, shape: tuple[int, ...]) -> Turn:
    """Return how axes that point right, anterior, superior are turned to lie on a grid."""
    from nibabel.orientations import axcodes2ornt, io_orientation, ornt_transform

    turn = ornt_transform(axcodes2ornt("RAS"), io_orientation(geometry.affine))
    return tuple(
        (int(axis), int(flip) if size > 1 else 1) for (axis, flip), size in zip(turn, shape)
    )


def decide_labels(
    maps: NDArray[np.float32], dataset: Dataset | None, threshold: float = PROBABLE
) -> NDArray[np.integer]:
    """Return the label values (X, Y, Z) that nnU-Net decides on from its maps (C, X, Y, Z)."""
    if dataset is not None and dataset.regions is not None:
        return dataset.regions.paint(maps, threshold)
    values = np.asarray(dataset.labels.values if dataset else range(max(2, len(maps))), np.int32)
    single = len(maps) == 1  # a sigmoid of the foreground
    rows = (maps[0] > threshold).astype(np.intp) if single else most_probable(maps)
    return values[rows]


def _read_reader(npz: Source, digests: Digests) -> str | None:
    """Return which of nnU-Net's readers the plans.json of an .npz names."""
    path = _find_upwards(npz.path, "plans.json")
    if path is None:
        return None
    plans = Source(npz.argument, path)
    digests.add(plans)
    content = plans.read_json()
    reader = content.get("image_reader_writer") if isinstance(content, dict) else None
    return reader if isinstance(reader, str) else None


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
