"""TOML tables in and out: unknown keys with a suggestion, and values as text."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterable, Mapping


def check_keys(found: Iterable[str], known: Iterable[str], where: str) -> None:
    """Refuse a key that is not known, and name the nearest that is."""
    names = list(known)
    for key in found:
        if key not in names:
            near = difflib.get_close_matches(key, names, n=1, cutoff=0.5)
            meant = f": did you mean {near[0]}?" if near else f": known are {', '.join(names)}"
            raise ValueError(f"unknown key {key!r} {where}{meant}")


def table_text(header: str, values: Mapping[str, object]) -> str:
    """Write a table with those of its keys that have a value."""
    given = {key: value for key, value in values.items() if value is not None}
    lines = [header, *(f"{key} = {value_text(value)}" for key, value in given.items())]
    return "\n".join(lines) + "\n"


def value_text(value: object) -> str:
    """Write text, a number, or a list of them at any depth."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if isinstance(value, tuple | list):
        return f"[{', '.join(value_text(each) for each in value)}]"
    return repr(value)
