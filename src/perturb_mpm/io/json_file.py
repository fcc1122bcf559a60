"""JSON files that appear whole or not at all, the same bytes for the same content."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from perturb_mpm.io.atomic import atomic_open


def write_json(path: str | os.PathLike[str], content: Mapping[str, Any] | Sequence[Any]) -> None:
    """Write ``content`` with its keys in the order given.

    NumPy's numbers and arrays become plain ones. NaN and infinity, which JSON does not have, are
    refused before a file is made: put None where there is no value.
    """
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False, default=_plain)
    with atomic_open(path) as file:
        file.write(text.encode() + b"\n")


def _plain(value: object) -> object:
    """Return what JSON has for a value that it does not know."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"content must be made of what JSON has, got {type(value).__name__}")
