"""Samples by borders that are moved: x̃(u) = argmax_l P_l(u + d(u)), a rival without CRF or Gumbel.

d is a smooth random field of displacements in mm. It says nothing of a region that the
probabilities do not see at all, and of one that they see by mistake it says that it is there.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.model import bounding_box

if TYPE_CHECKING:
    from perturb_mpm.files import Case

LEAST = 1e-3
"""Where all labels but the first have less together, nothing but that label can come there."""


def displace_borders(
    case: Case, length_mm: float, sd_mm: float, samples: int, seed: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the mean of the displaced probabilities (L, X, Y, Z), and the volumes in ml (S, L).

    Displacements have the standard deviation ``sd_mm`` along each axis, and are correlated as
    exp(−r²/2·length²), as the noise of ``run`` is.
    """
    from scipy.ndimage import gaussian_filter, map_coordinates

    p = case.probabilities.astype(np.float64)
    spacing = np.array(case.geometry.spacing)
    widths = length_mm / math.sqrt(2) / spacing  # of the filter whose square is that correlation
    box = _surroundings(p, np.ceil(4 * sd_mm / spacing).astype(int))
    cut = p[:, *box]  # (L, x, y, z)
    grid = np.indices(cut.shape[1:], dtype=np.float64)
    inside = case.mask[box]
    certain = np.bincount(p.argmax(axis=0)[case.mask], minlength=len(p)).astype(np.float64)
    certain -= np.bincount(cut.argmax(axis=0)[inside], minlength=len(p))

    impulse = np.zeros(cut.shape[1:])
    impulse[0, 0, 0] = 1
    # The standard deviation of filtered white noise, whatever the field's length in this box.
    gain = float(np.sqrt((gaussian_filter(impulse, widths, mode="wrap") ** 2).sum()))
    rng = np.random.default_rng(seed)
    total = np.zeros_like(cut)
    volumes = np.empty((samples, len(p)))
    for sample in range(samples):
        moved = grid.copy()
        for axis in range(3):
            field = gaussian_filter(rng.standard_normal(cut.shape[1:]), widths, mode="wrap")
            moved[axis] += field * (sd_mm / spacing[axis] / gain)
        shifted = np.stack(
            [map_coordinates(each, moved, order=1, mode="nearest") for each in cut]
        )  # (L, x, y, z)
        total += shifted
        labels = shifted.argmax(axis=0)[inside]
        volumes[sample] = certain + np.bincount(labels, minlength=len(p))
    mean = p.copy()
    mean[:, *box] = total / samples
    return mean, volumes * (math.prod(case.geometry.spacing) / 1000)


def _surroundings(p: NDArray[np.float64], margin: NDArray[np.int64]) -> tuple[slice, ...]:
    """Return the box around the voxels that any other label than the first may have."""
    found = 1 - p[0] > LEAST
    if not found.any():
        return (slice(0, 1),) * 3
    return tuple(
        slice(max(each.start - int(wide), 0), min(each.stop + int(wide), size))
        for each, wide, size in zip(bounding_box(found), margin, found.shape, strict=True)
    )
