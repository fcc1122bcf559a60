"""The MNI152 tissue maps at 2 mm, and how to look them up anywhere."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np

from perturb_mpm.phantom.space import Array

STEP_MM = 2.0


@dataclass(frozen=True)
class Atlas:
    """Shares of grey and white matter and of brain, and how deep below its surface a point lies."""

    grey: Array  # (73, 91, 78), 0 … 1
    white: Array
    brain: Array
    depth_mm: Array  # negative outside
    origin_mm: Array  # (3,), the centre of the first voxel

    def look_up(self, volume: Array, points: Array, outside: float = 0.0) -> Array:
        """Return ``volume`` at ``points`` (3, X, Y, Z) mm, interpolated; beyond it ``outside``."""
        from scipy.ndimage import map_coordinates

        voxels = (points - self.origin_mm.reshape(3, 1, 1, 1)) / np.float32(STEP_MM)
        found: Array = map_coordinates(
            volume, voxels, order=1, mode="constant", cval=outside, output=np.float32
        )
        return found

    def places(self) -> Array:
        """Return where gliomas grow, (n, 3) mm: deep white matter of the cerebrum."""
        index = np.argwhere((self.white > 0.85) & (self.depth_mm > 14.0) & (self.depth_mm < 36.0))
        points = self.origin_mm + np.float32(STEP_MM) * index.astype(np.float32)
        x, y, z = points.T
        cerebrum = (np.abs(x) > 18.0) & (z > -22.0) & ((z > -4.0) | (y > -42.0))
        chosen: Array = points[cerebrum]
        return chosen


@cache
def atlas() -> Atlas:
    """Read the maps, once."""
    from scipy.ndimage import distance_transform_edt

    resource = files("perturb_mpm.phantom") / "data" / "mni152_2mm.npz"
    with resource.open("rb") as stream, np.load(stream, allow_pickle=False) as maps:
        grey, white, brain = (
            maps[name].astype(np.float32) / np.float32(255.0) for name in ("grey", "white", "brain")
        )
        origin = maps["origin_mm"].astype(np.float32)
    inside = np.pad(brain > 0.5, 1)
    depth = distance_transform_edt(inside) - distance_transform_edt(~inside)
    depth = (depth - np.sign(depth) * 0.5)[1:-1, 1:-1, 1:-1] * STEP_MM
    return Atlas(grey, white, brain, depth.astype(np.float32), origin)
