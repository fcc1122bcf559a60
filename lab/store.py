"""The folder of a run: its settings, and the parts that are done, one small file each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from lab.synthetic import Row
from perturb_mpm.checks import ExpectedError
from perturb_mpm.storage import atomic_open

SETTINGS = "settings.json"
PARTS = "parts"


class OtherSettingsError(ExpectedError):
    """The folder holds a run with other settings."""


class PartStore:
    """Keeps the rows of every part that is done, so that an interrupted run can go on."""

    def __init__(self, folder: Path, settings: Mapping[str, object]) -> None:
        self._parts = folder / PARTS
        file = folder / SETTINGS
        if file.exists():
            _compare(file, settings)
        else:
            _write(file, settings)
        self._parts.mkdir(exist_ok=True)

    def load(self, key: str) -> list[Row] | None:
        """Return the rows of a part, or None where it is not done or its file is damaged."""
        try:
            found = json.loads(self._file(key).read_bytes())
            return [Row(*values) for values in found["rows"]] if found["part"] == key else None
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def save(self, key: str, rows: list[Row]) -> None:
        """Keep the rows of a part."""
        _write(self._file(key), {"part": key, "columns": Row._fields, "rows": rows})

    def _file(self, key: str) -> Path:
        return self._parts / f"{key}.json"


def _compare(file: Path, settings: Mapping[str, object]) -> None:
    try:
        found = json.loads(file.read_bytes())
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise OtherSettingsError(f"{file} cannot be read as the settings of a run")
    for key in {**settings, **found}:
        there, here = found.get(key), settings.get(key)
        if there != here:
            raise OtherSettingsError(
                f"{file.parent} holds a run with other settings: {key} is {_short(there)} there "
                f"and {_short(here)} now"
            )


def _short(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _write(file: Path, content: Mapping[str, object]) -> None:
    with atomic_open(file) as stream:
        stream.write((json.dumps(content, ensure_ascii=False) + "\n").encode())
