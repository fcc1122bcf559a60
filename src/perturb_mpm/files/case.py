"""What one patient's files hold, once they are read and agree with each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.files.source import InputError

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


_GLIOMA = ("background", "necrotic or non-enhancing core", "oedema", "enhancing tumour")

SCHEMES = {  # by name, never guessed: 4 is enhancing tumour in one and a cavity in another
    "brats2021": LabelScheme((0, 1, 2, 4), _GLIOMA),
    "brats2023": LabelScheme((0, 1, 2, 3), _GLIOMA),
    "brats2024": LabelScheme((0, 1, 2, 3, 4), (*_GLIOMA, "resection cavity")),
}


def labels_from_text(words: Sequence[str]) -> LabelScheme:
    """Return the scheme of ``brats2021``, of ``0:background 1:tumour`` or of ``0 1 4``.

    Words may be joined by commas; labels without a name are called "label 4".
    """
    text = ",".join(words)
    if text in SCHEMES:
        return SCHEMES[text]
    pairs = [part.strip().partition(":") for part in text.split(",")]
    if not all(
        value.strip().isdecimal() and bool(name) == bool(colon) for value, colon, name in pairs
    ):
        raise InputError(
            f"`labels` must be one of {', '.join(SCHEMES)}, or values with or without names such "
            f"as 0:background 1:tumour, got {text}"
        )
    values = tuple(int(value) for value, _, _ in pairs)
    if len(values) < 2:
        raise InputError(f"`labels` must have background and at least one label more, got {text}")
    try:
        names = (name.strip() or f"label {int(value)}" for value, _, name in pairs)
        return LabelScheme(values, tuple(names))
    except ValueError as error:
        raise InputError(f"`labels` {text}: {error}") from error


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
    truth: NDArray[np.uint8] | None = None  # (X, Y, Z), labels 0 … L − 1, where they are known


def _listed(items: tuple[object, ...]) -> str:
    return ", ".join(str(item) for item in items)
