"""What bad input costs: twice as much of it takes about twice the time, and never the memory.

Every reader gets a file that goes wrong in one way, of some size and of twice that size, headers
with their voxels in a file beside them too. Reading or refusing it may take so many seconds of
computing and so much memory, and twice as large a file at most three times as long.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import operator
import os
import random
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lab.torture.attack import Attack, Finding, Trial, judge
from lab.torture.patient import AFFINE, write_series
from perturb_mpm.cohort import read_cluster_file
from perturb_mpm.files import (
    Source,
    check_dicom_series,
    find_labelled_cases,
    geometry_from_affine,
    read_dataset,
    read_volume,
    save_nifti,
)
from perturb_mpm.run import load_run, read_settings
from perturb_mpm.segmenter import SegmenterModel
from perturb_mpm.storage import read_arrays

MOST_SECONDS = 5.0  # of computing, for any of these files
MOST_MEMORY = 200 << 20  # bytes, beyond twenty times a file of text
_NOISE_S = 0.2
_REPEATS = 3  # of a measurement that found growth: a busy machine grows too
_TEXT, _LARGE = 100_000, 256 << 20  # bytes; of files of text, and of those that have holes
_NRRD = "NRRD0004\ntype: uchar\ndimension: 3\nsizes: 4 4 4\nencoding: {encoding}\n{more}\n"
_META = "NDims = 3\nDimSize = 4 4 4\n{more}ElementType = MET_UCHAR\nElementDataFile = {file}\n"
_VOXELS = bytes(64)

Read = Callable[[Path], object]


class Bad(NamedTuple):
    """A kind of bad file: its name, what reads it, and what it has in so many bytes."""

    file: str
    read: Read
    content: Callable[[int], bytes]
    is_large: bool = False  # it has holes, and costs no disk
    beside: bytes = b""  # the header of voxels in v.raw


def _volume(path: Path) -> object:
    return read_volume(Source("images", path))


def _dataset(path: Path) -> object:
    return read_dataset(Source("dataset_json", path))


def _cases(path: Path) -> object:
    return find_labelled_cases(path, "table")


def _state(path: Path) -> object:
    return load_run(path.parent.parent)


def _text(piece: str, before: str = "", after: str = "") -> Callable[[int], bytes]:
    return lambda size: (before + piece * (size // len(piece)) + after).encode()


def _meta(more: str = "", file: str = "LOCAL") -> str:
    return _META.format(more=more, file=file)


def _nrrd(more: str = "", encoding: str = "raw") -> str:
    return _NRRD.format(more=more, encoding=encoding)


def _members(size: int) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for number in range(size // 100):
            archive.writestr(f"{number}.npy", b"")
    return packed.getvalue()


def _labels(size: int) -> bytes:
    return json.dumps({"labels": {str(n): n for n in range(size // 14)}}).encode()


def _nifti(size: int) -> bytes:
    """Return a NIfTI whose extension is so long."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "v.nii"
        save_nifti(path, np.zeros((4, 4, 4), np.uint8), np.eye(4))
        whole = bytearray(path.read_bytes())
    size -= size % 16
    whole[108:112] = np.float32(352 + size).tobytes()
    extension = np.array([size, 6], "<i4").tobytes().ljust(size, b"x")
    return bytes(whole[:348]) + b"\1\0\0\0" + extension + bytes(whole[352:])


def _mgh() -> bytes:
    header = np.array([1, 4, 4, 4, 1, 0, 0], ">i4").tobytes()
    return header.ljust(284, b"\0") + _VOXELS


def _picture(kind: str, comment: str = "") -> bytes:
    from PIL import Image, PngImagePlugin

    words, packed = PngImagePlugin.PngInfo(), io.BytesIO()
    words.add_text("Comment", comment)
    Image.fromarray(np.zeros((4, 4), np.uint8)).save(packed, kind, pnginfo=words)
    return packed.getvalue()


def _packed_zeros(size: int) -> bytes:
    packed = io.BytesIO()
    np.savez_compressed(packed, probabilities=np.zeros(size, np.uint8))
    return packed.getvalue()


def _slice() -> bytes:
    """Return one slice of a DICOM series."""
    with tempfile.TemporaryDirectory() as folder:
        write_series(Path(folder) / "series")
        return (Path(folder) / "series" / "0.dcm").read_bytes()


def _series(path: Path) -> None:
    check_dicom_series(path.parent, geometry_from_affine((9, 8, 1), AFFINE))


def _tail(file: str, content: Callable[[], bytes], beside: str = "") -> Bad:
    """Return a whole file, or one of voxels beside their header, with a hole behind it."""
    return Bad(file, _volume, lambda _: content(), is_large=True, beside=beside.encode())


_HEX = "0123456789abcdef"
_NRRD_VOXELS = {
    "raw": _VOXELS,
    "gzip": gzip.compress(_VOXELS),
    "bzip2": bz2.compress(_VOXELS),
    "hex": _VOXELS.hex().encode(),
    "text": b"0 " * 64,
}
BAD: dict[str, Bad] = {
    "TOML, a dotted key": Bad("s.toml", read_settings, _text("a.", after="a = 1")),
    "TOML, arrays in arrays": Bad("s.toml", read_settings, _text("[", "a = ")),
    "TOML, tables in tables": Bad("s.toml", read_settings, _text("{a=", "a = ")),
    "TOML, many tables": Bad("s.toml", read_settings, _text("[[a]]\n")),
    "TOML, a string": Bad("s.toml", read_settings, _text(_HEX, 'a = "', '"')),
    "TOML, a number": Bad("s.toml", read_settings, _text("9", "seed = ")),
    "JSON, arrays in arrays": Bad("dataset.json", _dataset, _text("[")),
    "JSON, a number": Bad("dataset.json", _dataset, _text("9", '{"labels": {"a": ', "}}")),
    "JSON, many labels": Bad("dataset.json", _dataset, _labels),
    "YAML, mappings in mappings": Bad("c.yaml", read_cluster_file, _text("{a: ")),
    "YAML, anchors": Bad("c.yaml", read_cluster_file, _text("- &a [*a, *a]\n")),
    "CSV, columns": Bad("c.csv", _cases, _text("a,", "case,")),
    "CSV, rows": Bad("c.csv", _cases, _text("a,b\n", "case,labels\n")),
    "CSV, a quote": Bad("c.csv", _cases, _text("a\n", 'case,labels\n"')),
    "NRRD, comments": Bad("v.nrrd", _volume, _text("# a\n", "NRRD0004\n")),
    "NRRD, keys": Bad("v.nrrd", _volume, _text("a:=b\n", "NRRD0004\n")),
    "NRRD, a line": Bad("v.nrrd", _volume, _text("a", "NRRD0004\ntype: ")),
    "NRRD, sizes": Bad("v.nrrd", _volume, _text("1 ", "NRRD0004\ntype: uchar\nsizes: ")),
    "NRRD, directions": Bad("v.nrrd", _volume, _text("((", _nrrd("space directions: ")[:-1])),
    "MetaImage, fields": Bad("v.mha", _volume, _text("Name = a\n", "NDims = 3\n")),
    "MetaImage, a matrix": Bad("v.mha", _volume, _text("1 ", "NDims = 3\nTransformMatrix = ")),
    "NIfTI, an extension": Bad("v.nii", _volume, _nifti),
    "NPZ, members": Bad("out/state/posterior.npz", _state, _members),
    "NIfTI, gzip of zeros": Bad(
        "v.nii.gz", _volume, lambda size: gzip.compress(_nifti(16) + bytes(100 * size), 1)
    ),
    "MGH, gzip of zeros": Bad(
        "v.mgz", _volume, lambda size: gzip.compress(_mgh() + bytes(100 * size), 1)
    ),
    "PNG, a text": Bad("v.png", _volume, lambda size: _picture("PNG", "a" * size)),
    "NPZ, members of a model": Bad("m.npz", SegmenterModel.load, _members),
    "NPZ, zeros": Bad("p.npz", read_arrays, lambda size: _packed_zeros(100 * size)),
    "NIfTI, a tail": _tail("v.nii", lambda: _nifti(16)),
    "NIfTI, a tail after gzip": _tail("v.nii.gz", lambda: gzip.compress(_nifti(16))),
    "MGH, a tail": _tail("v.mgh", _mgh),
    "MGH, a tail after gzip": _tail("v.mgz", lambda: gzip.compress(_mgh())),
    "PNG, a tail": _tail("v.png", lambda: _picture("PNG")),
    "TIFF, a tail": _tail("v.tif", lambda: _picture("TIFF")),
    "DICOM, a tail": _tail("series/0.dcm", _slice)._replace(read=_series),
    "MetaImage, a tail": _tail("v.mha", lambda: _meta().encode() + _VOXELS),
    "MetaImage, a tail after zlib": _tail(
        "v.mha", lambda: _meta("CompressedData = True\n").encode() + zlib.compress(_VOXELS)
    ),
    "MetaImage, a tail beside": _tail("v.mhd", lambda: _VOXELS, _meta(file="v.raw")),
    "MetaImage, a tail after zlib beside": _tail(
        "v.mhd", lambda: zlib.compress(_VOXELS), _meta("CompressedData = True\n", "v.raw")
    ),
    "MetaImage, a header beside": _tail(
        "v.mhd", lambda: _VOXELS, _meta("HeaderSize = -1\n", "v.raw")
    ),
    "MetaImage, a tail after text beside": _tail(
        "v.mhd", lambda: _NRRD_VOXELS["text"], _meta("BinaryData = False\n", "v.raw")
    ),
    **{
        f"NRRD, a tail after {encoding}": _tail(
            "v.nrrd", partial(operator.add, _nrrd("", encoding).encode(), content)
        )
        for encoding, content in _NRRD_VOXELS.items()
    },
    **{
        f"NRRD, a tail after {encoding} beside": _tail(
            "v.nhdr", partial(bytes, content), _nrrd("data file: v.raw\n", encoding)
        )
        for encoding, content in _NRRD_VOXELS.items()
    },
}


def prepare_costs(_: Path) -> Trial:
    """Return a trial of one kind of bad file, once and twice as large."""

    def trial(rng: random.Random, trial_folder: Path) -> Finding:
        kind = rng.choice(list(BAD))
        return measure_cost(kind, trial_folder, rng.uniform(0.5, 1.0))

    return trial


def measure_cost(kind: str, folder: Path, scale: float = 1.0) -> Finding:
    """Read one kind of bad file, once and twice as large; what grows does so every time."""
    finding = _measure_once(kind, folder, scale)
    for _ in range(_REPEATS):
        if finding.kind != "growth":
            break
        finding = _measure_once(kind, folder, scale)
    return finding


def _measure_once(kind: str, folder: Path, scale: float) -> Finding:
    bad = BAD[kind]
    seconds = []
    finding = Finding()
    for times in (1, 2):
        size = int(scale * times * (_LARGE if bad.is_large else _TEXT))
        path = folder / bad.file
        path.parent.mkdir(parents=True, exist_ok=True)
        data = path
        if bad.beside:
            path.write_bytes(bad.beside)
            data = folder / "v.raw"
        data.write_bytes(bad.content(size))
        if bad.is_large:
            os.truncate(data, size)
        _forget_peak()
        before, began = _peak_memory(), time.process_time()
        finding = judge(lambda: bad.read(path), (TypeError, ValueError))  # noqa: B023
        seconds.append(time.process_time() - began)
        grown = _peak_memory() - before
        if finding.kind:
            return finding
        if grown > MOST_MEMORY + (0 if bad.is_large else 20 * size):
            return Finding(finding.refused, "growth", f"{kind}: {grown >> 20} MiB for {size} bytes")
    if seconds[1] > min(MOST_SECONDS, 3 * seconds[0] + _NOISE_S):
        words = f"{kind}: {seconds[0]:.2f} s, and {seconds[1]:.2f} s for twice as much"
        return Finding(finding.refused, "growth", words)
    return finding


def _forget_peak() -> None:
    if sys.platform == "linux":
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _peak_memory() -> int:
    """Return the most memory used since it was forgotten, in bytes; 0 where nobody says."""
    if sys.platform != "linux":
        return 0
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


COSTS = Attack("costs", "bad files of twice the size", prepare_costs, longest=60)
