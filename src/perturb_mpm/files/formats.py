"""Volumes in formats other than NIfTI: NRRD, MetaImage, MGH, pictures.

A file is known by its first bytes, what is written by the ending of its name. What is read comes
out as (X, Y, Z), or (X, Y, Z, maps) where a file has several numbers a voxel, with the affine of
NIfTI's directions: right, front, up. What is written gives the same bytes every time. NRRD and
MetaImage begin with lines of text; voxels in a file of their own must lie in the same folder.
"""

from __future__ import annotations

import bz2
import gzip
import io
import math
import os
import re
import struct
import zlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, Self, cast

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.checks import in_short, number
from perturb_mpm.files.source import Source
from perturb_mpm.optional import optional_package
from perturb_mpm.storage import atomic_open, largest_file, require_size

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

NIFTI_ENDINGS = (".nii.gz", ".nii")
PICTURE_ENDINGS = (".tif", ".tiff", ".png")
ENDINGS = (*NIFTI_ENDINGS, ".nrrd", ".mha", ".mgz", ".mgh", *PICTURE_ENDINGS)
"""Of the files that can be written."""
READ_ENDINGS = (*ENDINGS, ".nhdr", ".mhd")

_PNG, _TIFF = b"\x89PNG", (b"II*\0", b"MM\0*")
GZIP = b"\x1f\x8b"
_NRRD, _METAIMAGE = b"NRRD", (b"ObjectType", b"NDims", b"Comment")
_LONGEST_HEADER = 1 << 20
LONGEST_END = 64 << 20  # bytes after the voxels, which no writer leaves
_LONGEST_PADDING = 1 << 20  # zeros after a gzip stream, which Python's gzip skips one by one
_CHUNK = 1 << 20
_COMPRESSION = 6
_GZIP_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"  # no name, no time, no system
_GZIP_BLOCK = 1 << 20
_MOST_GZIP_THREADS = 8
_LPS = np.diag([-1.0, -1.0, 1.0, 1.0])  # from left, back, up to right, front, up
_CODES = ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8"]
_NRRD_TYPES = {
    "i1": ("signed char", "int8", "int8_t"),
    "u1": ("uchar", "unsigned char", "uint8", "uint8_t"),
    "i2": ("short", "short int", "signed short", "signed short int", "int16", "int16_t"),
    "u2": ("ushort", "unsigned short", "unsigned short int", "uint16", "uint16_t"),
    "i4": ("int", "signed int", "int32", "int32_t"),
    "u4": ("uint", "unsigned int", "uint32", "uint32_t"),
    "i8": ("longlong", "long long", "long long int", "signed long long", "int64", "int64_t"),
    "u8": ("ulonglong", "unsigned long long", "unsigned long long int", "uint64", "uint64_t"),
    "f4": ("float",),
    "f8": ("double",),
}
_NRRD_FIELDS = {
    *("content", "number", "type", "block size", "dimension", "space", "space dimension", "sizes"),
    *("spacings", "thicknesses", "axis mins", "axis maxs", "space directions", "centerings"),
    *("kinds", "labels", "units", "min", "max", "old min", "old max", "endian", "encoding"),
    *("line skip", "byte skip", "sample units", "space units", "space origin"),
    *("measurement frame", "data file"),
}
_NRRD_SYNONYMS = {
    **{name.replace(" ", ""): name for name in _NRRD_FIELDS if " " in name},
    "centers": "centerings",
}
_MILLIMETRES = ("", "mm", "millimeter", "millimeters", "millimetre", "millimetres", "???", "none")
_META_SYNONYMS = {
    "ElementByteOrderMSB": "BinaryDataByteOrderMSB",
    **dict.fromkeys(("Rotation", "Orientation"), "TransformMatrix"),
    **dict.fromkeys(("Position", "Origin"), "Offset"),
}
_META_TYPES = dict(
    zip(
        _CODES,
        ("CHAR", "UCHAR", "SHORT", "USHORT", "INT", "UINT", "LONG_LONG", "ULONG_LONG", "FLOAT"),
    )
) | {"f8": "DOUBLE"}
_SPACES = {  # which way the axes of space point, as factors to right, front, up
    "left-posterior-superior": (-1.0, -1.0, 1.0),
    "lps": (-1.0, -1.0, 1.0),
    "right-anterior-superior": (1.0, 1.0, 1.0),
    "ras": (1.0, 1.0, 1.0),
    "left-anterior-superior": (-1.0, 1.0, 1.0),
    "las": (-1.0, 1.0, 1.0),
}


class _PackedFile:
    """A file as Python's gzip reads it, which refuses to look for the end of zeros for ever."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._skipped = file, 0

    def read(self, size: int = -1) -> bytes:
        """Read so many bytes; one at a time is how zeros are skipped."""
        self._skipped = self._skipped + 1 if size == 1 else 0
        if self._skipped > _LONGEST_PADDING:
            raise ValueError(f"more than {_LONGEST_PADDING >> 20} MiB of zeros follow its voxels")
        return self._file.read(size)

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to another byte."""
        return self._file.seek(offset, whence)


def open_gzip(file: BinaryIO) -> gzip.GzipFile:
    """Return what a compressed file unpacks to, as a stream."""
    return gzip.GzipFile(fileobj=cast("BinaryIO", _PackedFile(file)), mode="rb")


class GzipWriter(io.RawIOBase):
    """A stream whose bytes go to ``file`` as one member of gzip, compressed in threads.

    Each block is compressed for itself, so that equal bytes give equal files on any machine.
    Seeking is forward alone, over zeros, as writers of images do.

    Examples
    --------
    >>> import gzip, io
    >>> from perturb_mpm.files.formats import GzipWriter
    >>> file = io.BytesIO()
    >>> with GzipWriter(file, level=6) as stream:
    ...     stream.write(b"voxels")
    6
    >>> gzip.decompress(file.getvalue())
    b'voxels'
    """

    def __init__(self, file: IO[bytes], level: int) -> None:
        self._file, self._level = file, level
        self._rest = bytearray()
        self._crc = self._size = 0
        threads = min(os.cpu_count() or 1, _MOST_GZIP_THREADS)
        self._pool = ThreadPoolExecutor(threads)
        self._waiting: deque[Future[bytes]] = deque()
        self._most_waiting = 2 * threads

    def __enter__(self) -> Self:
        self._file.write(_GZIP_HEADER)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._pool:
            if kind is None:
                self._submit(bytes(self._rest), last=True)
                while self._waiting:
                    self._file.write(self._waiting.popleft().result())
                self._file.write(struct.pack("<II", self._crc, self._size & 0xFFFFFFFF))

    def writable(self) -> bool:
        """Return that it is."""
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        """Take bytes; full blocks are compressed while more come."""
        given = memoryview(data).cast("B")
        self._crc = zlib.crc32(given, self._crc)
        self._size += len(given)
        start, stop = 0, _GZIP_BLOCK - len(self._rest)
        while stop < len(given):
            self._submit(bytes(self._rest) + given[start:stop], last=False)
            self._rest.clear()
            start, stop = stop, stop + _GZIP_BLOCK
        self._rest += given[start:]
        return len(given)

    def tell(self) -> int:
        """Return how many bytes were taken."""
        return self._size

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Write zeros up to ``offset``."""
        if whence != os.SEEK_SET or offset < self._size:
            raise OSError(f"cannot go back from {self._size} to {offset}")
        self.write(bytes(offset - self._size))
        return offset

    def _submit(self, block: bytes, *, last: bool) -> None:
        if len(self._waiting) == self._most_waiting:
            self._file.write(self._waiting.popleft().result())
        self._waiting.append(self._pool.submit(_deflate, block, self._level, last=last))


def _deflate(block: bytes, level: int, *, last: bool) -> bytes:
    """Return a piece of a deflate stream that ends at a byte, so that another may follow."""
    packer = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)
    return packer.compress(block) + packer.flush(zlib.Z_FINISH if last else zlib.Z_SYNC_FLUSH)


@dataclass(frozen=True)
class StoredVolume:
    """The voxels of a file, (X, Y, Z) or (X, Y, Z, maps), and where they are."""

    voxels: NDArray[Any]
    affine: NDArray[np.float64]  # (4, 4), voxel indices to mm: right, front, up
    other_files: tuple[Path, ...] = ()  # with the voxels, beside the header


def format_ending(path: str | os.PathLike[str]) -> str | None:
    """Return the ending of a file's name that stands for a format, or None."""
    name = Path(path).name.lower()
    return next((ending for ending in ENDINGS if name.endswith(ending)), None)


def output_ending(path: Path) -> str:
    """Return the ending of what is written for an input: its own; .nii.gz of NIfTI and 3-D TIFF."""
    if find_tiff_spacing(path) is not None:
        return ".nii.gz"
    written = {".nhdr": ".nrrd", ".mhd": ".mha", ".tiff": ".tif", ".png": ".tif", ".mgh": ".mgz"}
    ending = written.get(path.suffix.lower(), format_ending(path))
    return ".nii.gz" if ending is None or ending in NIFTI_ENDINGS else ending


def read_other_format(file: BinaryIO, path: Path) -> StoredVolume | None:
    """Read a file that is no NIfTI, or return None; ValueError and others say what is wrong."""
    start = file.read(12)
    file.seek(0)
    if start.startswith(_NRRD):
        return _read_nrrd(file, path)
    if start.lstrip().startswith(_METAIMAGE):
        return _read_metaimage(file, path)
    if start.startswith((_PNG, *_TIFF)):
        spacing = find_tiff_spacing(path) if start.startswith(_TIFF) else None
        return _read_picture(file) if spacing is None else _read_tiff_volume(file, *spacing)
    if path.suffix.lower() in {".mgz", ".mgh"}:
        return _read_mgh(file, compressed=start.startswith(GZIP))
    return None


def write_other_format(
    path: str | os.PathLike[str], voxels: NDArray[Any], affine: NDArray[np.float64]
) -> None:
    """Write (X, Y, Z) or (X, Y, Z, maps) in the format of the ending; the same bytes every time."""
    ending = format_ending(path)
    if ending in PICTURE_ENDINGS:
        _check_picture(voxels, ending)
    with atomic_open(path) as file:
        if ending == ".nrrd":
            write_nrrd(file, voxels, affine)
        elif ending == ".mha":
            _write_metaimage(file, voxels, affine)
        elif ending in PICTURE_ENDINGS:
            _write_picture(file, voxels, "PNG" if ending == ".png" else "TIFF")
        elif ending == ".mgz":
            with GzipWriter(file, _COMPRESSION) as stream:
                _write_mgh(stream, voxels, affine)
        else:
            _write_mgh(file, voxels, affine)


def _read_nrrd(file: BinaryIO, path: Path) -> StoredVolume:
    header = _nrrd_header(file)
    sizes = [int(n) for n in header["sizes"].split()]
    if len(sizes) != int(header["dimension"]):
        raise ValueError(f"its sizes must be one for each of {header['dimension']} axes")
    for skip in ("line skip", "byte skip"):
        if int(header.get(skip, "0")) != 0:
            raise ValueError(f"its {skip} must be 0, got {header[skip]}")
    encoding = header["encoding"].lower()
    with _open_voxels(file, path, header.get("data file")) as (content, others):
        voxels = _values(content, encoding, _nrrd_type(header), sizes)
    directions, spatial = _nrrd_directions(header, len(sizes))
    order = [*spatial, *(axis for axis in range(len(sizes)) if axis not in spatial)]
    affine = np.eye(4)
    affine[:3, : len(spatial)] = directions.T
    if "space origin" in header:
        origin = _numbers(header["space origin"])
        affine[: len(origin), 3] = origin
    factors = _SPACES.get(header.get("space", "lps").lower())
    if factors is None:
        raise ValueError(f"its space must be that of a patient, got {header['space']}")
    affine = np.diag([*factors, 1.0]) @ affine
    return _three_axes(voxels.transpose(order), len(spatial), affine, others)


def _read_metaimage(file: BinaryIO, path: Path) -> StoredVolume:
    header = _meta_header(file)
    axes = int(header["NDims"])
    sizes = [int(n) for n in header["DimSize"].split()]
    channels = int(header.get("ElementNumberOfChannels", "1"))
    known = {name: code for code, name in _META_TYPES.items()}
    code = known.get(header["ElementType"].removeprefix("MET_"))
    if code is None or len(sizes) != axes:
        raise ValueError(f"its element type {header['ElementType']} or its DimSize is not known")
    if not _is_true(header.get("BinaryData", "True")):
        raise ValueError("its data must be binary, got text")
    big = _is_true(header.get("BinaryDataByteOrderMSB", "False"))
    dtype = np.dtype((">" if big else "<") + code)
    encoding = "zlib" if _is_true(header.get("CompressedData", "False")) else "raw"
    skip = int(header.get("HeaderSize", "0"))
    if skip and encoding != "raw":
        raise ValueError(f"its HeaderSize must be 0 where its voxels are compressed, got {skip}")
    local = header["ElementDataFile"] in ("LOCAL", "Local", "local")
    if local and 0 < skip < file.tell():
        raise ValueError(f"its HeaderSize must be at least {file.tell()}, got {skip}")
    several = [channels] if channels > 1 else []
    name = None if local else header["ElementDataFile"]
    with _open_voxels(file, path, name) as (content, others):
        voxels = _values(content, encoding, dtype, [*several, *sizes], skip)
    if several:
        voxels = np.moveaxis(voxels, 0, -1)
    rotation = np.eye(axes).ravel()
    if "TransformMatrix" in header:
        rotation = np.array([float(v) for v in header["TransformMatrix"].split()])
    spacing = header.get("ElementSpacing", header.get("ElementSize", " ".join("1" * axes)))
    steps = np.array([float(v) for v in spacing.split()])
    affine = np.eye(4)
    # A row of the matrix is the direction of an axis.
    affine[:axes, :axes] = rotation.reshape(axes, axes).T * steps
    if "Offset" in header:
        affine[:axes, 3] = [float(v) for v in header["Offset"].split()]
    return _three_axes(voxels, axes, _LPS @ affine, others)


def write_nrrd(
    file: BinaryIO,
    voxels: NDArray[Any],
    affine: NDArray[np.float64],
    fields: Mapping[str, str] | None = None,
) -> None:
    """Write (X, Y, Z) or (X, Y, Z, maps) with the maps as the fastest axis; ``fields`` are keys."""
    code = voxels.dtype.str[1:]
    several = voxels.ndim == 4
    stored = np.moveaxis(voxels, -1, 0) if several else voxels
    space = _LPS @ affine
    *directions, origin = (f"({_join_numbers(column, ',')})" for column in space[:3].T)
    lines = [
        "NRRD0005",
        f"type: {_NRRD_TYPES[code][0]}",
        f"dimension: {stored.ndim}",
        "space: left-posterior-superior",
        f"sizes: {' '.join(map(str, stored.shape))}",
        f"space directions: {' '.join(['none'] * several + directions)}",
        f"kinds: {' '.join(['vector'] * several + ['domain'] * 3)}",
        "endian: little",
        "encoding: gzip",
        f"space origin: {origin}",
        *(f"{key}:={value}" for key, value in (fields or {}).items()),
        "",
        "",
    ]
    file.write("\n".join(lines).encode())
    with GzipWriter(file, _COMPRESSION) as stream:
        stream.write(_little(stored))


def _write_metaimage(file: BinaryIO, voxels: NDArray[Any], affine: NDArray[np.float64]) -> None:
    """Write (X, Y, Z) or (X, Y, Z, maps), compressed, as one file."""
    space = _LPS @ affine
    spacing = np.linalg.norm(space[:3, :3], axis=0)
    several = voxels.ndim == 4
    stored = np.moveaxis(voxels, -1, 0) if several else voxels
    packed = zlib.compress(_little(stored), _COMPRESSION)
    lines = [
        "ObjectType = Image",
        "NDims = 3",
        "BinaryData = True",
        "BinaryDataByteOrderMSB = False",
        "CompressedData = True",
        f"CompressedDataSize = {len(packed)}",
        f"TransformMatrix = {_join_numbers((space[:3, :3] / spacing).T.ravel())}",
        f"Offset = {_join_numbers(space[:3, 3])}",
        "CenterOfRotation = 0 0 0",
        f"ElementSpacing = {_join_numbers(spacing)}",
        f"DimSize = {' '.join(map(str, voxels.shape[:3]))}",
        *([f"ElementNumberOfChannels = {voxels.shape[3]}"] if several else []),
        f"ElementType = MET_{_META_TYPES[voxels.dtype.str[1:]]}",
        "ElementDataFile = LOCAL",
        "",
    ]
    file.write("\n".join(lines).encode() + packed)


def _nrrd_header(file: BinaryIO) -> dict[str, str]:
    """Return the fields by name; as in ITK, each is known and stands there once."""
    header: dict[str, str] = {}
    for count, line in enumerate(_lines(file)):
        if not line:
            break
        key, colon, value = line.partition(":")
        if count and colon and not line.startswith("#") and not value.startswith("="):
            name = _NRRD_SYNONYMS.get(key.strip().lower(), key.strip().lower())
            if name not in _NRRD_FIELDS:
                raise ValueError(f"its header has the field {in_short(name, 60)}, not NRRD's")
            _add_field(header, name, value.strip())
    _require_fields(header, ("type", "sizes", "dimension", "encoding"))
    _check_nrrd_space(header)
    return header


def _check_nrrd_space(header: Mapping[str, str]) -> None:
    """Refuse what says where voxels are in another way than by space directions or spacings."""
    for name in ("axis mins", "axis maxs"):
        if any(math.isfinite(float(v)) for v in header.get(name, "").split()):
            raise ValueError(f"its position must be given by a space origin, got {name}")
    for name in ("space units", "units"):
        for unit in re.findall(r'"([^"]*)"', header.get(name, "")):
            if unit.lower() not in _MILLIMETRES:
                raise ValueError(f"its {name} must be mm, got {in_short(unit, 60)}")
    if "space directions" in header:
        if "space" not in header and header.get("space dimension") != "3":
            raise ValueError("its space directions need a space of three dimensions")
    elif "space" in header and "spacings" in header:
        raise ValueError("its space needs space directions, got spacings")


def _meta_header(file: BinaryIO) -> dict[str, str]:
    """Return the fields by name, of several names for one thing by the first of them."""
    header: dict[str, str] = {}
    for line in _lines(file):
        field = re.match(r"(\w+)\s*[=:]\s*(.*)", line)
        if field is None:
            continue
        name = _META_SYNONYMS.get(field[1], field[1])
        _add_field(header, name, field[2].strip())
        if name == "ElementDataFile":
            break
    _require_fields(header, ("NDims", "DimSize", "ElementType", "ElementDataFile"))
    return header


def _require_fields(header: Mapping[str, str], names: Sequence[str]) -> None:
    for name in names:
        if name not in header:
            raise ValueError(f"its header has no {name}")


def _add_field(header: dict[str, str], name: str, value: str) -> None:
    if name in header:
        raise ValueError(f"its header must have each field once, got {in_short(name, 60)} twice")
    header[name] = value


def _is_true(text: str) -> bool:
    return text[:1] in ("T", "t", "1")


def _lines(file: BinaryIO) -> Iterator[str]:
    """Yield the lines of a header; the file stands after the last that was taken."""
    read = 0
    while line := file.readline(_LONGEST_HEADER):
        read += len(line)
        if read > _LONGEST_HEADER:
            raise ValueError("its header does not end")
        yield line.decode("latin-1").strip()


def _nrrd_type(header: Mapping[str, str]) -> np.dtype[Any]:
    name = header["type"].lower()
    code = next((code for code, names in _NRRD_TYPES.items() if name in names), None)
    if code is None:
        raise ValueError(f"its type must be a number, got {header['type']}")
    order = header.get("endian", "little" if code.endswith("1") else "missing").lower()
    if order not in ("little", "big"):
        raise ValueError(f"its endian must be little or big, got {order}")
    return np.dtype((">" if order == "big" else "<") + code)


def _nrrd_directions(header: Mapping[str, str], axes: int) -> tuple[NDArray[np.float64], list[int]]:
    """Return the step (mm) of each axis in space, (spatial, 3), and which axes these are."""
    if "space directions" in header:
        parts = re.findall(r"none|\([^)]*\)", header["space directions"])
        if len(parts) != axes:
            raise ValueError("its space directions must be one for each axis")
        spatial = [axis for axis, part in enumerate(parts) if part != "none"]
        rows = [_numbers(parts[axis]) for axis in spatial]
        steps = np.zeros((len(spatial), 3))
        for index, row in enumerate(rows):
            steps[index, : len(row)] = row
        return steps, spatial
    kinds = header.get("kinds", "domain " * axes).split()
    spatial = [a for a, kind in enumerate(kinds) if kind in ("domain", "space", "none", "???")]
    spacings = header.get("spacings", "1 " * axes).split()
    steps = np.zeros((len(spatial), 3))
    for index, axis in enumerate(spatial):
        size = float(spacings[axis])
        steps[index, min(index, 2)] = size if math.isfinite(size) else 1.0
    return steps, spatial


def _numbers(text: str) -> list[float]:
    return [float(v) for v in text.strip("()").split(",")]


@contextmanager
def _open_voxels(
    file: BinaryIO, path: Path, name: str | None
) -> Iterator[tuple[BinaryIO, tuple[Path, ...]]]:
    """Open the file of the voxels, which must lie in the folder of its header, or go on in it."""
    if name is None:
        yield file, ()
        return
    other = path.parent / name
    if Path(name).name != name or not other.is_file():
        raise ValueError(f"its voxels must lie beside it in one file, got {name}")
    with other.open("rb") as content:
        yield content, (other,)


def _values(
    file: BinaryIO, encoding: str, dtype: np.dtype[Any], sizes: list[int], skip: int = 0
) -> NDArray[Any]:
    """Return the voxels, the first axis fastest in the file, and read no more than these.

    ``skip`` bytes of the file come before raw voxels; −1 says that these are its end.
    """
    if not 1 <= len(sizes) <= 5 or min(sizes) < 1:
        raise ValueError(f"its sizes must be positive, got {sizes}")
    count = math.prod(sizes)
    require_size(count * max(dtype.itemsize, 4), largest_file())
    expected = count * dtype.itemsize
    if encoding == "raw":
        if skip < -1:
            raise ValueError(f"its HeaderSize must be −1, 0 or more, got {skip}")
        if skip:  # as ITK does
            end = os.fstat(file.fileno()).st_size
            file.seek(skip if skip > 0 else max(0, end - expected))
        content = file.read(expected)
    elif encoding in {"gzip", "gz"}:
        stream = open_gzip(file)
        content = stream.read(expected)
        stream.read(1)  # only at its end does it compare its checksum
    elif encoding == "zlib":
        content = _inflate(file, expected)
    elif encoding in {"bzip2", "bz2"}:
        content = bz2.BZ2File(file).read(expected)
    else:
        raise ValueError(f"its encoding must be raw, gzip or bzip2, got {encoding}")
    if len(content) < expected:
        raise ValueError(f"it holds {len(content)} bytes of {expected}")
    if os.fstat(file.fileno()).st_size - file.tell() > LONGEST_END:
        raise ValueError(f"more than {LONGEST_END >> 20} MiB follow its voxels")
    return np.frombuffer(content, dtype=dtype).reshape(sizes, order="F")


def _inflate(file: BinaryIO, expected: int) -> bytes:
    """Return so many bytes of a zlib stream, which must end there or soon after."""
    stream = zlib.decompressobj()
    parts: list[bytes] = []
    size = 0
    while not stream.eof and size <= expected:
        packed = stream.unconsumed_tail or file.read(_CHUNK)
        if not packed:
            raise ValueError("its compressed voxels do not end")
        parts.append(stream.decompress(packed, expected + 1 - size or 1))
        size += len(parts[-1])
    return b"".join(parts)[:expected]


def _three_axes(
    voxels: NDArray[Any], spatial: int, affine: NDArray[np.float64], others: tuple[Path, ...]
) -> StoredVolume:
    """Return voxels with three axes of space; a picture of two is one slice."""
    if spatial == 2:
        voxels = np.expand_dims(voxels, 2)
    elif spatial != 3:
        raise ValueError(f"it must have 2 or 3 axes in space, got {spatial}")
    return StoredVolume(voxels, affine, others)


def _little(voxels: NDArray[Any]) -> bytes:
    little = voxels.astype(voxels.dtype.newbyteorder("<"), copy=False)
    return little.tobytes(order="F")


def _join_numbers(values: NDArray[np.float64], by: str = " ") -> str:
    return by.join(repr(float(v)) for v in values)


def _read_mgh(file: BinaryIO, *, compressed: bool) -> StoredVolume:
    from nibabel.freesurfer.mghformat import MGHHeader, MGHImage

    stream = open_gzip(file) if compressed else file
    start = stream.read(MGHHeader.template_dtype.itemsize)
    header = MGHHeader(start)
    values = math.prod(max(0, int(n)) for n in header["dims"])
    require_size(values * 4, largest_file())
    most = values * header.get_data_dtype().itemsize + LONGEST_END
    content = start + stream.read(most + 1)
    if len(content) > len(start) + most:
        raise ValueError(f"more than {LONGEST_END >> 20} MiB follow its voxels")
    image = MGHImage.from_stream(io.BytesIO(content))
    voxels = np.asanyarray(image.dataobj)
    if voxels.ndim == 4 and voxels.shape[3] == 1:
        voxels = voxels[..., 0]
    affine = np.asarray(image.affine, dtype=np.float64)
    if int.from_bytes(start[28:30], "big", signed=True) <= 0:  # goodRASFlag
        # FreeSurfer's coronal slices of 1 mm around the origin, which nibabel has back to front.
        affine[:3, :3] = [[-1, 0, 0], [0, 0, 1], [0, -1, 0]]
        affine[:3, 3] = -affine[:3, :3] @ (np.array(voxels.shape[:3]) / 2)
    return StoredVolume(voxels, affine)


def _write_mgh(stream: Any, voxels: NDArray[Any], affine: NDArray[np.float64]) -> None:  # noqa: ANN401
    from nibabel.freesurfer.mghformat import MGHImage

    known = (np.uint8, np.int16, np.int32, np.float32)  # what the format has
    kind = voxels.dtype
    if kind not in known:
        kind = np.dtype(np.int32 if kind.kind in "iu" else np.float32)
    MGHImage(voxels.astype(kind, copy=False), affine).to_stream(stream)


def find_tiff_spacing(path: Path) -> tuple[Path, tuple[float, ...]] | None:
    """Return nnU-Net's CASE.json of a 3-D TIFF, CASE.tif or CASE_0000.tif, and its x, y, z in mm.

    A TIFF without one is a picture, whose pages are maps.
    """
    if path.suffix.lower() not in {".tif", ".tiff"}:
        return None
    beside = path.with_name(re.sub(r"_\d{4}$", "", path.stem) + ".json")
    source = Source("images", beside)
    content = source.read_json() if beside.is_file() else None
    sizes = content.get("spacing") if isinstance(content, dict) else None
    if sizes is None:
        return None
    try:
        z, y, x = (number(size, "spacing", positive=True) for size in sizes)
    except (TypeError, ValueError) as error:
        raise source.error(f"spacing must be three sizes in mm, got {sizes}") from error
    return beside, (x, y, z)


def _read_tiff_volume(file: BinaryIO, beside: Path, spacing: tuple[float, ...]) -> StoredVolume:
    """Read a 3-D TIFF (Z, Y, X) as nnU-Net's Tiff3DIO does."""
    with optional_package("tifffile", "a 3-D TIFF").TiffFile(file) as content:
        stored = content.series[0]
        if len(stored.shape) != 3:
            raise ValueError(f"it must have the axes Z, Y, X, got shape {stored.shape}")
        require_size(math.prod(stored.shape) * 4, largest_file())
        voxels = stored.asarray().transpose(2, 1, 0)  # (X, Y, Z)
    return StoredVolume(voxels, _LPS @ np.diag([*spacing, 1.0]), (beside,))


def _read_picture(file: BinaryIO) -> StoredVolume:
    """Read a PNG or TIFF: columns are X, rows Y, pages or colours are maps."""
    from PIL import Image, ImageSequence

    with Image.open(file) as picture:
        pages: list[NDArray[Any]] = []
        size = picture.width * picture.height * 4
        for page in ImageSequence.Iterator(picture):
            require_size((len(pages) + 1) * size, largest_file())
            whole = page.convert("RGB") if page.mode == "P" else page
            array = np.asarray(whole)
            if array.dtype.kind == "b":
                array = array.astype(np.uint8)
            pages.append(array)
    if len({page.shape for page in pages}) != 1:
        raise ValueError("its pages must have one size")
    if pages[0].ndim == 3 and len(pages) > 1:
        raise ValueError("several pages in colour are not read")
    maps = pages[0] if pages[0].ndim == 3 else np.stack(pages, axis=-1)  # (rows, columns, maps)
    if maps.shape[-1] in (2, 4) and pages[0].ndim == 3:
        maps = maps[..., :-1]  # without how opaque the colours are
    voxels = maps.transpose(1, 0, 2)[:, :, np.newaxis]  # (X, Y, 1, maps)
    return StoredVolume(voxels[..., 0] if voxels.shape[3] == 1 else voxels, _LPS)


def _check_picture(voxels: NDArray[Any], ending: str) -> None:
    if voxels.shape[2] != 1:
        raise ValueError(f"a {ending} must have one slice, got {voxels.shape[2]}")
    whole = voxels.dtype in (np.uint8, np.uint16)
    if ending == ".png" and not (whole and voxels.ndim == 3):
        raise ValueError("a .png must be one map of whole numbers from 0 to 65535")


def _write_picture(file: BinaryIO, voxels: NDArray[Any], kind: str) -> None:
    """Write (X, Y, 1) or (X, Y, 1, maps), a page for each map."""
    from PIL import Image

    maps = voxels[:, :, 0].reshape(*voxels.shape[:2], -1)  # (X, Y, maps)
    stored = maps if maps.dtype in (np.uint8, np.uint16) else maps.astype(np.float32)
    pages = [Image.fromarray(np.ascontiguousarray(one.T)) for one in np.moveaxis(stored, -1, 0)]
    if kind == "TIFF":
        pages[0].save(file, kind, save_all=True, append_images=pages[1:])
    else:
        pages[0].save(file, kind)
