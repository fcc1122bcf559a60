"""Where in the brain a voxel lies."""

from __future__ import annotations

import numpy as np

from perturb_mpm.segmentation.features.local import Columns
from perturb_mpm.segmentation.scene import Slab


def location(slab: Slab) -> Columns:
    """Distance from the mid-sagittal plane, place back to front and bottom to top, and depth.

    The first three are shares of the brain's half width, length and height; left and right are
    not told apart.
    """
    scene = slab.scene
    positions = scene.positions(slab.voxels)
    first, last = scene.extent_mm.T
    size = np.maximum(last - first, scene.spacing)
    away = np.abs(scene.plane.distance(positions))
    yield "lateral_share", (away / (size[0] / 2)).astype(np.float32)
    yield "front_share", ((positions[:, 1] - first[1]) / size[1]).astype(np.float32)
    yield "top_share", ((positions[:, 2] - first[2]) / size[2]).astype(np.float32)
    yield "depth_mm", slab.take(scene.depth_mm)
