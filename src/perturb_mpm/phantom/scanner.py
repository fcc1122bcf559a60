"""From tissue to four MR images: brightness, texture, thick slices, coil shading, Rician noise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.phantom.anatomy import Anatomy
from perturb_mpm.phantom.space import Array, PhantomGrid, RandomSource, soft_step

CHANNEL_NAMES = ("T1", "T1c", "T2", "FLAIR")

TYPICAL = {  # white matter in T1 being 1
    "white": (1.00, 1.00, 0.58, 0.74),
    "grey": (0.77, 0.80, 0.80, 0.92),
    "fluid": (0.28, 0.30, 2.10, 0.26),
    "necrosis": (0.52, 0.50, 1.70, 0.80),
    "oedema": (0.80, 0.81, 1.25, 1.55),
    "non-enhancing": (0.74, 0.78, 1.15, 1.35),
    "enhancing": (0.79, 1.70, 1.05, 1.30),
    "cavity": (0.40, 0.43, 1.95, 0.48),
    "blood": (1.38, 1.46, 0.48, 0.95),
    "air": (0.03, 0.03, 0.03, 0.03),
}
SPREAD = {  # of the logarithm, from scan to scan, in each sequence
    "white": (0.0, 0.0, 0.05, 0.04),
    "grey": (0.04, 0.04, 0.05, 0.04),
    "fluid": (0.10, 0.10, 0.10, 0.15),
    "necrosis": (0.10, 0.10, 0.12, 0.30),
    "oedema": (0.04, 0.04, 0.08, 0.08),
    "non-enhancing": (0.05, 0.05, 0.08, 0.08),
    "enhancing": (0.05, 0.13, 0.08, 0.08),
    "cavity": (0.10, 0.10, 0.08, 0.35),
    "blood": (0.06, 0.06, 0.25, 0.15),
    "air": (0.0, 0.0, 0.0, 0.0),
}
_THICK_SLICE_SD_MM = 1.27  # FLAIR has slices of 3 mm: a full width at half maximum of that
_PATCHINESS = {"oedema": 1.0, "non-enhancing": 1.0, "necrosis": 1.5, "cavity": 1.2}
_T1C, _T2, _FLAIR = 1, 2, 3


def scan(
    source: RandomSource, grid: PhantomGrid, around: Anatomy, tissue: dict[str, Array], stage: str
) -> NDArray[np.float32]:
    """Return the images (4, X, Y, Z) of ``tissue``, the shares of each at every voxel."""
    from scipy.ndimage import gaussian_filter, gaussian_filter1d

    bright = brightness(source, stage)
    rng = source.rng(f"scanner, {stage}")
    normal = normal_enhancement(source, grid, around)
    healthy = tissue["white"] + tissue["grey"] + tissue["fluid"]
    texture = 1.0 + 0.030 * source.noise(grid, "texture", 4.0)
    texture += 0.030 * source.noise(grid, "texture, coarse", 12.0)
    images = np.empty((len(CHANNEL_NAMES), *grid.shape), dtype=np.float32)
    for channel in range(len(CHANNEL_NAMES)):
        signal = np.zeros(grid.shape, dtype=np.float32)
        for name, share in tissue.items():
            signal += share * np.float32(bright[name][channel])
        signal += _lesion_texture(source, grid, around, tissue, channel)
        if channel == _T1C:
            signal += normal.brightness * healthy
        elif channel == _T2:  # flowing blood is dark
            signal *= 1.0 - 0.6 * normal.vessels * healthy
        signal *= texture
        if channel == _FLAIR:
            signal = gaussian_filter1d(signal, _THICK_SLICE_SD_MM / grid.spacing[2], axis=2)
        shading = np.exp(0.07 * source.noise(grid, f"shading {channel}, {stage}", 85.0))
        level = np.float32(rng.uniform(0.022, 0.038))
        noise = [
            level * gaussian_filter(rng.standard_normal(grid.shape, dtype=np.float32), 0.45)
            for _ in range(2)
        ]
        measured = np.hypot(signal * shading + noise[0], noise[1])
        images[channel] = rng.uniform(250.0, 900.0) * measured * around.mask
    return images


def brightness(source: RandomSource, stage: str) -> dict[str, tuple[float, ...]]:
    """Return the brightness of each tissue in the four sequences of one scan.

    T1 and T1c share their deviations, so that what does not enhance is as bright in both.
    """
    rng = source.rng(f"contrast, {stage}")
    flatness = rng.uniform(0.75, 1.1, len(CHANNEL_NAMES))
    flatness[1] = flatness[0]
    result: dict[str, tuple[float, ...]] = {}
    for name, values in TYPICAL.items():
        deviation = rng.standard_normal(len(CHANNEL_NAMES))
        if name != "enhancing":
            deviation[1] = deviation[0]
        bright = np.array(values) * np.exp(np.array(SPREAD[name]) * deviation)
        if name == "grey":
            white = np.array(result["white"])
            bright = white + flatness * (bright - white)
        result[name] = tuple(float(value) for value in bright)
    return result


@dataclass(frozen=True)
class NormalEnhancement:
    """Shares of what enhances in everybody, (X, Y, Z) each."""

    vessels: Array
    dura: Array
    choroid: Array

    @property
    def brightness(self) -> Array:
        """What they add to T1c, white matter being 1."""
        return 1.1 * self.vessels + 0.75 * self.dura + 0.7 * self.choroid


def normal_enhancement(
    source: RandomSource, grid: PhantomGrid, around: Anatomy
) -> NormalEnhancement:
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
    return NormalEnhancement(np.minimum(vessels, 1.0), dura, inner * tufts)


def _winding(
    source: RandomSource, grid: PhantomGrid, name: str, scale_mm: float, width: float
) -> Array:
    """Return tubes that wind through space: where two smooth fields are both about zero."""
    first = source.noise(grid, f"{name}, first", scale_mm)
    second = source.noise(grid, f"{name}, second", scale_mm)
    return np.exp(-(first**2 + second**2) / np.float32(2.0 * width**2))


def _lesion_texture(
    source: RandomSource, grid: PhantomGrid, around: Anatomy, tissue: dict[str, Array], channel: int
) -> Array:
    """Return how brightness varies inside the lesions, and around the ventricles with age."""
    if channel == _T1C:
        return tissue["enhancing"] * (0.22 * source.noise(grid, "uptake", 6.0))
    patchy = source.noise(grid, "patchy", 9.0)
    strength = (0.03, 0.0, 0.13, 0.13)[channel]
    uneven = np.zeros(grid.shape, dtype=np.float32)
    for name, patchiness in _PATCHINESS.items():
        if name in tissue:
            uneven += np.float32(strength * patchiness) * patchy * tissue[name]
    if channel == _FLAIR:
        uneven += _ventricular_caps(source, grid, around)
    return uneven


def _ventricular_caps(source: RandomSource, grid: PhantomGrid, around: Anatomy) -> Array:
    """Return the bright caps of ageing white matter around the ventricles in FLAIR."""
    from scipy.ndimage import gaussian_filter

    amount = float(source.rng("age").uniform(0.0, 1.0))
    deep = soft_step(around.depth_mm - 28.0, 3.0)
    near = gaussian_filter(around.fluid * deep, [3.5 / step for step in grid.spacing])
    patches = np.clip(0.6 + 0.5 * source.noise(grid, "caps", 8.0), 0.0, 1.5)
    return np.float32(1.6 * amount) * near * around.white * patches
