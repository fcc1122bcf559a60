"""A volume as the bytes of a NIfTI-1 file, little-endian and not compressed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_LABEL_INTENT = 1002
_SCANNER = 1
_DATA_START = 352


def nifti_bytes(
    volume: NDArray[Any],
    affine: NDArray[np.float64],
    *,
    slope: float = 1.0,
    labels: bool = False,
) -> bytes:
    """Return the file of (X, Y, Z) uint8, int16 or float32; stored values times slope are meant.

    ``labels`` marks a label map, which is drawn with outlines.
    """
    from nibabel.nifti1 import Nifti1Header

    header = Nifti1Header(endianness="<")
    header.set_data_shape(volume.shape)
    header.set_data_dtype(volume.dtype)
    header.set_zooms(np.linalg.norm(affine[:3, :3], axis=0))
    header.set_sform(affine, code=_SCANNER)
    header.set_xyzt_units(xyz="mm")
    header["scl_slope"], header["scl_inter"] = slope, 0.0
    header["vox_offset"], header["magic"] = _DATA_START, b"n+1"
    if labels:
        header["intent_code"] = _LABEL_INTENT
    data = volume.astype(volume.dtype.newbyteorder("<"), copy=False)
    start: bytes = header.binaryblock
    return start.ljust(_DATA_START, b"\0") + data.tobytes(order="F")
