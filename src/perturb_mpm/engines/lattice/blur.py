"""How the permutohedral lattice is blurred, at each accuracy, and how its scale is calibrated.

The lattice blurs a little more than the Gaussian it stands for. Features scaled by a few percent
make up for it; how many depends on how densely the voxels fill the lattice. An engine tries
``CALIBRATION_SCALES`` on a compact part of the image, where that costs little: the run of
``CALIBRATION_VOXELS`` voxels with most foreground, compared with rows of the exact kernel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from perturb_mpm import checks

CALIBRATION_SCALES = (1.0, 1.015, 1.03, 1.045, 1.06, 1.08)
CALIBRATION_VOXELS = 60_000
CALIBRATION_ROWS = 128


@dataclass(frozen=True)
class Blur:
    """How the lattice is blurred: the same taps along every direction, directions fused or not.

    ``taps`` are the weights at 0, ±1, ±2 … steps; ``fused`` directions are blurred in one pass
    whose taps are found by their keys, so that a missing vertex between two present ones does not
    cut them apart. A missing vertex is added when at least the share ``dilation`` of its neighbours
    is there (0: never). ``scale`` multiplies the features: more than 1 makes the kernel narrower.
    """

    taps: tuple[float, ...] = (1.0, 0.5)
    fused: int = 1
    dilation: float = 0.0
    scale: float = 1.0

    @property
    def variance(self) -> float:
        """The variance of the splat, the blur and the slice of the published lattice is 2/3."""
        spread = sum(2 * k * k * w for k, w in enumerate(self.taps))
        return 1 / 6 + spread / (self.taps[0] + 2 * sum(self.taps[1:]))

    def tap(self, step: int) -> float:
        """Return the weight of a tap, 0 beyond the last."""
        return self.taps[abs(step)] if abs(step) < len(self.taps) else 0.0

    def fewest_neighbours(self, dimensions: int) -> int:
        """Return how many of its 2(d + 1) neighbours a missing vertex needs to be added."""
        return math.ceil(2 * (dimensions + 1) * self.dilation)

    def feature_scales(self, dimensions: int) -> NDArray[np.float32]:
        """Return what each feature is multiplied by, (d,): the whole filter has unit variance."""
        # Rounded where the published algorithm rounds, to find the very same vertices.
        wanted = float(np.float32(math.sqrt(self.variance) * (dimensions + 1) * self.scale))
        each = [wanted / math.sqrt((j + 2) * (j + 1)) for j in range(dimensions)]
        return np.array(each, dtype=np.float32)

    def passes(
        self, directions: NDArray[np.int64]
    ) -> list[tuple[NDArray[np.int64], NDArray[np.float64]]]:
        """Return the key steps of the taps of each pass, and their weights.

        ``directions`` are the key steps along the d + 1 directions of the lattice.
        """
        reach = range(-len(self.taps) + 1, len(self.taps))
        passes = []
        for first in range(0, len(directions), self.fused):
            steps, weights = np.zeros(1, dtype=np.int64), np.ones(1)
            # Arrays of one key, not numbers: hashed keys wrap around, and arrays do so in silence.
            for direction in directions[first : first + self.fused, np.newaxis]:
                steps = np.concatenate([steps + k * direction for k in reach])
                weights = np.concatenate([weights * self.tap(k) for k in reach])
            passes.append((steps, weights))
        return passes

    def responses(self, dimensions: int) -> NDArray[np.float64]:
        """Return what a vertex gets of another of its simplex, 0 … d steps apart, (d + 1,).

        The steps lie along different directions, and since all d + 1 directions together lead back
        to where they started, the vertices lie as well d + 1 − distance steps apart the other way.
        """
        reach = len(self.taps) - 1
        return np.array(
            [
                sum(
                    self.tap(turn + 1) ** distance * self.tap(turn) ** (dimensions + 1 - distance)
                    for turn in range(-reach - 1, reach + 1)
                )
                for distance in range(dimensions + 1)
            ]
        )


BLURS = {
    "plain": Blur(),
    "calibrated": Blur(fused=2, dilation=3 / 8),
    "accurate": Blur(taps=(1.5, 1.0, 0.25), dilation=1 / 8),
}
"""The blur of each accuracy that works on a lattice."""


def published_gain(dimensions: int) -> float:
    """Return what the published filter multiplies the lattice's output by."""
    return 1 / (1 + 2.0**-dimensions)


@cache
def calibration_rows(count: int) -> NDArray[np.int64]:
    """Return which of ``count`` voxels a lattice is compared with the exact kernel at."""
    rows = min(CALIBRATION_ROWS, count)
    return checks.read_only(np.random.default_rng(0).choice(count, size=rows, replace=False))
