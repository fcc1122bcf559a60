"""From tissue to four MR images: brightness, texture, coil shading, Rician noise."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.phantom.shapes import Array, smooth_noise

CHANNEL_NAMES = ("T1", "T1ce", "T2", "FLAIR")

_BRIGHTNESS = {  # of each tissue in the four channels, white matter in T1 being 1
    "white": (1.00, 1.00, 0.46, 0.56),
    "grey": (0.74, 0.76, 0.66, 0.70),
    "fluid": (0.30, 0.31, 1.40, 0.15),
    "necrosis": (0.44, 0.42, 1.20, 0.50),
    "oedema": (0.72, 0.73, 1.02, 1.15),
    "rim": (0.68, 1.45, 0.84, 0.95),
}
_UNITS = 400.0  # a scanner's arbitrary ones
_NOISE_SD = 0.04


def scan(
    tissue: dict[str, Array],
    points: Array,
    mask: NDArray[np.bool_],
    rng: np.random.Generator,
) -> NDArray[np.float32]:
    """Return the images (4, *shape) of ``tissue``, the shares of each at every voxel."""
    texture = 0.06 * smooth_noise(points, 5.0, rng) + 0.06 * smooth_noise(points, 14.0, rng)
    images = np.empty((len(CHANNEL_NAMES), *mask.shape), dtype=np.float32)
    for channel in range(len(CHANNEL_NAMES)):
        signal = sum(share * _BRIGHTNESS[name][channel] for name, share in tissue.items())
        shading = np.exp(0.06 * smooth_noise(points, 80.0, rng))
        signal = signal * (1.0 + texture) * shading
        noise = _NOISE_SD * rng.standard_normal((2, *mask.shape))
        images[channel] = _UNITS * np.hypot(signal + noise[0], noise[1]) * mask
    return images
