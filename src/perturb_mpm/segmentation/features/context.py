"""What lies around a voxel: boxes at some distance, and the extremes of whole surroundings."""

from __future__ import annotations

import numpy as np

from perturb_mpm.segmentation.features.local import Columns
from perturb_mpm.segmentation.scene import Slab

BOXES_MM = ((12.0, 4.0), (24.0, 8.0))  # distance to the box's middle, and from there to its faces
DIRECTIONS = {
    "outwards": (1, 0, 0),  # away from the mid-sagittal plane, so left and right are the same
    "inwards": (-1, 0, 0),
    "front": (0, 1, 0),
    "back": (0, -1, 0),
    "up": (0, 0, 1),
    "down": (0, 0, -1),
}
SURROUNDINGS_MM = (8.0, 16.0)
SURROUNDINGS_SMOOTH_MM = 2.0


def boxes(slab: Slab) -> Columns:
    """Mean of each sequence in a box at a distance, along six rays and at two distances."""
    scene = slab.scene
    positions = scene.positions(slab.voxels)
    outwards = np.where(scene.plane.distance(positions) >= 0, 1.0, -1.0)
    for distance, reach in BOXES_MM:
        means = scene.box_means(reach)
        for direction, (x, y, z) in DIRECTIONS.items():
            step = np.stack([x * outwards, np.full_like(outwards, y), np.full_like(outwards, z)], 1)
            there = scene.nearest(positions + distance * step)
            for name, mean in zip(scene.sequences, means):
                yield f"{name}_box_{direction}_{distance:g}mm", mean[there]


def surroundings(slab: Slab) -> Columns:
    """Largest and smallest smoothed value of each sequence in two large boxes around the voxel."""
    scene = slab.scene
    for reach in SURROUNDINGS_MM:
        for what in ("min", "max"):
            volumes = scene.extremes(SURROUNDINGS_SMOOTH_MM, reach, largest=what == "max")
            for name, volume in zip(scene.sequences, volumes):
                yield f"{name}_around_{what}_{reach:g}mm", slab.take(volume)
