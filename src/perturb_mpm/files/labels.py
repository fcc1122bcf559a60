"""Labels: the user's numbers and names for them, their colours, label maps, and regions.

Inside the program labels are 0 … L − 1 and the first is background. A ``LabelScheme`` says which
values and names they have in the user's files. A label has one colour everywhere: in reports, the
viewer, DICOM, 3D Slicer and ITK-SNAP. A region is a set of label values that a user names, as in
``core=1,4``: one syntax for every command, and the same sets in settings files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.checks import FEWEST_LABELS, MOST_LABELS
from perturb_mpm.files.geometry import Geometry
from perturb_mpm.files.source import InputError, Source
from perturb_mpm.files.volumes import read_volume_3d, require_same_grid

LARGEST_VALUE = 65535  # what a 16-bit label map can hold
# Outlines lie on grey images and on the uncertainty map, which is red, orange and yellow. All are
# at least 19 (CIEDE2000) from every colour of that map and from every grey; the first four are at
# least 17 from each other, and 11 for readers who do not see red or green.
_VIOLET, _GREEN, _AQUA, _BLUE = "#a07bff", "#1fd0a3", "#b8fff4", "#5cc0ff"
_OTHERS = ("#ff7bdc", "#00b3b3", "#5b7cff", "#d9b8ff")


@dataclass(frozen=True)
class LabelScheme:
    """The user's own numbers and names of the labels 0 … L − 1; the first is background.

    Maps of tissues may have no background: then no label is what lies outside the mask, and
    ``background`` is the value written there, 0 where it is None.

    Examples
    --------
    >>> from perturb_mpm.files import LabelScheme
    >>> LabelScheme(values=(0, 1, 4), names=("background", "core", "enhancing")).values
    (0, 1, 4)
    """

    values: tuple[int, ...]
    names: tuple[str, ...]
    background: int | None = None

    def __post_init__(self) -> None:
        if len(self.values) != len(self.names):
            raise ValueError(
                "a label must have one value and one name, "
                f"got {len(self.values)} values and {len(self.names)} names"
            )
        if len(set(self.values)) < len(self.values):
            raise ValueError(f"label values must be different, got {join_values(self.values)}")
        if not all(0 <= value <= LARGEST_VALUE for value in self.values):
            raise ValueError(
                f"label values must lie between 0 and {LARGEST_VALUE}, "
                f"got {join_values(self.values)}"
            )
        if len(set(self.names)) < len(self.names):
            raise ValueError(f"label names must be different, got {join_values(self.names)}")
        if self.background is not None and not 0 <= self.background <= LARGEST_VALUE:
            raise ValueError(
                f"background must lie between 0 and {LARGEST_VALUE}, got {self.background}"
            )
        if not all(name and name.isprintable() for name in self.names):
            raise ValueError(f"label names must be words in one line, got {list(self.names)}")

    def __len__(self) -> int:
        return len(self.values)

    @property
    def outside(self) -> int:
        """The value of voxels outside the mask."""
        if self.background is not None:
            return self.background
        has_zero = 0 in self.values
        return self.values[0] if has_zero else 0

    @property
    def has_background(self) -> bool:
        """Whether the first label is what lies outside the mask."""
        return self.outside == self.values[0]

    def foreground(self) -> list[tuple[int, str, str]]:
        """Return value, name and colour, such as #a07bff, of every label but background."""
        first = 1 if self.has_background else 0
        names = self.names[first:]
        return list(zip(self.values[first:], names, label_colours(names)))

    def to_values(
        self, indices: NDArray[Any], mask: NDArray[np.bool_] | None = None
    ) -> NDArray[Any]:
        """Return the user's values of indices 0 … L − 1, as uint8 or, where need be, uint16.

        Voxels outside the mask take ``outside``.
        """
        dtype = np.uint8 if max(*self.values, self.outside) <= 255 else np.uint16
        values: NDArray[Any] = np.asarray(self.values, dtype=dtype)[indices]
        if mask is not None:
            values[~mask] = self.outside
        return values


_GLIOMA = ("background", "necrotic or non-enhancing core", "oedema", "enhancing tumour")

SCHEMES = {  # by name, never guessed: 4 is enhancing tumour in one and a cavity in another
    "brats2021": LabelScheme((0, 1, 2, 4), _GLIOMA),
    "brats2023": LabelScheme((0, 1, 2, 3), _GLIOMA),
    "brats2024": LabelScheme((0, 1, 2, 3, 4), (*_GLIOMA, "resection cavity")),
}


def labels_from_text(words: Sequence[str]) -> LabelScheme:
    """Return the scheme of ``brats2021``, of ``0:background 1:tumour`` or of ``0 1 4``.

    Words may be joined by commas; labels without a name are called "label 4".

    Examples
    --------
    >>> from perturb_mpm.files import labels_from_text
    >>> labels_from_text(["0:background", "1:core", "4:enhancing"]).names
    ('background', 'core', 'enhancing')
    >>> labels_from_text(["brats2021"]).values
    (0, 1, 2, 4)
    """
    text = ",".join(words)
    if text in SCHEMES:
        return SCHEMES[text]
    pairs = [part.strip().partition(":") for part in text.split(",")]
    if not all(
        value.strip().isdecimal() and bool(name) == bool(colon) for value, colon, name in pairs
    ):
        raise InputError(
            f"`labels` must be one of {', '.join(SCHEMES)}, or values with or without names such "
            f"as 0:background 1:tumour, got {text}"
        )
    values = tuple(int(value) for value, _, _ in pairs)
    if len(values) < 2:
        raise InputError(f"`labels` must have background and at least one label more, got {text}")
    try:
        names = (name.strip() or f"label {int(value)}" for value, _, name in pairs)
        return LabelScheme(values, tuple(names))
    except ValueError as error:
        raise InputError(f"`labels` {text}: {error}") from error


def label_map_from_text(words: Sequence[str]) -> dict[int, int]:
    """Return value -> value of words such as ``4=3``: what a file has, what it stands for."""
    pairs = [part.partition("=") for word in words for part in word.split(",")]
    if not all(old.strip().isdecimal() and new.strip().isdecimal() for old, _, new in pairs):
        raise InputError(f"`map` must be pairs of label values such as 4=3, got {' '.join(words)}")
    found = {int(old): int(new) for old, _, new in pairs}
    if len(found) < len(pairs):
        raise InputError(f"`map` must name each value once, got {' '.join(words)}")
    return found


def choose_scheme(
    count: int,
    given: LabelScheme | Sequence[int] | None = None,
    known: LabelScheme | None = None,
    background: int | None = None,
) -> LabelScheme:
    """Return the user's scheme of ``count`` labels; else ``known``, else the numbers from 0.

    Values without names keep the names of ``known``. ``background`` is the value outside the mask.
    """
    if not FEWEST_LABELS <= count <= MOST_LABELS:
        raise InputError(f"there must be {FEWEST_LABELS} to {MOST_LABELS} labels, got {count}")
    values = given.values if isinstance(given, LabelScheme) else given
    if values is None:
        values = known.values if known else range(count)
    if len(values) != count:
        raise InputError(
            f"`labels` must give one for each of the {count} labels, background first, "
            f"got {len(values)}: {join_values(values)}"
        )
    names = given.names if isinstance(given, LabelScheme) else known.names if known else None
    try:
        if names is None:
            names = tuple(f"label_{value}" for value in values)
            if LabelScheme(tuple(values), names, background).has_background:
                names = ("background", *names[1:])
        return LabelScheme(tuple(values), names, background)
    except ValueError as error:
        raise InputError(f"`labels`: {error}") from error


def read_label_map(
    source: Source,
    scheme: LabelScheme,
    grid: Geometry,
    grid_source: Source,
    remedy: str = "",
    mapped: Mapping[int, int] | None = None,
    mask: NDArray[np.bool_] | None = None,
) -> NDArray[np.uint8]:
    """Read a label map (X, Y, Z) as labels 0 … L − 1.

    It must lie on ``grid``, which is that of ``grid_source``, and hold the values of ``scheme``
    alone, after those that are ``mapped`` to others; outside ``mask``, where a scheme has no
    background, its value ``outside`` too. ``remedy`` ends the error about another value.
    """
    volume = read_volume_3d(source, what="a label map")
    require_same_grid(source, volume.geometry, grid_source, grid)
    values = volume.voxels.copy()
    for old, new in (mapped or {}).items():
        values[volume.voxels == old] = new
    if mask is not None and not scheme.has_background:
        values[~mask & (values == scheme.outside)] = scheme.values[0]
    return label_indices(values, scheme, source, remedy)


def label_indices(
    values: NDArray[np.float32], scheme: LabelScheme, source: Source, remedy: str = ""
) -> NDArray[np.uint8]:
    """Return a label map as labels 0 … L − 1; a value that the scheme does not have is refused."""
    labels = np.zeros(values.shape, dtype=np.uint8)
    known = np.zeros(values.shape, dtype=np.bool_)
    for label, value in enumerate(scheme.values):
        here = values == value
        labels[here] = label
        known |= here
    if not known.all():
        raise source.error(
            f"must hold the label values {join_values(scheme.values)} alone, "
            f"got {values[~known][0]:g}{remedy}"
        )
    return labels


def label_map_values(label_map: NDArray[np.float32], source: Source) -> tuple[int, ...]:
    """Return 0 and then the other whole numbers that a label map (X, Y, Z) holds."""
    found = np.unique(label_map)
    whole = np.isfinite(found) & (found == np.floor(found))
    whole &= (found >= 0) & (found <= LARGEST_VALUE)
    if not whole.all():
        raise source.error(
            f"a label map must hold whole numbers from 0 to {LARGEST_VALUE}, got {found[~whole][0]}"
        )
    return (0, *(int(value) for value in found if value != 0))


def probabilities_from_label_map(
    label_map: NDArray[np.float32], values: tuple[int, ...], confidence: float, source: Source
) -> NDArray[np.float32]:
    """Return (L, X, Y, Z): ``confidence`` for a voxel's own label, the rest shared equally."""
    if not 1 / len(values) < confidence < 1:
        raise InputError(
            f"`confidence` must be above 1/{len(values)}, as likely as any of the "
            f"{len(values)} labels, and below 1, got {confidence:g}"
        )
    unknown = set(label_map_values(label_map, source)) - set(values) - {0}
    if 0 not in values and (label_map == 0).any():
        unknown.add(0)
    if unknown:
        raise source.error(
            f"holds the values {join_values(sorted(unknown))}, which are not among the "
            f"label values {join_values(values)}; give all of them by `labels`"
        )
    others = np.float32((1 - confidence) / (len(values) - 1))
    result = np.full((len(values), *label_map.shape), others, dtype=np.float32)
    for row, value in enumerate(values):
        result[row][label_map == value] = confidence
    return result


def confidence_warning(confidence: float) -> str:
    """Say what probabilities made from a label map are worth."""
    return (
        f"THE PROBABILITIES ARE MADE UP: every voxel of the label map is taken as {confidence:.0%} "
        "sure, in the middle of a structure as at its border. The uncertainty shows the images and "
        "this number, not what the segmentation's author or model was unsure of; give the model's "
        "probabilities where there are any."
    )


def join_values(values: Iterable[object]) -> str:
    """Return values as errors name them, such as "0, 1, 4"."""
    return ", ".join(map(str, values))


def label_colours(names: Sequence[str]) -> tuple[str, ...]:
    """Return a colour such as #a07bff for each label that is drawn; background is not.

    Tumour parts are known by their names and have the same colours everywhere; other labels take
    what is left.
    """
    chosen: list[str | None] = []
    for name in names:
        colour = _known_colour(name)
        chosen.append(None if colour in chosen else colour)
    palette = (_VIOLET, _GREEN, _AQUA, _BLUE, *_OTHERS)
    left = cycle([colour for colour in palette if colour not in chosen])
    return tuple(colour or next(left) for colour in chosen)


def rgb(colour: str) -> tuple[int, int, int]:
    """Return red, green and blue, 0 to 255, of a colour such as #a07bff."""
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def _known_colour(name: str) -> str | None:
    """Return the colour of a tumour part by its usual names, None for anything else."""
    words = name.lower().replace("_", " ").replace("-", " ")
    if "necro" in words or words in {"ncr", "netc"}:
        return _VIOLET
    if "non enhancing" in words or "nonenhancing" in words:
        return _BLUE
    if "edema" in words or words in {"ed", "snfh"}:
        return _GREEN
    if "enhancing" in words or words == "et":
        return _AQUA
    return None


RegionValues = Mapping[str, tuple[int, ...]]
"""Named sets of the user's label values."""


def region_values_from_text(words: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Return named sets of label values from "core=1,4"; "1,4" is called by its values."""
    regions: dict[str, tuple[int, ...]] = {}
    for word in words:
        before, equals, after = (part.strip() for part in word.partition("="))
        name, text = (before, after) if equals else (before, before)
        parts = [part.strip() for part in text.split(",")]
        if not name or not all(part.isdecimal() and len(part) <= 5 for part in parts):
            raise InputError(
                f"`regions` must be a name and label values, as in core=1,4, got {word!r}"
            )
        values = tuple(int(part) for part in parts)
        if len(set(values)) < len(values):
            raise InputError(f"`regions` must be different labels, got {word!r}")
        if name in regions:
            raise InputError(f"`regions` must have different names, got {name!r} twice")
        regions[name] = values
    return regions


def region_members(regions: RegionValues, scheme: LabelScheme) -> dict[str, tuple[int, ...]]:
    """Return the sets as label indices 0 … L − 1; no value may be unknown or the background's."""
    members = {}
    for name, values in regions.items():
        unknown = [value for value in values if value not in scheme.values]
        if unknown:
            raise InputError(
                f"`regions` must be label values out of {join_values(scheme.values)}, "
                f"got {join_values(values)} for {name}"
            )
        found = tuple(scheme.values.index(value) for value in values)
        if 0 in found and scheme.has_background:
            raise InputError(
                f"`regions` must be sets of foreground labels, got {name} with "
                f"{scheme.names[0]} ({scheme.values[0]})"
            )
        members[name] = found
    return members


def regions_from_text(words: Sequence[str], scheme: LabelScheme) -> dict[str, tuple[int, ...]]:
    """Return named sets of label indices from "core=1,4", in the user's label values.

    Examples
    --------
    >>> from perturb_mpm.files import labels_from_text, regions_from_text
    >>> scheme = labels_from_text(["0", "1", "2", "4"])
    >>> regions_from_text(["whole=1,2,4", "core=1,4"], scheme)  # as indices 0 … L − 1
    {'whole': (1, 2, 3), 'core': (1, 3)}
    """
    return region_members(region_values_from_text(words), scheme)


def check_region_values(regions: object) -> dict[str, tuple[int, ...]]:
    """Return regions after checking names and values; a TypeError or ValueError says what fails."""
    if not isinstance(regions, Mapping):
        raise TypeError(f"regions must be a table of names and label values, got {regions!r}")
    checked = {}
    for name, values in regions.items():
        if not isinstance(name, str) or not name.strip() or not name.isprintable():
            raise ValueError(f"regions must have names that are words in one line, got {name!r}")
        whole = isinstance(values, Sequence) and all(
            isinstance(each, int) and not isinstance(each, bool) and 0 <= each <= LARGEST_VALUE
            for each in values
        )
        if not whole or not values:
            raise ValueError(
                f"regions must be lists of label values, as in core = [1, 4], got {values!r} for "
                f"{name}"
            )
        if len(set(values)) < len(values):
            raise ValueError(f"regions must be different labels, got {list(values)} for {name}")
        checked[name] = tuple(values)
    return checked
