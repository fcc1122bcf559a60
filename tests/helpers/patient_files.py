"""A small patient on disk: two images, and the probabilities of three labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from numpy.typing import NDArray

SHAPE = (5, 6, 4)
SPACING = (0.9, 1.1, 3.0)  # mm
# Oblique, left-handed and off the origin: nothing that a reader could guess.
AFFINE = nib.affines.from_matvec(
    nib.eulerangles.euler2mat(0.2, -0.1, 0.4) @ np.diag([-0.9, 1.1, 3.0]), [31.25, 44.5, -12.75]
)


def write(
    path: Path, volume: NDArray[Any], affine: NDArray[np.float64] | None = AFFINE, **header: Any
) -> Path:
    """Write a NIfTI, then set single fields of its header."""
    image = nib.Nifti1Image(volume, affine)
    if affine is not None:
        image.set_sform(affine, code=1)
        image.set_qform(affine, code=1)
    for name, value in header.items():
        image.header[name] = value
    nib.save(image, path)
    return path


def image(seed: int) -> NDArray[np.float32]:
    """Return an image (X, Y, Z) that is 0 in its first slab and in its last."""
    values = np.random.default_rng(seed).uniform(1, 9, SHAPE).astype(np.float32)
    values[0] = values[-1] = 0
    return values


def probabilities(labels: int = 3) -> NDArray[np.float32]:
    """Return the probabilities (X, Y, Z, L) of a network, in float32."""
    scores = np.random.default_rng(7).gumbel(size=(*SHAPE, labels)) * 2
    weights = np.exp(scores)
    return (weights / weights.sum(axis=-1, keepdims=True)).astype(np.float32)


def two_images(folder: Path) -> list[Path]:
    return [
        write(folder / "P01_t1ce.nii.gz", image(1)),
        write(folder / "P01_flair.nii.gz", image(2)),
    ]
