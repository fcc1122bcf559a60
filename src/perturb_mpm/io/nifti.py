"""Volumes as NIfTI: geometry kept, bytes the same every time."""

from __future__ import annotations

import gzip
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perturb_mpm.io.atomic import atomic_open

# NIfTI has no booleans and no half floats.
_STORED_AS: dict[np.dtype[Any], np.dtype[Any]] = {
    np.dtype(np.bool_): np.dtype(np.uint8),
    np.dtype(np.float16): np.dtype(np.float32),
}
_MOST_BYTES = {"i": 4, "u": 4, "f": 8}  # 64-bit integers are beyond many readers
_SCANNER = 1


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

    compressed = _is_compressed(path)
    voxels = _storable(volume)
    matrix = _checked_affine(affine)
    label = description.encode()
    if len(label) > 79:
        raise ValueError(f"description must be at most 79 bytes, got {len(label)}")

    image = nib.Nifti1Image(voxels, matrix)
    image.set_sform(matrix, code=_SCANNER)
    image.set_qform(matrix, code=_SCANNER)
    image.header.set_xyzt_units(xyz="mm")
    image.header["descrip"] = label
    with atomic_open(path) as file:
        if compressed:
            # No name and no time in the header of the stream: equal volumes, equal files.
            with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as stream:
                image.to_stream(stream)
        else:
            image.to_stream(file)


def centred_affine(shape: Sequence[int], spacing: Sequence[float]) -> NDArray[np.float64]:
    """Return the affine (4, 4) of a grid with ``spacing`` (mm) whose middle is the origin."""
    affine = np.diag([*spacing, 1.0])
    affine[:3, 3] = [-(size - 1) / 2.0 * step for size, step in zip(shape, spacing, strict=True)]
    return affine


def _is_compressed(path: str | os.PathLike[str]) -> bool:
    name = Path(path).name
    if not name.endswith((".nii", ".nii.gz")):
        raise ValueError(f"path must end in .nii or .nii.gz, got {name!r}")
    return name.endswith(".gz")


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
