"""The names of MRI sequences: many ways to write the same four."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from perturb_mpm.io.errors import InputError

Value = TypeVar("Value")

STANDARD = ("t1", "t1c", "t2", "flair")

ALIASES = {
    "t1": ("t1", "t1n", "t1w", "t1pre"),
    "t1c": ("t1c", "t1ce", "t1gd", "t1post", "t1wc", "t1wce"),
    "t2": ("t2", "t2w"),
    "flair": ("flair", "t2f", "fla", "t2flair"),
}
_STANDARD_NAME = {alias: name for name, aliases in ALIASES.items() for alias in aliases}


def standard_name(name: str) -> str:
    """Return our name of a sequence: t1ce becomes t1c; an unknown name stays, in small letters."""
    plain = name.lower().replace("-", "").replace("_", "").replace(" ", "")
    return _STANDARD_NAME.get(plain, name.lower())


def select_sequences(
    images: Mapping[str, Value], wanted: Sequence[str], what: str = "--image"
) -> dict[str, Value]:
    """Return the wanted sequences of a case in the wanted order, found by any of their names."""
    found: dict[str, Value] = {}
    for name, image in images.items():
        standard = standard_name(name)
        if standard in wanted and standard in found:
            raise InputError(f"{what}: {standard} must be there once, got it twice")
        found[standard] = image
    missing = [name for name in wanted if name not in found]
    if missing:
        raise InputError(
            f"{what}: the sequences {_listed(wanted)} are needed, {_listed(missing)} is missing; "
            f"got {_listed(images)}. Name them so in the files or by --image-names"
        )
    return {name: found[name] for name in wanted}


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
