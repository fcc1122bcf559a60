"""Which voxels belong to the patient, where no mask is given."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

_CORNERS = np.ix_([0, -1], [0, -1], [0, -1])


def derive_mask(
    images: Mapping[str, NDArray[np.float32]],
) -> tuple[NDArray[np.bool_], str]:
    """Return the voxels (X, Y, Z) inside the patient, and in words how they were found.

    Where skull-stripped images are all 0 (or not a number) there is nothing. Images that were
    shifted have another constant there: the one value of all eight corners of the grid. Where
    an image has no such background, every voxel counts.
    """
    backgrounds = dict.fromkeys(images, 0.0)
    mask = _foreground(images, backgrounds)
    if not mask.all():
        return mask, f"derived: the {counted(mask)} where any image is not 0"
    corners = {name: np.unique(image[_CORNERS]) for name, image in images.items()}
    if all(len(values) == 1 for values in corners.values()):
        backgrounds = {name: float(values[0]) for name, values in corners.items()}
        mask = _foreground(images, backgrounds)
        if mask.any():
            return mask, (
                f"derived: the {counted(mask)} where any image differs from the value "
                "that it has in all corners"
            )
    mask = np.ones_like(mask)
    return mask, f"derived: all {counted(mask)}, since the images have no constant background"


def _foreground(
    images: Mapping[str, NDArray[np.float32]], backgrounds: Mapping[str, float]
) -> NDArray[np.bool_]:
    inside = [np.isfinite(image) & (image != backgrounds[name]) for name, image in images.items()]
    found: NDArray[np.bool_] = np.logical_or.reduce(inside)
    return found


def counted(mask: NDArray[np.bool_]) -> str:
    """Return how many voxels of a grid are meant."""
    return f"{int(mask.sum()):,} of {mask.size:,} voxels".replace(",", " ")
