"""Volumes as NIfTI: geometry kept, bytes the same every time."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perturb_mpm.io.atomic import atomic_open
from perturb_mpm.io.case import Geometry

if TYPE_CHECKING:
    from nibabel.filebasedimages import SerializableImage

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

    Voxel order, sform, qform, their codes and the units are that file's own to the last bit,
    whatever they are. Otherwise as ``save_nifti``.
    """
    import nibabel as nib

    _check_ending(path)
    voxels = _storable(volume)
    if voxels.shape[:3] != geometry.shape:
        raise ValueError(
            f"volume must have the shape {geometry.shape} of the geometry, got {voxels.shape}"
        )
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
