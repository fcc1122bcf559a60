"""Features of the voxel itself and of its smoothed surroundings."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.segmentation.scene import Slab

Columns = Iterator[tuple[str, NDArray[np.float32]]]

SMOOTH_MM = (2.0, 4.0, 8.0)


def intensities(slab: Slab) -> Columns:
    """Normalised intensity of each sequence (robust standard deviations from the median)."""
    for name, image in zip(slab.scene.sequences, slab.scene.images):
        yield name, slab.take(image)


def smoothed(slab: Slab) -> Columns:
    """Gaussian mean of each sequence inside the brain, at several scales."""
    for sigma in SMOOTH_MM:
        for name, image in zip(slab.scene.sequences, slab.scene.smoothed(sigma)):
            yield f"{name}_smooth_{sigma:g}mm", slab.take(image)


def differences(slab: Slab) -> Columns:
    """Difference of every pair of sequences, as they are and at two scales."""
    scene = slab.scene
    sources = {"": scene.images} | {
        f"_smooth_{sigma:g}mm": scene.smoothed(sigma) for sigma in SMOOTH_MM[:2]
    }
    for suffix, images in sources.items():
        values = [slab.take(image) for image in images]
        for first, second in combinations(range(len(values)), 2):
            names = scene.sequences[second], scene.sequences[first]
            yield f"{names[0]}_minus_{names[1]}{suffix}", values[second] - values[first]
