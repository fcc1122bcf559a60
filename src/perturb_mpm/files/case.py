"""What one patient's files hold, once they are read and agree with each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

LARGEST_VALUE = 65535  # what a 16-bit label map can hold


@dataclass(frozen=True)
class LabelScheme:
    """The user's own numbers and names of the labels 0 … L − 1; the first is background."""

    values: tuple[int, ...]
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.values) != len(self.names):
            raise ValueError(
                "a label must have one value and one name, "
                f"got {len(self.values)} values and {len(self.names)} names"
            )
        if len(set(self.values)) < len(self.values):
            raise ValueError(f"label values must be different, got {_listed(self.values)}")
        if not all(0 <= value <= LARGEST_VALUE for value in self.values):
            raise ValueError(
                f"label values must lie between 0 and {LARGEST_VALUE}, got {_listed(self.values)}"
            )
        if len(set(self.names)) < len(self.names):
            raise ValueError(f"label names must be different, got {_listed(self.names)}")
        if not all(name and name.isprintable() for name in self.names):
            raise ValueError(f"label names must be words in one line, got {list(self.names)}")

    def __len__(self) -> int:
        return len(self.values)

    def values_of(self, indices: NDArray[Any]) -> NDArray[Any]:
        """Return the user's values of indices 0 … L − 1, as uint8 or, where need be, uint16."""
        dtype = np.uint8 if max(self.values) <= 255 else np.uint16
        values: NDArray[Any] = np.asarray(self.values, dtype=dtype)[indices]
        return values


@dataclass(frozen=True)
class Geometry:
    """Where the voxels are: shape, affine and the header that outputs take their geometry from."""

    shape: tuple[int, int, int]
    affine: NDArray[np.float64]  # (4, 4), voxel indices to mm
    spacing: tuple[float, float, float]  # mm
    header: Any  # nibabel.Nifti1Header, for sform, qform and their codes


@dataclass(frozen=True)
class ImageSet:
    """Images and mask of one patient on one grid."""

    images: dict[str, NDArray[np.float32]]  # name -> (X, Y, Z)
    mask: NDArray[np.bool_]  # (X, Y, Z)
    mask_origin: str  # "given", or in words how it was derived
    geometry: Geometry
    hashes: dict[str, str]  # file name -> SHA-256 of every file that was read
    warnings: tuple[str, ...] = ()


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


def _listed(items: tuple[object, ...]) -> str:
    return ", ".join(str(item) for item in items)
