"""Which format a file has, and the formats that are not NIfTI: NRRD, MetaImage, MGH, pictures.

A file is known by its first bytes, what is written by the ending of its name.
"""

from __future__ import annotations

import gzip
import io
import os
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.files.text_headers import (
    METAIMAGE,
    NRRD,
    StoredVolume,
    read_metaimage,
    read_nrrd,
    write_metaimage,
    write_nrrd,
)
from perturb_mpm.storage import atomic_open, largest_file, require_size

NIFTI_ENDINGS = (".nii.gz", ".nii")
PICTURE_ENDINGS = (".tif", ".tiff", ".png")
ENDINGS = (*NIFTI_ENDINGS, ".nrrd", ".mha", ".mgz", ".mgh", *PICTURE_ENDINGS)
"""Of the files that can be written."""

_PNG, _TIFF = b"\x89PNG", (b"II*\0", b"MM\0*")
_GZIP = b"\x1f\x8b"
_LPS = np.diag([-1.0, -1.0, 1.0, 1.0])


def ending_of(path: str | os.PathLike[str]) -> str | None:
    """Return the ending of a file's name that stands for a format, or None."""
    name = Path(path).name.lower()
    return next((ending for ending in ENDINGS if name.endswith(ending)), None)


def output_ending(path: Path) -> str:
    """Return the ending of what is written for an input: its own, and .nii.gz of a NIfTI."""
    written = {".nhdr": ".nrrd", ".mhd": ".mha", ".tiff": ".tif", ".png": ".tif", ".mgh": ".mgz"}
    ending = written.get(path.suffix.lower(), ending_of(path))
    return ".nii.gz" if ending is None or ending in NIFTI_ENDINGS else ending


def read_other_format(file: BinaryIO, path: Path) -> StoredVolume | None:
    """Read a file that is no NIfTI, or return None; ValueError and others say what is wrong."""
    start = file.read(12)
    file.seek(0)
    if start.startswith(NRRD):
        return read_nrrd(file, path)
    if start.lstrip().startswith(METAIMAGE):
        return read_metaimage(file, path)
    if start.startswith((_PNG, *_TIFF)):
        return _read_picture(file)
    if path.suffix.lower() in {".mgz", ".mgh"}:
        return _read_mgh(file, compressed=start.startswith(_GZIP))
    return None


def write_other_format(
    path: str | os.PathLike[str], voxels: NDArray[Any], affine: NDArray[np.float64]
) -> None:
    """Write (X, Y, Z) or (X, Y, Z, maps) in the format of the ending; the same bytes every time."""
    ending = ending_of(path)
    if ending in PICTURE_ENDINGS:
        _check_picture(voxels, ending)
    with atomic_open(path) as file:
        if ending == ".nrrd":
            write_nrrd(file, voxels, affine)
        elif ending == ".mha":
            write_metaimage(file, voxels, affine)
        elif ending in PICTURE_ENDINGS:
            _write_picture(file, voxels, "PNG" if ending == ".png" else "TIFF")
        elif ending == ".mgz":
            with gzip.GzipFile("", "wb", 6, file, mtime=0) as stream:
                _write_mgh(stream, voxels, affine)
        else:
            _write_mgh(file, voxels, affine)


def _read_mgh(file: BinaryIO, *, compressed: bool) -> StoredVolume:
    from nibabel.freesurfer.mghformat import MGHImage

    stream = gzip.GzipFile(fileobj=file) if compressed else file
    limit = largest_file()
    content = stream.read(limit + 1)
    require_size(len(content), limit)
    image = MGHImage.from_stream(io.BytesIO(content))
    require_size(int(np.prod(image.shape)) * 4, limit)
    voxels = np.asanyarray(image.dataobj)
    if voxels.ndim == 4 and voxels.shape[3] == 1:
        voxels = voxels[..., 0]
    return StoredVolume(voxels, np.asarray(image.affine, dtype=np.float64))


def _write_mgh(stream: Any, voxels: NDArray[Any], affine: NDArray[np.float64]) -> None:  # noqa: ANN401
    from nibabel.freesurfer.mghformat import MGHImage

    known = (np.uint8, np.int16, np.int32, np.float32)  # what the format has
    kind = voxels.dtype
    if kind not in known:
        kind = np.dtype(np.int32 if kind.kind in "iu" else np.float32)
    MGHImage(voxels.astype(kind, copy=False), affine).to_stream(stream)


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
