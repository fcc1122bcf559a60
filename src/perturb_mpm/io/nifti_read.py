"""NIfTI files read to their very end, with every failure in one line."""

from __future__ import annotations

import gzip
import math
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedIOBase
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.io.case import Geometry
from perturb_mpm.io.errors import InputError, Source
from perturb_mpm.io.geometry import geometry_of
from perturb_mpm.io.hashing import sha256

if TYPE_CHECKING:
    from nibabel.nifti1 import Nifti1Header, Nifti1Image

_GZIP = b"\x1f\x8b"
_NIFTI_2 = 540  # the size of its header, which stands in its first four bytes
_DAMAGE = (EOFError, OSError, ValueError, zlib.error)
_CHUNK = 1 << 20
_DEFLATE = 1032  # the most bytes that one compressed byte can stand for


@dataclass(frozen=True)
class Volume:
    """What one NIfTI file holds."""

    source: Source
    voxels: NDArray[np.float32]  # (X, Y, Z) or (X, Y, Z, L)
    geometry: Geometry
    digest: str  # SHA-256 of the file


def read_volume(source: Source) -> Volume:
    """Read a 3-D or 4-D NIfTI file as float32, with its scaling applied.

    Axes of length 1 beyond the third are dropped, so that both ways to store several maps, along
    the fourth axis or along the fifth, come out the same.
    """
    with opened(source) as file:
        digest = sha256(file)
        image, stream = _image(source, file)
        shape = (*image.shape[:3], *(n for n in image.shape[3:] if n != 1))
        if len(shape) not in (3, 4) or 0 in shape:
            raise source.error(f"must have 3 or 4 axes, got shape {image.shape}")
        _check_size(source, image, file)
        geometry = _geometry(source, image.header, shape)
        voxels = _voxels(source, image, stream).reshape(shape, order="F")
    return Volume(source, voxels, geometry, digest)


@contextmanager
def opened(source: Source) -> Iterator[BufferedIOBase]:
    """Open a file for reading, or say in one line why that cannot be."""
    try:
        file = source.path.open("rb")
    except FileNotFoundError:
        raise source.error("there is no such file") from None
    except OSError as error:
        words = os.strerror(error.errno) if error.errno else str(error)
        raise source.error(f"cannot be read ({words})") from error
    with file:
        yield file


def damaged(source: Source, error: BaseException | str) -> InputError:
    """Return the error about a file that ends too early or holds what it should not."""
    return source.error(f"is damaged, perhaps cut short ({error})")


def _image(source: Source, file: BufferedIOBase) -> tuple[Nifti1Image, BufferedIOBase]:
    """Return nibabel's image, its voxels not yet read, and the stream they come from."""
    import nibabel as nib
    from nibabel.filebasedimages import ImageFileError
    from nibabel.spatialimages import HeaderDataError
    from nibabel.wrapstruct import WrapStructError

    compressed = file.read(2) == _GZIP
    file.seek(0)
    stream = gzip.GzipFile(fileobj=file) if compressed else file
    try:
        start = stream.read(4)
        stream.seek(0)
        size = int.from_bytes(start, "little"), int.from_bytes(start, "big")
        kind = nib.Nifti2Image if _NIFTI_2 in size else nib.Nifti1Image
        image = kind.from_stream(stream)
        dtype = image.get_data_dtype()
    except (ImageFileError, HeaderDataError, WrapStructError) as error:
        raise source.error(f"is not a NIfTI file ({error})") from error
    except _DAMAGE as error:
        raise damaged(source, error) from error
    if dtype.kind not in "biuf":
        raise source.error(f"must hold one number a voxel, got data of type {dtype}")
    return image, stream


def _geometry(source: Source, header: Nifti1Header, shape: tuple[int, ...]) -> Geometry:
    """Return the geometry of a header, after checking that it gives every voxel a place."""
    try:
        geometry = geometry_of(header, cast("tuple[int, int, int]", shape[:3]))
    except KeyError as error:
        raise source.error("has a unit of length that NIfTI does not know") from error
    if not np.isfinite(geometry.affine).all() or np.linalg.det(geometry.affine[:3, :3]) == 0.0:
        raise source.error(
            f"must have an affine that can be inverted, got {geometry.affine[:3].tolist()}"
        )
    return geometry


def _check_size(source: Source, image: Nifti1Image, file: BufferedIOBase) -> None:
    """Refuse a header that asks for more than its file can hold, before memory is taken for it."""
    held = os.fstat(file.fileno()).st_size * _DEFLATE
    asked = math.prod(image.shape) * image.get_data_dtype().itemsize
    if asked > held:
        raise damaged(source, f"its header says that its shape is {image.shape}")


def _voxels(source: Source, image: Nifti1Image, stream: BufferedIOBase) -> NDArray[np.float32]:
    try:
        with np.errstate(over="ignore"):  # what float32 cannot hold is infinite, and found later
            voxels = np.asanyarray(image.dataobj, dtype=np.float32)
        while stream.read(_CHUNK):  # only at its end does a gzip stream compare its checksum
            pass
    except _DAMAGE as error:
        raise damaged(source, error) from error
    return voxels
