"""The parts of an experiment that are done, kept with the identity of what made them.

The identity is all that the numbers depend on: plan, seed, forest, data, version. A folder that
was filled under another identity is refused, so that no run goes on with another's parts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.checks import ExpectedError
from perturb_mpm.storage import atomic_open, json_ready, read_arrays, write_arrays
from perturb_mpm.version import version

SETTINGS = "settings.json"
_LONGEST = 60  # characters of a value in an error


class OtherSettingsError(ExpectedError):
    """The folder holds parts of a run with other settings."""


class PartStore:
    """A folder of finished parts, so that an interrupted run can go on.

    Parameters
    ----------
    folder
        Where the parts are; made where it is missing.
    identity
        All that they depend on, as JSON can hold it; the installed version is added.
    argument
        What errors call the folder that the user named.
    """

    def __init__(
        self, folder: Path, identity: Mapping[str, object], argument: str = "output"
    ) -> None:
        self.folder = folder
        self._argument = argument
        self._identity = {"version": version(), **{k: json_ready(v) for k, v in identity.items()}}
        text = json.dumps(self._identity, sort_keys=True)
        self._digest = hashlib.sha256(text.encode()).hexdigest()
        settings = folder / SETTINGS
        if settings.exists():
            self._compare(settings)
        else:
            folder.mkdir(parents=True, exist_ok=True)
            _write(settings, self._identity)

    def load(self, key: str) -> dict[str, Any] | None:
        """Return what was kept of a part; None where it is not done or its file is damaged."""
        try:
            found = json.loads(self._file(key, "json").read_bytes())
            if found["part"] != key:
                return None
            content, digest = dict(found["content"]), found["identity"]
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None
        self._check(key, digest)
        return content

    def save(self, key: str, content: Mapping[str, object]) -> None:
        """Keep what JSON can hold of a part."""
        _write(self._file(key, "json"), {"part": key, "identity": self._digest, "content": content})

    def load_arrays(self, key: str) -> dict[str, NDArray[Any]] | None:
        """Return the arrays of a part; None where it is not done or its file is damaged."""
        try:
            arrays = read_arrays(self._file(key, "npz"))
            digest = str(arrays.pop("identity"))
        except (ValueError, KeyError):
            return None
        self._check(key, digest)
        return arrays

    def save_arrays(self, key: str, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Keep the arrays of a part, every bit of them."""
        write_arrays(self._file(key, "npz"), {"identity": np.array(self._digest), **arrays})

    def _file(self, key: str, ending: str) -> Path:
        return self.folder / f"{key}.{ending}"

    def _compare(self, settings: Path) -> None:
        try:
            found = json.loads(settings.read_bytes())
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise self._refusal(f"{settings} cannot be read as the settings of a run")
        for key in {**self._identity, **found}:
            there, here = found.get(key), self._identity.get(key)
            if there != here:
                raise self._refusal(
                    f"{self.folder} holds a run with other settings: {key} is {_short(there)} "
                    f"there and {_short(here)} now"
                )

    def _check(self, key: str, digest: object) -> None:
        if digest != self._digest:
            raise self._refusal(f"{self.folder} holds a part of a run with other settings, {key}")

    def _refusal(self, reason: str) -> OtherSettingsError:
        return OtherSettingsError(
            f"`{self._argument}` must be a folder for this run: {reason}; name another"
        )


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _write(file: Path, content: Mapping[str, object]) -> None:
    with atomic_open(file) as stream:
        stream.write((json.dumps(content, ensure_ascii=False) + "\n").encode())
