"""How far a voxel differs from its mirror image."""

from __future__ import annotations

from perturb_mpm.segmentation.features.local import SMOOTH_MM, Columns
from perturb_mpm.segmentation.scene import Slab


def symmetry(slab: Slab) -> Columns:
    """Each sequence minus the same across the mid-sagittal plane, at several scales."""
    scene = slab.scene
    there = scene.nearest(scene.plane.mirrored(scene.positions(slab.voxels)))
    for sigma in SMOOTH_MM:
        for name, image in zip(scene.sequences, scene.smoothed(sigma)):
            yield f"{name}_asymmetry_{sigma:g}mm", slab.take(image) - image[there]
