"""What lights up after contrast agent without being tumour: vessels, dura, choroid plexus."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perturb_mpm.phantom.anatomy import Anatomy
from perturb_mpm.phantom.space import Array, Grid, Source, soft_step


@dataclass(frozen=True)
class Normal:
    """Shares of what enhances in everybody, (X, Y, Z) each."""

    vessels: Array
    dura: Array
    choroid: Array

    @property
    def brightness(self) -> Array:
        """What they add to T1c, white matter being 1."""
        added: Array = 1.1 * self.vessels + 0.75 * self.dura + 0.7 * self.choroid
        return added


def normal_enhancement(source: Source, grid: Grid, around: Anatomy) -> Normal:
    """Return what enhances in the healthy part of a head."""
    x, y, z = around.atlas_mm
    shallow = soft_step(26.0 - around.depth_mm, 6.0)
    vessels = np.maximum(
        _winding(source, grid, "cortical veins", 11.0, 0.16) * shallow * (0.25 + around.fluid),
        _winding(source, grid, "deep veins", 19.0, 0.07) * 0.35 * (1.0 - shallow),
    )
    sagittal = soft_step(2.6 - np.abs(x), 0.8) * soft_step(7.0 - around.depth_mm, 1.0)
    vessels = np.maximum(vessels, sagittal * soft_step(z - 5.0, 3.0) * soft_step(40.0 - y, 8.0))
    patches = soft_step(source.noise(grid, "dura", 14.0) - 0.6, 0.3)
    dura = soft_step(4.0 - around.depth_mm, 0.8) * patches
    inner = around.fluid * soft_step(around.depth_mm - 28.0, 3.0) * soft_step(np.abs(x) - 6.0, 1.0)
    tufts = soft_step(source.noise(grid, "choroid", 5.0) - 0.7, 0.3) * soft_step(-y - 8.0, 3.0)
    return Normal(np.minimum(vessels, 1.0), dura, inner * tufts)


def _winding(source: Source, grid: Grid, name: str, scale_mm: float, width: float) -> Array:
    """Return tubes that wind through space: where two smooth fields are both about zero."""
    first = source.noise(grid, f"{name}, first", scale_mm)
    second = source.noise(grid, f"{name}, second", scale_mm)
    tube: Array = np.exp(-(first**2 + second**2) / np.float32(2.0 * width**2))
    return tube
