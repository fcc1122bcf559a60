"""Models as skops files: the same bytes every time, read only where every type is a known one."""

from __future__ import annotations

import io
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from perturb_mpm.files import InputError, Source, opened
from perturb_mpm.storage import atomic_open

KNOWN_TYPES = frozenset(
    {
        "builtins.NoneType",
        "builtins.bool",
        "builtins.dict",
        "builtins.float",
        "builtins.int",
        "builtins.list",
        "builtins.str",
        "builtins.tuple",
        "builtins.type",
        "numpy.dtype",
        "numpy.float64",
        "numpy.int64",
        "numpy.ndarray",
        "sklearn.ensemble._forest.RandomForestClassifier",
        "sklearn.tree._classes.DecisionTreeClassifier",
        "sklearn.tree._tree.Tree",
    }
)
"""Every type that a model may hold; a file with any other is not opened."""

_ASKED_FOR = ["sklearn.tree._tree.Tree"]  # known to us, but skops wants to be told so
_SCHEMA = "schema.json"
_FIRST_DAY = (1980, 1, 1, 0, 0, 0)


def save_skops(path: str | os.PathLike[str], content: dict[str, Any]) -> None:
    """Write ``content`` as a skops file that appears whole or not at all.

    skops names its members after addresses in memory and stamps them with the time, and between
    the fields of a tree's nodes lie bytes that nobody set. Here members are numbered in the order
    of the schema and stamped with one day, and gaps are zero: the same content, the same bytes.
    """
    from skops.io import dumps

    with zipfile.ZipFile(io.BytesIO(dumps(content))) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    schema = json.loads(members.pop(_SCHEMA))
    renamed = _renumber(schema)
    with atomic_open(path) as file, zipfile.ZipFile(file, "w") as archive:
        for old, new in renamed.items():
            _write_member(archive, new, _without_gaps(members[old]))
        _write_member(archive, _SCHEMA, json.dumps(schema, indent=1).encode())


def load_skops(path: str | os.PathLike[str], option: str = "--model") -> dict[str, Any]:
    """Read a file that ``save_skops`` wrote; refuse what is damaged or holds other types."""
    from skops.io import loads

    source = Source(option, Path(path))
    with opened(source) as file:
        data = file.read()
    unknown = sorted(types_in(data, source) - KNOWN_TYPES)
    if unknown:
        raise source.error(
            f"must hold nothing but trees and numbers, got the type {', '.join(unknown)}; it was "
            "not opened, since other types could run a program. Train the model anew"
        )
    try:
        content = loads(data, trusted=_ASKED_FOR)
    except Exception as error:
        raise _damaged(source, error) from error
    if not isinstance(content, dict):
        raise source.error(f"must be a model of perturb-mpm train, got a {type(content).__name__}")
    return content


def types_in(data: bytes, source: Source) -> frozenset[str]:
    """Return every type that the schema of a skops file names."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            schema = json.loads(archive.read(_SCHEMA))
    except (zipfile.BadZipFile, KeyError, ValueError, OSError, RuntimeError) as error:
        raise _damaged(source, error) from error
    return frozenset(f"{node.get('__module__')}.{node['__class__']}" for node in _nodes(schema))


def _damaged(source: Source, error: Exception) -> InputError:
    return source.error(f"must be a model of perturb-mpm train; it is not, or damaged ({error})")


def _nodes(value: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - JSON
    """Return every object of a schema that names a class, in order."""
    found = []
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            if "__class__" in each:
                found.append(each)
            waiting.extend(reversed(each.values()))
        elif isinstance(each, list):
            waiting.extend(reversed(each))
    return found


def _renumber(schema: Any) -> dict[str, str]:  # noqa: ANN401 - JSON
    """Give objects numbers in the order of the schema; return old and new names of members."""
    numbers: dict[object, int] = {}
    members: dict[str, str] = {}
    for place, node in enumerate(_nodes(schema)):
        if "__id__" in node:
            # Whether two equal words are one object depends on where they came from.
            key = ("word", place) if node.get("__loader__") == "JsonNode" else node["__id__"]
            node["__id__"] = numbers.setdefault(key, len(numbers))
        if "file" in node:
            old = node["file"]
            ending = Path(old).suffix
            members.setdefault(old, f"{len(members)}{ending}")
            node["file"] = members[old]
    return members


def _without_gaps(content: bytes) -> bytes:
    """Return an array file with zeros between the fields of its records; others as they are."""
    array = np.load(io.BytesIO(content), allow_pickle=False)
    if array.dtype.names is None:
        return content
    clean = np.zeros(array.shape, dtype=array.dtype)
    for name in array.dtype.names:
        clean[name] = array[name]
    file = io.BytesIO()
    np.save(file, clean, allow_pickle=False)
    return file.getvalue()


def _write_member(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    info = zipfile.ZipInfo(name, date_time=_FIRST_DAY)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = 0o644 << 16
    archive.writestr(info, content)
