"""Regions as a user names them: sets of label values, as in ``core=1,4``.

One syntax for every command, and the same sets in settings files; what they mean for a case is
found with its label scheme.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perturb_mpm.files.labels import LARGEST_VALUE, LabelScheme
from perturb_mpm.files.source import InputError

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
                f"`regions` must be label values out of {_join(scheme.values)}, "
                f"got {_join(values)} for {name}"
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


def _join(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))
