"""NIfTI files: read to the end, written with their geometry, the same bytes every time."""

from __future__ import annotations

import gzip
import math
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import BufferedIOBase, BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perturb_mpm.files.formats import (
    NIFTI_ENDINGS,
    ending_of,
    output_ending,
    read_other_format,
    write_other_format,
)
from perturb_mpm.files.geometry import (
    Geometry,
    geometry_from_affine,
    geometry_from_header,
    grid_difference,
)
from perturb_mpm.files.source import Digests, Source, open_source, sha256
from perturb_mpm.storage import (
    DAMAGE,
    DEFLATE,
    DamagedError,
    atomic_open,
    largest_file,
    require_size,
)

if TYPE_CHECKING:
    from nibabel.filebasedimages import SerializableImage
    from nibabel.nifti1 import Nifti1Header, Nifti1Image


_GZIP = b"\x1f\x8b"
_NIFTI_2 = 540  # the size of its header, which stands in its first four bytes
_CHUNK = 1 << 20
_LONGEST_HEADER = 64 << 20  # bytes before the voxels, with all extensions
_LONGEST_END = 64 << 20  # bytes after the voxels, which no writer leaves
# NIfTI has no booleans and no half floats.
_STORED_AS: dict[np.dtype[Any], np.dtype[Any]] = {
    np.dtype(np.bool_): np.dtype(np.uint8),
    np.dtype(np.float16): np.dtype(np.float32),
}
_MOST_BYTES = {"i": 4, "u": 4, "f": 8}  # 64-bit integers are beyond many readers
_SCANNER = 1
# The header's fields that say where voxels are.
_PLACE = (
    *("pixdim", "qform_code", "sform_code", "xyzt_units"),
    *("quatern_b", "quatern_c", "quatern_d", "qoffset_x", "qoffset_y", "qoffset_z"),
    *("srow_x", "srow_y", "srow_z"),
)
_COMPRESSION = 6  # more takes several times as long and saves next to nothing


@dataclass(frozen=True)
class Volume:
    """What one NIfTI file holds."""

    source: Source
    voxels: NDArray[np.float32]  # (X, Y, Z) or (X, Y, Z, L)
    geometry: Geometry
    digest: str  # SHA-256 of the file
    note: str | None = None  # what was done to its voxels


def read_volume(source: Source, digests: Digests | None = None) -> Volume:
    """Read a 3-D or 4-D volume as float32: NIfTI with its scaling, NRRD, MetaImage, MGH, picture.

    Axes of length 1 beyond the third are dropped, so that both ways to store several maps, along
    the fourth axis or along the fifth, come out the same. ``digests`` takes note of the file.
    """
    with open_source(source) as file:
        digest = sha256(file)
        other = _other_format(source, file, digests)
        if other is not None:
            return replace(other, digest=digest)
        image, stream = _image(source, file)
        shape = (*image.shape[:3], *(n for n in image.shape[3:] if n != 1))
        if len(shape) not in (3, 4) or min(shape) < 1:
            raise source.error(f"must have 3 or 4 axes, got shape {image.shape}")
        _check_size(source, image, file)
        geometry = _geometry(source, image.header, shape)
        voxels = _voxels(source, image, stream).reshape(shape, order="F")
    if digests is not None:
        digests.add(source.path, digest)
    return Volume(source, voxels, geometry, digest)


def _other_format(source: Source, file: BufferedReader, digests: Digests | None) -> Volume | None:
    """Read a file that is no NIfTI, or return None."""
    with _damage_of(source):
        stored = read_other_format(file, source.path)
        if stored is None:
            return None
        voxels = stored.voxels.astype(np.float32)
    if voxels.ndim not in (3, 4) or min(voxels.shape) < 1:
        raise source.error(f"must have 3 or 4 axes, got shape {voxels.shape}")
    _require_invertible(source, stored.affine)
    with _damage_of(source):
        shape = cast("tuple[int, int, int]", voxels.shape[:3])
        geometry = geometry_from_affine(shape, stored.affine)
    if digests is not None:
        for path in (source.path, *stored.other_files):
            with open_source(Source(source.argument, path)) as part:
                digests.add(path, sha256(part))
    ending = output_ending(source.path)
    return Volume(source, voxels, replace(geometry, affine=stored.affine, ending=ending), "")


@contextmanager
def _damage_of(source: Source) -> Iterator[None]:
    """Turn what libraries tell about damaged bytes, in whatever way, into one line."""
    from nibabel.freesurfer.mghformat import MGHError
    from nibabel.spatialimages import HeaderDataError
    from nibabel.wrapstruct import WrapStructError
    from PIL.Image import DecompressionBombError

    own = (DecompressionBombError, HeaderDataError, MGHError, WrapStructError)
    try:
        # What float32 cannot hold is infinite, and found later.
        with silent_nibabel(), warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            yield
    except DamagedError as error:
        raise source.error(f"is too large: {error}") from error
    except (*DAMAGE, *own) as error:
        raise source.damaged(error) from error


def read_volume_3d(source: Source, digests: Digests | None = None) -> Volume:
    """Read a NIfTI file of one number a voxel, (X, Y, Z)."""
    volume = read_volume(source, digests)
    if volume.voxels.ndim != 3:
        raise source.error(f"must be 3-D, got shape {volume.voxels.shape}")
    return volume


def require_same_grid(
    source: Source, geometry: Geometry, grid_source: Source, grid: Geometry
) -> None:
    """Refuse a file with another geometry than ``grid``, which is that of ``grid_source``."""
    words = grid_difference(geometry, grid)
    if words is not None:
        raise source.error(f"must lie on the grid of {grid_source}, got {words}")


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
        # What nibabel tells beforehand, our one line says again; extensions are of no use here.
        with silent_nibabel(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            block = stream.read(kind.header_class.template_dtype.itemsize)
            offset = float(kind.header_class(block)["vox_offset"])
            if not 0 <= offset <= _LONGEST_HEADER:
                raise ValueError(f"its header says that its voxels begin at byte {offset:g}")
            stream.seek(0)
            image = kind.from_stream(stream)
        dtype = image.get_data_dtype()
    except (ImageFileError, HeaderDataError, WrapStructError) as error:
        raise source.error(f"is not a NIfTI file ({error})") from error
    except DAMAGE as error:
        raise source.damaged(error) from error
    if dtype.kind not in "biuf":
        raise source.error(f"must hold one number a voxel, got data of type {dtype}")
    return image, stream


@contextmanager
def silent_nibabel() -> Iterator[None]:
    """Keep nibabel from logging; without its handlers Python would print its lines itself."""
    from nibabel.imageglobals import logger

    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def _geometry(source: Source, header: Nifti1Header, shape: tuple[int, ...]) -> Geometry:
    """Return the geometry of a header, after checking that it gives every voxel a place."""
    try:
        with np.errstate(all="ignore"):  # what is no number is found below
            geometry = geometry_from_header(header, cast("tuple[int, int, int]", shape[:3]))
    except KeyError as error:
        raise source.error("has a unit of length that NIfTI does not know") from error
    except DAMAGE as error:
        raise source.damaged(error) from error
    _require_invertible(source, geometry.affine)
    return geometry


def _require_invertible(source: Source, affine: NDArray[np.float64]) -> None:
    with np.errstate(all="ignore"):
        volume = np.linalg.det(affine[:3, :3])
    if not np.isfinite(affine).all() or not np.isfinite(volume) or volume == 0.0:
        raise source.error(f"must have an affine that can be inverted, got {affine[:3].tolist()}")


def _check_size(source: Source, image: Nifti1Image, file: BufferedIOBase) -> None:
    """Refuse a header that asks for more than its file can hold, before memory is taken for it."""
    held = os.fstat(file.fileno()).st_size * DEFLATE
    values, size = math.prod(image.shape), image.get_data_dtype().itemsize
    if values * size > held:
        raise source.damaged(f"its header says that its shape is {image.shape}")
    try:
        require_size(values * max(size, 4), largest_file())
    except DAMAGE as error:
        raise source.error(f"is too large: {error}") from error


def _voxels(source: Source, image: Nifti1Image, stream: BufferedIOBase) -> NDArray[np.float32]:
    try:
        with np.errstate(all="ignore"):  # what float32 cannot hold is infinite, and found later
            voxels = np.asanyarray(image.dataobj, dtype=np.float32)
        after = 0
        # Only at its end does a gzip stream compare its checksum.
        while after <= _LONGEST_END and (part := stream.read(_CHUNK)):
            after += len(part)
    except DAMAGE as error:
        raise source.damaged(error) from error
    if after > _LONGEST_END:
        raise source.damaged(f"more than {_LONGEST_END >> 20} MiB follow its voxels")
    return voxels


def save_nifti(
    path: str | os.PathLike[str],
    volume: ArrayLike,
    affine: ArrayLike,
    description: str = "",
) -> None:
    """Write ``volume`` (3-D, or 4-D with the maps along the last axis) as .nii or .nii.gz.

    ``affine`` (4, 4) takes voxel indices to mm, axes pointing right, front and up. The
    ``description`` (at most 79 bytes) says what the numbers are and in which unit. The same
    volume gives the same bytes, and the file appears whole or not at all.

    Examples
    --------
    >>> from perturb_mpm.files import save_nifti
    >>> save_nifti("entropy.nii.gz", np.zeros((4, 5, 6), np.float32), np.eye(4), "entropy, bits")
    """
    import nibabel as nib

    _check_ending(path)
    voxels = _storable(volume)
    matrix = _checked_affine(affine)
    image = nib.Nifti1Image(voxels, matrix)
    image.set_sform(matrix, code=_SCANNER)
    image.set_qform(matrix, code=_SCANNER)
    image.header.set_xyzt_units(xyz="mm")
    image.header["descrip"] = _checked_description(description)
    _write(path, image)


def save_like(
    path: str | os.PathLike[str], volume: ArrayLike, geometry: Geometry, description: str = ""
) -> None:
    """Write ``volume`` (X, Y, Z) or (X, Y, Z, maps) where the file of ``geometry`` lies.

    The ending of ``path`` says in which format. In a NIfTI voxel order, sform, qform, their codes
    and the units are that file's own to the last bit, whatever they are; otherwise it is as of
    ``save_nifti``. Other formats have no description.

    Examples
    --------
    >>> from perturb_mpm.files import save_like
    >>> case = pm.read_case("t1c.nii.gz", "case.npz")
    >>> save_like("mask.nii.gz", case.mask.astype(np.uint8), case.geometry)
    """
    import nibabel as nib

    voxels = _storable(volume)
    if voxels.shape[:3] != geometry.shape:
        raise ValueError(
            f"volume must have the shape {geometry.shape} of the geometry, got {voxels.shape}"
        )
    if ending_of(path) not in (None, *NIFTI_ENDINGS):
        write_other_format(path, voxels, geometry.affine)
        return
    _check_ending(path)
    own = geometry.header
    kind = nib.Nifti2Image if isinstance(own, nib.Nifti2Header) else nib.Nifti1Image
    header = kind.header_class()
    header.set_data_dtype(voxels.dtype)
    header.set_data_shape(voxels.shape)
    for field in _PLACE:
        header[field] = own[field]
    if voxels.ndim == 4:
        header["pixdim"][4] = 1.0  # a fourth axis without a step is beyond some readers
    header["descrip"] = _checked_description(description)
    _write(path, kind(voxels, None, header))


def _write(path: str | os.PathLike[str], image: SerializableImage) -> None:
    with atomic_open(path) as file:
        if Path(path).suffix == ".gz":
            # No name and no time in the header of the stream: equal volumes, equal files.
            with gzip.GzipFile("", "wb", _COMPRESSION, file, mtime=0) as stream:
                image.to_stream(stream)
        else:
            image.to_stream(file)


def _check_ending(path: str | os.PathLike[str]) -> None:
    name = Path(path).name
    if not name.endswith((".nii", ".nii.gz")):
        raise ValueError(f"path must end in .nii or .nii.gz, got {name!r}")


def _checked_description(description: str) -> bytes:
    label = description.encode()
    if len(label) > 79:
        raise ValueError(f"description must be at most 79 bytes, got {len(label)}")
    return label


def _storable(volume: ArrayLike) -> NDArray[Any]:
    """Return the volume in a type that NIfTI readers know."""
    voxels = np.asarray(volume)
    if voxels.ndim not in (3, 4):
        raise ValueError(f"volume must have 3 or 4 axes, got shape {voxels.shape}")
    voxels = voxels.astype(_STORED_AS.get(voxels.dtype, voxels.dtype), copy=False)
    if voxels.dtype.itemsize > _MOST_BYTES.get(voxels.dtype.kind, 0):
        raise TypeError(
            "volume must hold integers of at most 32 bits or floats of at most 64, "
            f"got {voxels.dtype}; convert it with astype"
        )
    return voxels


def _checked_affine(affine: ArrayLike) -> NDArray[np.float64]:
    """Return a matrix that maps the grid to space and back."""
    matrix = np.asarray(affine, dtype=np.float64)
    if matrix.shape != (4, 4) or not np.isfinite(matrix).all():
        raise ValueError(f"affine must be a finite (4, 4) matrix, got shape {matrix.shape}")
    if np.linalg.det(matrix[:3, :3]) == 0.0:
        raise ValueError("affine must be invertible, got one that flattens the volume")
    return matrix
