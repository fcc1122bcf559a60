"""Files that appear whole under their name or not at all: bytes, JSON, named arrays.

The same content gives the same bytes every time.
"""

from __future__ import annotations

import errno
import io
import json
import math
import os
import secrets
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

# What file systems without fsync answer, some of them on a network.
_NO_FSYNC = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EBADF)


@contextmanager
def atomic_open(
    path: str | os.PathLike[str], *, survives_power_cut: bool = True
) -> Iterator[io.BufferedRandom]:
    """Open a binary file that takes the name ``path`` only once all of it is on disk.

    Until then the bytes go to a hidden file in the same folder, which is removed when the block
    raises or is interrupted. A file that already has the name is replaced in one step. What can
    be made again need not survive a power cut: that spares the wait for the disk.
    """
    final = Path(path)
    partial = final.with_name(f".{final.name}.{secrets.token_hex(4)}.part")
    # Opened by hand and not by tempfile, whose files only their owner may read.
    file = partial.open("x+b")
    try:
        with file:
            yield file
            file.flush()
            if survives_power_cut:
                _sync(file.fileno())
        partial.replace(final)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    if survives_power_cut:
        _sync_folder(final.parent)


def _sync_folder(folder: Path) -> None:
    """Make the new name itself survive a power cut, where the system can open folders."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        _sync(descriptor)
    finally:
        os.close(descriptor)


def _sync(descriptor: int) -> None:
    """Wait until the bytes are on disk, where the file system can say so."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_FSYNC:
            raise


def write_json(path: str | os.PathLike[str], content: object) -> None:
    """Write ``content`` as ``json_text`` does; paths that are no UTF-8 come back as they were."""
    text = json_text(content)
    with atomic_open(path) as file:
        file.write(text.encode(errors="backslashreplace"))


def json_text(content: object) -> str:
    """Return ``content`` as JSON in lines, its keys in the order given."""
    return json.dumps(json_ready(content), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def json_ready(value: object) -> Any:  # noqa: ANN401, PLR0911 - one line for each kind
    """Return a value as JSON gives it back.

    NaN becomes null and infinity "inf"; dataclasses become objects, tuples lists, paths text, and
    NumPy's numbers and arrays plain ones.
    """
    match value:
        case None | str() | bool() | int():
            return value
        case float():
            known = None if math.isnan(value) else f"{value:g}"
            return value if math.isfinite(value) else known
        case np.generic() | np.ndarray():
            return json_ready(value.tolist())
        case Mapping():
            return {str(key): json_ready(each) for key, each in value.items()}
        case list() | tuple():
            return [json_ready(each) for each in value]
        case os.PathLike():
            return os.fspath(value)
    if is_dataclass(value) and not isinstance(value, type):
        return json_ready(asdict(value))
    raise TypeError(f"content must be made of what JSON has, got {type(value).__name__}")


MISSING = object()  # an entry that one of two values does not have


def nested_differences(
    before: object, now: object, path: str = ""
) -> Iterator[tuple[str, object, object]]:
    """Yield path and both values of each entry that differs, at any depth of objects and lists.

    Examples
    --------
    >>> from perturb_mpm.storage import nested_differences
    >>> list(nested_differences({"a": {"b": [1, 2]}}, {"a": {"b": [1, 3]}}))
    [('a.b[1]', 2, 3)]
    """
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in [*before, *(key for key in now if key not in before)]:
            inner = f"{path}.{key}" if path else str(key)
            yield from nested_differences(before.get(key, MISSING), now.get(key, MISSING), inner)
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for index, (one, other) in enumerate(zip(before, now, strict=True)):
            yield from nested_differences(one, other, f"{path}[{index}]")
    elif before is MISSING or now is MISSING or type(before) is not type(now) or before != now:
        yield path, before, now


_COMPRESSION = 1  # votes shrink well at any level, and the user waits
_UNIX, _READABLE_BY_ALL = 3, 0o644 << 16  # the same on every system


def write_arrays(
    path: str | os.PathLike[str], arrays: Mapping[str, NDArray[Any]], *, to_cache: bool = False
) -> None:
    """Write the arrays; NumPy alone reads them.

    What goes ``to_cache`` can be made again: it is not compressed, and may be damaged by a power
    cut, which a reader notices.
    """
    method = zipfile.ZIP_STORED if to_cache else zipfile.ZIP_DEFLATED
    with (
        atomic_open(path, survives_power_cut=not to_cache) as file,
        zipfile.ZipFile(file, "w", method, compresslevel=_COMPRESSION) as archive,
    ):
        for name, array in arrays.items():
            # An entry named by ZipInfo has the first date that zip knows, not the present one.
            entry = zipfile.ZipInfo(f"{name}.npy")
            entry.compress_type = method
            entry.create_system, entry.external_attr = _UNIX, _READABLE_BY_ALL
            given = np.asarray(array)
            little = given.astype(given.dtype.newbyteorder("<"), copy=False)
            with archive.open(entry, "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, little, allow_pickle=False)
