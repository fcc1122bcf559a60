"""What an imperfect voxelwise classifier would say: blurred, biased, noisy, wrong in places."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.phantom.shapes import Array, smooth_noise
from perturb_mpm.phantom.tumour import Tumour

_BLUR_MM = 2.0
_FLOOR = 2e-3
_BIAS = (0.0, 0.3, 0.2, -0.3)  # log odds: it sees too much core and oedema and too little rim
_REGIONAL_SD, _REGIONAL_MM = 1.0, 9.0
_VOXEL_SD = 1.1


def classify(
    memberships: Array,
    points: Array,
    tumour: Tumour,
    mask: NDArray[np.bool_],
    spacing: tuple[float, float, float],
    rng: np.random.Generator,
) -> NDArray[np.float32]:
    """Return probabilities (4, *shape) that follow ``memberships`` (4, *shape) with errors."""
    from scipy.ndimage import gaussian_filter
    from scipy.special import softmax

    voxels = [_BLUR_MM / step for step in spacing]
    logits = np.empty_like(memberships)
    for label, membership in enumerate(memberships):
        blurred = gaussian_filter(membership, voxels)
        regional = _REGIONAL_SD * smooth_noise(points, _REGIONAL_MM, rng)
        logits[label] = np.log(blurred + _FLOOR) + _BIAS[label] + regional
    _add_false_positive(logits, points, tumour)
    _add_leak(logits, points, tumour, rng)
    logits += _VOXEL_SD * rng.standard_normal(logits.shape)
    probabilities = softmax(logits, axis=0)
    certain = np.array([1.0, 0.0, 0.0, 0.0]).reshape(4, 1, 1, 1)
    result: NDArray[np.float32] = np.where(mask, probabilities, certain).astype(np.float32)
    return result


def _add_false_positive(logits: Array, points: Array, tumour: Tumour) -> None:
    """Raise oedema and rim in a healthy spot of the other hemisphere."""
    x, y, z = tumour.centre
    blob = _blob(points, np.array([-0.9 * x, y - 12.0 * np.sign(y), z]), 6.0)
    logits[2] += 7.0 * blob
    logits[3] += 6.5 * blob


def _add_leak(logits: Array, points: Array, tumour: Tumour, rng: np.random.Generator) -> None:
    """Let the oedema run out over its border on one side."""
    angle = rng.uniform(0.0, 2.0 * np.pi)
    direction = np.array([np.cos(angle), np.sin(angle), 0.0])
    logits[2] += 4.5 * _blob(points, tumour.centre + tumour.oedema_radius * direction, 9.0)


def _blob(points: Array, centre: Array, radius_mm: float) -> Array:
    """Return a Gaussian bump of height 1."""
    squared = ((points - centre.reshape(3, 1, 1, 1)) ** 2).sum(axis=0)
    bump: Array = np.exp(-0.5 * squared / radius_mm**2)
    return bump
