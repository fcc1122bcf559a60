"""One volume in a file: read to the end, put on a grid, written with its geometry.

NIfTI is read and written here, other formats by ``formats``. The same volume gives the same bytes.
"""

from __future__ import annotations

import math
import os
from contextlib import ExitStack
from dataclasses import dataclass, replace
from io import BufferedIOBase, BufferedReader
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perturb_mpm import checks
from perturb_mpm.files.formats import (
    GZIP,
    LONGEST_END,
    NIFTI_ENDINGS,
    GzipWriter,
    format_ending,
    open_gzip,
    output_ending,
    read_other_format,
    write_other_format,
)
from perturb_mpm.files.geometry import (
    Geometry,
    find_turn,
    geometry_from_affine,
    geometry_from_header,
)
from perturb_mpm.files.source import Digests, Source
from perturb_mpm.storage import DEFLATE, atomic_open, largest_file, require_size

if TYPE_CHECKING:
    from nibabel.arrayproxy import ArrayProxy
    from nibabel.nifti1 import Nifti1Image


_NIFTI_2 = 540  # the size of its header, which stands in its first four bytes
_CHUNK = 1 << 20
_LONGEST_HEADER = 64 << 20  # bytes before the voxels, with all extensions
# NIfTI has no booleans and no half floats.
_STORED_AS: dict[np.dtype[Any], np.dtype[Any]] = {
    np.dtype(np.bool_): np.dtype(np.uint8),
    np.dtype(np.float16): np.dtype(np.float32),
}
_MOST_BYTES = {"i": 4, "u": 4, "f": 8}  # 64-bit integers are beyond many readers
_SCANNER = 1
_GEOMETRY_FIELDS = (
    *("pixdim", "qform_code", "sform_code", "xyzt_units"),
    *("quatern_b", "quatern_c", "quatern_d", "qoffset_x", "qoffset_y", "qoffset_z"),
    *("srow_x", "srow_y", "srow_z"),
)
_COMPRESSION = 1  # more takes several times as long and saves few per cent


@dataclass(frozen=True)
class Volume:
    """What one file holds."""

    source: Source
    voxels: NDArray[np.float32]  # (X, Y, Z) or (X, Y, Z, maps)
    geometry: Geometry
    notes: tuple[str, ...] = ()  # what was assumed about its voxels, or done to them


def read_volume(source: Source, digests: Digests | None = None) -> Volume:
    """Read a 3-D or 4-D volume as float32: NIfTI with its scaling, NRRD, MetaImage, MGH, picture.

    Axes of length 1 beyond the third are dropped, so that both ways to store several maps, along
    the fourth axis or along the fifth, come out the same. ``digests`` takes note of the file.
    """
    files = [source.path]
    with source.open() as file, source.refuse_damage():
        stored = read_other_format(file, source.path)
        if stored is None:
            voxels, geometry = _read_nifti(source, file)
        else:
            files += stored.other_files
            voxels = stored.voxels.astype(np.float32)
            _require_axes(source, voxels.shape)
            _require_invertible(source, stored.affine)
            shape = cast("tuple[int, int, int]", voxels.shape[:3])
            geometry = replace(
                geometry_from_affine(shape, stored.affine),
                affine=stored.affine,  # to the last bit, which a header has not
                ending=output_ending(source.path),
            )
    if digests is not None:
        for path in files:
            digests.add(Source(source.argument, path))
    return Volume(source, voxels, geometry)


def read_volume_3d(source: Source, digests: Digests | None = None, what: str = "") -> Volume:
    """Read a file of one number a voxel, (X, Y, Z); errors say ``what`` it must be."""
    volume = read_volume(source, digests)
    if volume.voxels.ndim != 3:
        raise source.error(f"{what} must be 3-D, got shape {volume.voxels.shape}")
    return volume


def require_same_grid(
    source: Source, geometry: Geometry, grid_source: Source, grid: Geometry
) -> None:
    """Refuse a file with another geometry than ``grid``, which is that of ``grid_source``."""
    words = geometry.difference(grid)
    if words is not None:
        raise source.error(f"must lie on the grid of {grid_source}, got {words}")


def align(volume: Volume, grid: Volume) -> Volume:
    """Return a volume on the grid of another, with a note where it was turned.

    Voxels of the same grid in another order are turned exactly; nothing is interpolated. Any other
    grid is refused.
    """
    from nibabel.orientations import apply_orientation

    turn = None
    if volume.geometry.difference(grid.geometry) is not None:
        turn = find_turn(volume.geometry, grid.geometry)
    if turn is None:
        require_same_grid(volume.source, volume.geometry, grid.source, grid.geometry)
        return volume
    note = (
        f"{volume.source.path.name} has its axes in another order or direction than "
        f"{grid.source.path.name} ({volume.geometry.axis_codes} and {grid.geometry.axis_codes}) "
        "but the same grid: it was turned to fit, exactly"
    )
    turned = np.require(apply_orientation(volume.voxels, turn), requirements=["C", "W"])
    return Volume(volume.source, turned, grid.geometry, (*volume.notes, note))


def _read_nifti(source: Source, file: BufferedReader) -> tuple[NDArray[np.float32], Geometry]:
    image, stream = _open_nifti(source, file)
    shape = (*image.shape[:3], *(n for n in image.shape[3:] if n != 1))
    _require_axes(source, shape, image.shape)
    _check_size(image, file)
    try:
        geometry = geometry_from_header(image.header, cast("tuple[int, int, int]", shape[:3]))
    except KeyError as error:
        raise source.error("has a unit of length that NIfTI does not know") from error
    _require_invertible(source, geometry.affine)
    proxy = cast("ArrayProxy", image.dataobj)
    scaled = proxy.slope != 1 or proxy.inter != 0
    stored = np.asanyarray(proxy, dtype=np.float32) if scaled else proxy.get_unscaled()
    after = 0
    # Only at its end does a gzip stream compare its checksum.
    while part := stream.read(_CHUNK):
        after += len(part)
        if after > LONGEST_END:
            raise ValueError(f"more than {LONGEST_END >> 20} MiB follow its voxels")
    given = stored.reshape(shape, order="F")
    if given.ndim > 3:
        return given.astype(np.float32, copy=False), geometry
    voxels = np.empty(shape, dtype=np.float32)
    copy_planes(given, voxels)
    return voxels, geometry


def copy_planes(given: NDArray[Any], target: NDArray[Any]) -> None:
    """Copy (X, Y, Z) into an array of the other order of axes: a plane fits into the cache."""
    for y in range(given.shape[1]):
        target[:, y] = given[:, y]


def _open_nifti(source: Source, file: BufferedReader) -> tuple[Nifti1Image, BufferedIOBase]:
    """Return nibabel's image, its voxels not yet read, and the stream they come from."""
    import nibabel as nib
    from nibabel.filebasedimages import ImageFileError
    from nibabel.spatialimages import HeaderDataError
    from nibabel.wrapstruct import WrapStructError

    compressed = file.read(2) == GZIP
    file.seek(0)
    stream: BufferedIOBase = open_gzip(file) if compressed else file
    start = stream.read(4)
    size = int.from_bytes(start, "little"), int.from_bytes(start, "big")
    kind = nib.Nifti2Image if _NIFTI_2 in size else nib.Nifti1Image
    try:
        stream.seek(0)
        block = stream.read(kind.header_class.template_dtype.itemsize)
        offset = float(kind.header_class(block)["vox_offset"])
        if not 0 <= offset <= _LONGEST_HEADER:
            raise ValueError(f"its header says that its voxels begin at byte {offset:g}")
        stream.seek(0)
        image = kind.from_stream(stream)
        dtype = image.get_data_dtype()
    except (ImageFileError, HeaderDataError, WrapStructError) as error:
        raise source.error(f"is not a NIfTI file ({error})") from error
    if dtype.kind not in "biuf":
        raise source.error(f"must hold one number a voxel, got data of type {dtype}")
    return image, stream


def _check_size(image: Nifti1Image, file: BufferedReader) -> None:
    """Refuse a header that asks for more than its file can hold, before memory is taken for it."""
    available = os.fstat(file.fileno()).st_size * DEFLATE
    values, size = math.prod(image.shape), image.get_data_dtype().itemsize
    if values * size > available:
        raise ValueError(f"its header says that its shape is {image.shape}")
    require_size(values * max(size, 4), largest_file())


def _require_axes(source: Source, shape: tuple[int, ...], stored: tuple[int, ...] = ()) -> None:
    if len(shape) not in (3, 4) or min(shape) < 1:
        raise source.error(f"must have 3 or 4 axes, got shape {stored or shape}")


def _require_invertible(source: Source, affine: NDArray[np.float64]) -> None:
    volume = np.linalg.det(affine[:3, :3])
    if not np.isfinite(affine).all() or not np.isfinite(volume) or volume == 0.0:
        raise source.error(f"must have an affine that can be inverted, got {affine[:3].tolist()}")


def save_nifti(
    path: str | os.PathLike[str], volume: ArrayLike, affine: ArrayLike, description: str = ""
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
    voxels = _to_storable(volume)
    matrix = checks.affine(affine, "affine")
    image = nib.Nifti1Image(voxels, matrix)
    image.set_sform(matrix, code=_SCANNER)
    image.set_qform(matrix, code=_SCANNER)
    image.header.set_xyzt_units(xyz="mm")
    image.header["descrip"] = _encode_description(description)
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

    voxels = _to_storable(volume)
    if voxels.shape[:3] != geometry.shape:
        raise ValueError(
            f"volume must have the shape {geometry.shape} of the geometry, got {voxels.shape}"
        )
    if format_ending(path) not in (None, *NIFTI_ENDINGS):
        write_other_format(path, voxels, geometry.affine)
        return
    _check_ending(path)
    own = geometry.header
    kind = nib.Nifti2Image if isinstance(own, nib.Nifti2Header) else nib.Nifti1Image
    header = kind.header_class()
    header.set_data_dtype(voxels.dtype)
    header.set_data_shape(voxels.shape)
    for field in _GEOMETRY_FIELDS:
        header[field] = own[field]
    if voxels.ndim == 4:
        header["pixdim"][4] = 1.0  # a fourth axis without a step is beyond some readers
    header["descrip"] = _encode_description(description)
    _write(path, kind(voxels, None, header))


def _write(path: str | os.PathLike[str], image: Nifti1Image) -> None:
    with atomic_open(path) as file, ExitStack() as opened:
        stream: IO[bytes] = file
        if Path(path).suffix == ".gz":
            stream = cast("IO[bytes]", opened.enter_context(GzipWriter(file, _COMPRESSION)))
        # Byte for byte what nibabel writes, which turns a volume's axes more slowly.
        image.update_header()
        image.header.set_slope_inter(1, 0)
        image.header.write_to(stream)
        stream.seek(image.header.get_data_offset())
        voxels = np.asanyarray(image.dataobj)
        turned = np.empty(voxels.shape[:3], dtype=image.get_data_dtype(), order="F")
        for volume in np.moveaxis(voxels, -1, 0) if voxels.ndim == 4 else [voxels]:
            copy_planes(volume, turned)
            stream.write(turned.T.data)


def _check_ending(path: str | os.PathLike[str]) -> None:
    name = Path(path).name
    if not name.endswith((".nii", ".nii.gz")):
        raise ValueError(f"path must end in .nii or .nii.gz, got {name!r}")


def _encode_description(description: str) -> bytes:
    label = description.encode()
    if len(label) > 79:
        raise ValueError(f"description must be at most 79 bytes, got {len(label)}")
    return label


def _to_storable(volume: ArrayLike) -> NDArray[Any]:
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
