"""Files that appear whole or not at all, and readers that take whatever bytes they find.

What is written (bytes, JSON, named arrays) takes its name when all of it is on disk, and the same
content gives the same bytes every time. What others wrote as .npz, JSON, TOML or YAML is read here
alone: a size is checked before anything is unpacked, nothing is unpickled, and a file that is
damaged or meant to do harm raises ``DamagedError`` and nothing else. A lock on a file ends when
the file is closed or with the process.
"""

from __future__ import annotations

import ast
import errno
import hashlib
import io
import json
import logging
import math
import os
import re
import secrets
import stat
import struct
import sys
import tokenize
import tomllib
import unicodedata
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO, NoReturn

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.checks import ExpectedError, in_short

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
        waiting = _WAITING.get()
        if waiting is not None:
            waiting[final] = partial
            return
        partial.replace(final)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    if survives_power_cut:
        _sync_folder(final.parent)


_WAITING: ContextVar[dict[Path, Path] | None] = ContextVar("waiting", default=None)
"""By final name the files of a set that is being written."""


@contextmanager
def write_set(*obsolete: Path) -> Iterator[None]:
    """Let files that belong together take their names together, at the end of the block.

    Where the block raises, as on a full disk, every file stays as it was. Earlier files of these
    names, and the ``obsolete`` ones that only an earlier set has, are removed before the first new
    one appears: a process that is killed in between leaves some files of one set, never of two.
    Another process that is about to do the same in the folder waits.
    """
    if _WAITING.get() is not None:  # a part of a larger set
        yield
        return
    waiting: dict[Path, Path] = {}
    token = _WAITING.set(waiting)
    try:
        yield
        _WAITING.reset(token)
        with _alone_in({path.parent for path in (*obsolete, *waiting)}):
            for path in (*obsolete, *waiting):
                path.unlink(missing_ok=True)
            for final in list(waiting):
                waiting[final].replace(final)
                del waiting[final]
                _sync_folder(final.parent)
    finally:
        if _WAITING.get() is waiting:
            _WAITING.reset(token)
        for partial in waiting.values():
            partial.unlink(missing_ok=True)


@contextmanager
def _alone_in(folders: Collection[Path]) -> Iterator[None]:
    """Let no other process replace a set in these folders, where the system can lock folders."""
    with ExitStack() as stack:
        for folder in sorted(folders) if os.name == "posix" else ():
            import fcntl

            descriptor = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            with suppress(OSError):  # a file system without locks
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


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


def fold_name(name: str) -> str:
    """Return what is the same of two names that some file systems take for one."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def write_json(path: str | os.PathLike[str], content: object) -> None:
    """Write ``content`` as ``json_text`` does; paths that are no UTF-8 come back as they were."""
    write_text(path, json_text(content))


def write_text(path: str | os.PathLike[str], text: str) -> None:
    r"""Write a text in UTF-8; what is no character, as in the names of some files, as \udcff."""
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
    path: str | os.PathLike[str],
    arrays: Mapping[str, NDArray[Any]],
    *,
    compress: bool = True,
    stored: Collection[str] = (),
    to_cache: bool = False,
) -> None:
    """Write the arrays; NumPy alone reads them.

    Those named in ``stored`` are not compressed. What goes ``to_cache`` can be made again: nothing
    of it is compressed, and it may be damaged by a power cut, which a reader notices.
    """
    compress = compress and not to_cache
    with (
        atomic_open(path, survives_power_cut=not to_cache) as file,
        zipfile.ZipFile(file, "w") as archive,
    ):
        for name, array in arrays.items():
            # An entry named by ZipInfo has the first date that zip knows, not the present one.
            entry = zipfile.ZipInfo(f"{name}.npy")
            packed = compress and name not in stored
            entry.compress_type = zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED
            # Such an entry does not take the level of its archive. Python 3.13 names it without _.
            entry._compresslevel = _COMPRESSION  # type: ignore[attr-defined]
            entry.create_system, entry.external_attr = _UNIX, _READABLE_BY_ALL
            given = np.asarray(array)
            little = given.astype(given.dtype.newbyteorder("<"), copy=False)
            with archive.open(entry, "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, little, allow_pickle=False)


DAMAGE = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
    struct.error,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)
"""What Python, NumPy and nibabel raise over bytes that no writer has written."""

LIMIT_VARIABLE = "PERTURB_MPM_LARGEST_FILE_GB"
DEFLATE = 1032  # the most bytes that one compressed byte can stand for
_USUAL_LIMIT = 2 << 30  # bytes
_UNKNOWN_MACHINE = 4 << 30  # bytes of memory
_MOST_TEXT = 64 << 20  # bytes of JSON or TOML
_MOST_YAML, _DEEPEST_YAML = 64 << 10, 20  # bytes; its reader is slow where it is deep
_MOST_TOML = 1 << 20  # its reader takes a second for a megabyte
_DEEPEST_TOML = 64  # dots in a key, whose reader takes time with their square
_LONGEST_REASON = 300  # characters
_MOST_MEMBERS = 10_000
_MOST_NPY_HEADER = 10_000  # bytes, as NumPy has it
_CHUNK = 1 << 20


class DamagedError(ExpectedError):
    """A file is cut short, changed, too large, or of another kind."""


def largest_file() -> int:
    """Return how many bytes one file of a user may become in memory.

    That is 2 GiB, or what the environment variable ``PERTURB_MPM_LARGEST_FILE_GB`` says.
    """
    text = os.environ.get(LIMIT_VARIABLE, "")
    try:
        size = float(text) * 1e9
    except ValueError:
        return _USUAL_LIMIT
    return int(size) if 0 < size < math.inf else _USUAL_LIMIT


def largest_state() -> int:
    """Return how many bytes a file that a run wrote may become: half of the memory there is.

    Such a file holds all that the run was given in several files, so it may be larger than one.
    """
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        memory = _UNKNOWN_MACHINE
    return max(memory // 2, largest_file())


def require_size(asked: int, limit: int) -> None:
    """Refuse what would take more memory than the limit, before it is taken."""
    if asked > limit:
        remedy = f"; if it is right, set {LIMIT_VARIABLE}" if limit == largest_file() else ""
        raise DamagedError(
            f"it would take {asked / 1e9:.3g} GB unpacked, more than the {limit / 1e9:.3g} GB that "
            f"it may take{remedy}"
        )


def require_file(path: Path) -> None:
    """Refuse what is there but no file: reading a pipe or a device may never end."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
        raise DamagedError(f"{path} must be a file, got a pipe or a device")


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def refuse_damage(name: object) -> Iterator[None]:
    """Turn whatever damaged bytes raise inside the block into one short line about ``name``."""
    try:
        yield
    except FileNotFoundError:
        raise  # which is no damage: a file may well be absent
    except DamagedError as error:
        raise DamagedError(f"{name} cannot be read: {error}") from error
    except DAMAGE as error:
        raise DamagedError(f"{name} cannot be read: {in_short(error_text(error))}") from error


def error_text(error: BaseException) -> str:
    """Return in one line what an error says, its kind where it says nothing."""
    if isinstance(error, MemoryError):
        return "there is not enough memory for it"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    words = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    text = in_short(" ".join(words.split()), _LONGEST_REASON)
    if isinstance(error, KeyError):
        return f"it lacks {text}"
    return text or type(error).__name__


def read_arrays(
    path: Path, names: Collection[str] | None = None, limit: int | None = None
) -> dict[str, NDArray[Any]]:
    """Read the arrays of an .npz file, or those of the ``names`` that it has.

    ``limit`` is how many bytes they may take together. A damaged file is a ``DamagedError``.
    """
    try:
        with refuse_damage(path):
            require_file(path)
            with path.open("rb") as file:
                return arrays_in(file, names, limit)
    except FileNotFoundError:
        raise DamagedError(f"{path} cannot be read: there is no such file") from None


def arrays_in(
    file: IO[bytes], names: Collection[str] | None = None, limit: int | None = None
) -> dict[str, NDArray[Any]]:
    """Read arrays as ``read_arrays`` does from a file that is open; may raise any ``DAMAGE``."""
    with zipfile.ZipFile(file) as archive:
        members = {
            name: member
            for name, member in _members(archive).items()
            if names is None or name in names
        }
        packed, asked = 0, 0
        for name, member in members.items():
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise ValueError(f"{name} cannot be read (compression type {member.compress_type})")
            packed += member.compress_size
            asked += member.file_size
        if asked > packed * DEFLATE or packed > os.fstat(file.fileno()).st_size:
            raise ValueError(f"its list says that it has {asked} bytes in {packed}")
        require_size(asked, largest_file() if limit is None else limit)
        found = {}
        for name, member in members.items():
            try:
                found[name] = _array(archive, member)
            except DAMAGE as error:
                raise ValueError(f"{name} cannot be read ({error_text(error)})") from error
        return found


def array_names(file: IO[bytes]) -> list[str]:
    """Return the names of the arrays in an open .npz file; may raise any ``DAMAGE``."""
    with zipfile.ZipFile(file) as archive:
        return list(_members(archive))


def _members(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    members = archive.infolist()
    if len(members) > _MOST_MEMBERS:
        raise ValueError(f"it has {len(members)} members")
    found = {member.filename.removesuffix(".npy"): member for member in members}
    if len(found) < len(members):
        raise ValueError("it has two members of the same name")
    return found


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    """Return one array after comparing what its header says with the bytes there are."""
    with archive.open(member) as stream:
        shape, columns_first, dtype, used = _npy_header(stream)
        size = math.prod(shape) * dtype.itemsize
        if used + size != member.file_size:
            raise ValueError(
                f"{member.filename} has {member.file_size - used} bytes, but its header says "
                f"{in_short(str(shape), 60)} of type {dtype}"
            )
        content = np.empty(size, dtype=np.uint8)
        _read_into(stream, content)
        stream.read(1)  # only at its end does a member compare its checksum
    array: NDArray[Any] = np.ndarray(
        shape, dtype, buffer=content, order="F" if columns_first else "C"
    )
    codes = content.view("<u4") if dtype.kind == "U" else np.zeros(0)
    if codes.max(initial=0) > 0x10FFFF:  # NumPy looks at none of them
        raise ValueError("a text has numbers that are no characters")
    return array


def _read_into(stream: IO[bytes], content: NDArray[np.uint8]) -> None:
    """Fill an array with the next bytes of a stream; EOFError where there are too few."""
    filled = 0
    while filled < len(content):
        part = stream.read(min(_CHUNK, len(content) - filled))
        if not part:
            raise EOFError(f"it ends after {filled} of {len(content)} bytes")
        content[filled : filled + len(part)] = np.frombuffer(part, dtype=np.uint8)
        filled += len(part)


def _npy_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Return shape, whether columns come first, type, and the length of the header."""
    start = stream.read(8)
    if start[:6] != b"\x93NUMPY" or start[6:7] not in (b"\1", b"\2", b"\3"):
        raise ValueError("a member is no array")
    width = 2 if start[6] == 1 else 4
    length = int.from_bytes(stream.read(width), "little")
    if length > _MOST_NPY_HEADER:
        raise ValueError(f"the header of an array has {length} bytes")
    text = stream.read(length)
    header = ast.literal_eval(text.decode("utf-8" if start[6] == 3 else "latin1").strip())
    shape, columns_first = header["shape"], header["fortran_order"]
    if set(header) != {"descr", "fortran_order", "shape"} or type(columns_first) is not bool:
        raise ValueError("the header of an array has other entries than NumPy's")
    if not isinstance(shape, tuple) or not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError(f"an array has the shape {in_short(repr(shape), 60)}")
    if not isinstance(header["descr"], str):
        raise TypeError("an array must hold one number each, got fields")
    dtype = np.dtype(header["descr"])
    if dtype.kind not in "biufUS":
        raise ValueError(f"an array must hold numbers or text, got {dtype}")
    return shape, columns_first, dtype, 8 + width + length


def read_json(path: Path) -> Any:  # noqa: ANN401 - whatever the file says
    """Read JSON in UTF-8; a damaged file is a ``DamagedError``, a missing one is not."""
    return parse_json(read_text_bytes(path), path)


def parse_json(content: bytes | str, name: object) -> Any:  # noqa: ANN401 - whatever it says
    """Return what JSON says; NaN and infinity, which it does not have, are refused."""
    with refuse_damage(name):
        if len(content) > _MOST_TEXT:
            raise ValueError(f"it is longer than {_MOST_TEXT >> 20} MiB")
        text = content.decode("utf-8-sig") if isinstance(content, bytes) else content
        return json.loads(text, parse_constant=_no_number, parse_float=_finite)


def parse_toml(content: bytes | str, name: object) -> dict[str, Any]:
    """Return the tables of a TOML text."""
    with refuse_damage(name):
        if len(content) > _MOST_TOML:
            raise ValueError(f"it is longer than {_MOST_TOML >> 20} MiB")
        text = content.decode("utf-8-sig") if isinstance(content, bytes) else content
        if any(key.count(".") > _DEEPEST_TOML for key in re.findall(r"[-\w.\"' \t]+", text)):
            raise RecursionError
        return tomllib.loads(text)


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file; a damaged file is a ``DamagedError``, a missing one is not."""
    return parse_toml(read_text_bytes(path), path)


def read_yaml(path: Path) -> Any:  # noqa: ANN401 - whatever the file says
    """Read a YAML file of plain values; a damaged file is a ``DamagedError``.

    Nothing may stand for something said before: a few lines of that stand for any number.
    """
    content = read_text_bytes(path)
    with refuse_damage(path):
        if len(content) > _MOST_YAML:
            raise ValueError(f"it is longer than {_MOST_YAML >> 10} KiB")
        import yaml  # type: ignore[import-untyped] # comes with Dask, whose files are in it

        text = content.decode("utf-8-sig")
        try:
            depth = 0
            for event in yaml.parse(text):
                depth += isinstance(event, yaml.CollectionStartEvent)
                depth -= isinstance(event, yaml.CollectionEndEvent)
                if depth > _DEEPEST_YAML or isinstance(event, yaml.AliasEvent):
                    raise ValueError("it is nested too deeply, or refers to itself")
            return yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ValueError(str(error)) from error


def read_text_bytes(path: Path) -> bytes:
    """Return the bytes of a file of text that is not too long for one."""
    with refuse_damage(path):
        require_file(path)
        with path.open("rb") as file:
            content = file.read(_MOST_TEXT + 1)
        if len(content) > _MOST_TEXT:
            raise ValueError(f"it is longer than {_MOST_TEXT >> 20} MiB")
        return content


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{in_short(text, 60)} is too large a number")
    return value


_LOG = logging.getLogger(__name__)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_NO_WAITING = getattr(os, "O_NONBLOCK", 0)


class LockedError(ExpectedError):
    """Another process is using a folder or file."""


if sys.platform == "win32":  # pragma: no cover - another system
    import msvcrt

    def _lock(file: BinaryIO, *, shared: bool) -> None:
        if shared:
            return  # Windows knows none that several may have
        file.seek(0)
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError as error:
            if error.errno in {errno.EACCES, errno.EDEADLK}:
                raise BlockingIOError(error.errno, "the file is locked") from error
            raise

else:

    def _lock(file: BinaryIO, *, shared: bool) -> None:
        import fcntl

        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)


def open_lock(path: Path, message: str, *, shared: bool = False) -> BinaryIO:
    """Return a file, made where it is missing, that is locked for this process while it is open.

    If another process has it, ``LockedError`` says ``message``. A ``shared`` lock excludes only
    those that are not (on Windows it excludes nobody). A folder, link, pipe or device in its
    stead is refused. Where the file system has no locks, a second process goes unnoticed, and the
    log says so.
    """
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            file = _open_regular(path)
        except FileNotFoundError:
            continue  # whoever had the lock has removed the folder meanwhile
        try:
            _lock(file, shared=shared)
        except BlockingIOError:
            file.close()
            raise LockedError(message) from None
        except OSError as error:
            _LOG.debug("%s cannot be locked (%s): a second process goes unnoticed", path, error)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        file.close()  # it was removed before we had its lock


def _open_regular(path: Path) -> BinaryIO:
    """Open a file without following a link and without waiting for the other end of a pipe."""
    refusal = ExpectedError(f"{path} must be a file, got a folder, link, pipe or device: remove it")
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | _NO_LINK | _NO_WAITING
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK, errno.ENXIO, errno.EISDIR):
            raise refusal from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise refusal
    return os.fdopen(descriptor, "ab")
