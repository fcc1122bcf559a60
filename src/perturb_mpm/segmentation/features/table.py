"""All families of features in one table, a row for each voxel inside the mask."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.segmentation.features.context import boxes, surroundings
from perturb_mpm.segmentation.features.local import Columns, differences, intensities, smoothed
from perturb_mpm.segmentation.features.location import location
from perturb_mpm.segmentation.features.symmetry import symmetry
from perturb_mpm.segmentation.features.texture import entropies, gradients, statistics
from perturb_mpm.segmentation.scene import Scene, Slab

FAMILIES: dict[str, Callable[[Slab], Columns]] = {
    "intensities": intensities,
    "smoothed": smoothed,
    "differences": differences,
    "statistics": statistics,
    "entropies": entropies,
    "gradients": gradients,
    "symmetry": symmetry,
    "location": location,
    "boxes": boxes,
    "surroundings": surroundings,
}

SLAB_VOXELS = 200_000
"""About how many voxels of the grid a slab has: what bounds the memory of a slab's features."""


def feature_names(sequences: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the F columns for these sequences, in order."""
    return tuple(name for names in family_names(tuple(sequences)).values() for name in names)


@cache
def family_names(sequences: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Return the names of each family's columns, by asking for those of a scene of a few voxels."""
    shape = (2, 2, 2)
    images = np.zeros((len(sequences), *shape), dtype=np.float32)
    scene = Scene(sequences, images, np.ones(shape, dtype=bool), (1.0, 1.0, 1.0))
    slab = Slab(scene, 0, shape[0])
    return {
        family: tuple(name for name, _ in compute(slab)) for family, compute in FAMILIES.items()
    }


def features_in_slabs(
    scene: Scene, thickness: int | None = None
) -> Iterator[tuple[Slab, NDArray[np.float32]]]:
    """Yield each slab with its features (n, F), slabs along the first axis.

    The thickness of a slab (in voxels) changes how much memory is needed and nothing else.
    """
    if thickness is None:
        thickness = max(1, SLAB_VOXELS // (scene.shape[1] * scene.shape[2]))
    width = len(feature_names(scene.sequences))
    for slab in scene.slabs(thickness):
        table = np.empty((len(slab.voxels), width), dtype=np.float32)
        column = 0
        for compute in FAMILIES.values():
            for _, values in compute(slab):
                table[:, column] = values
                column += 1
        yield slab, table
