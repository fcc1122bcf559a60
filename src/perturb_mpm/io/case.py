"""What one patient's files hold, once they are read and agree with each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class LabelScheme:
    """The user's own numbers and names of the labels 0 … L − 1; the first is background."""

    values: tuple[int, ...]
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True)
class Geometry:
    """Where the voxels are: shape, affine and the header that outputs take their geometry from."""

    shape: tuple[int, int, int]
    affine: NDArray[np.float64]  # (4, 4), voxel indices to mm
    spacing: tuple[float, float, float]  # mm
    header: Any  # nibabel.Nifti1Header, for sform, qform and their codes


@dataclass(frozen=True)
class Case:
    """Images, probabilities and mask of one patient on one grid."""

    images: dict[str, NDArray[np.float32]]  # name -> (X, Y, Z)
    probabilities: NDArray[np.float32]  # (L, X, Y, Z), sums to 1
    mask: NDArray[np.bool_]  # (X, Y, Z)
    mask_origin: str  # "given", or in words how it was derived
    labels: LabelScheme
    geometry: Geometry
    hashes: dict[str, str]  # file name -> SHA-256 of every file that was read
    warnings: tuple[str, ...] = ()
