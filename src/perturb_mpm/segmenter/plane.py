"""The mid-sagittal plane: the one across which a brain is most like its mirror image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_VOXELS = 6000  # compared voxels, spread evenly over the brain
_FIRST_STEPS = (4.0, 0.05, 0.05)  # of the search: mm, radians, radians
_MOST_TRIALS = 150
_MOST_DIFFERENCE = 1.0  # robust standard deviations: a tumour counts as different, however bright
_TILT_PENALTY = 2.0  # for each squared radian: heads lie nearly straight, tumours bulge


@dataclass(frozen=True)
class SagittalPlane:
    """The points r (mm) with normal · r = offset; the normal points to the right."""

    normal: tuple[float, ...]  # of length 1
    offset: float  # mm

    def distance(self, positions: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the signed distance (n,) of positions (n, 3) in mm, positive to the right."""
        signed: NDArray[np.float64] = positions @ np.asarray(self.normal) - self.offset
        return signed

    def mirrored(self, positions: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the mirror images (n, 3) of positions (n, 3) in mm."""
        across = 2.0 * self.distance(positions)[:, np.newaxis]
        images: NDArray[np.float64] = positions - across * np.asarray(self.normal)
        return images


def midsagittal_plane(
    channels: Sequence[NDArray[np.float32]],
    mask: NDArray[np.bool_],
    spacing: Sequence[float],
) -> SagittalPlane:
    """Return the plane with the least mean difference between brain and mirror image.

    ``channels`` are smoothed volumes in robust standard deviations. The search begins with the
    plane through the brain's centre at right angles to the first axis.
    """
    from scipy.optimize import minimize

    voxels = np.argwhere(mask)
    positions = voxels * np.asarray(spacing)
    centre = positions.mean(axis=0)
    chosen = np.unique(np.linspace(0, len(voxels) - 1, _VOXELS).round().astype(np.intp))
    sample = positions[chosen]
    here = [_at(channel, sample, spacing) for channel in channels]

    def asymmetry(parameters: NDArray[np.float64]) -> float:
        mirrored = _plane(parameters, centre).mirrored(sample)
        there = (_at(channel, mirrored, spacing) for channel in channels)
        apart = (np.minimum(np.abs(a - b), _MOST_DIFFERENCE).mean() for a, b in zip(here, there))
        tilt = float(parameters[1] ** 2 + parameters[2] ** 2)
        return float(sum(apart)) + _TILT_PENALTY * tilt

    found = minimize(
        asymmetry,
        np.zeros(3),
        method="Nelder-Mead",
        options={
            "initial_simplex": np.vstack([np.zeros(3), np.diag(_FIRST_STEPS)]),
            "maxfev": _MOST_TRIALS,
            "xatol": 1e-3,
            "fatol": 1e-6,
        },
    )
    return _plane(found.x, centre)


def _plane(parameters: NDArray[np.float64], centre: NDArray[np.float64]) -> SagittalPlane:
    """Return the plane moved by mm along, and turned by two angles from, the first axis."""
    shift, yaw, roll = parameters
    normal = np.array([1.0, np.tan(yaw), np.tan(roll)])
    normal /= np.linalg.norm(normal)
    return SagittalPlane(tuple(normal.tolist()), float(normal @ centre + shift))


def _at(
    volume: NDArray[np.float32], positions: NDArray[np.float64], spacing: Sequence[float]
) -> NDArray[np.float32]:
    from scipy.ndimage import map_coordinates

    values: NDArray[np.float32] = map_coordinates(
        volume, (positions / np.asarray(spacing)).T, order=1, mode="nearest"
    )
    return values
