"""What is taken off the unary energies to make a sample: Ũ = U − scale·γ."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perturb_mpm import checks
from perturb_mpm.model import Grid
from perturb_mpm.noise.correlated import (
    WHITE,
    Lengths,
    check_fits,
    checked_lengths,
    correlated_gumbel,
    describe_lengths,
)
from perturb_mpm.noise.gumbel import checked_seed, gumbel


@dataclass(frozen=True)
class Perturbation:
    """Gumbel noise γ for every voxel and label.

    Scale 1 of white noise is the paper's. ``lengths`` correlates the noise of voxels
    and keeps its law at each (see ``correlated``). With ``antithetic`` samples 2t and 2t + 1 are
    opposites: 1 − u in place of u.
    """

    seed: int = 0
    scale: float = 1.0
    antithetic: bool = False
    lengths: Lengths = WHITE

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", checked_seed(self.seed))
        object.__setattr__(self, "scale", checks.nats(self.scale, "scale of Perturbation"))
        object.__setattr__(self, "antithetic", checks.flag(self.antithetic, "antithetic"))
        object.__setattr__(self, "lengths", checked_lengths(self.lengths))

    @property
    def correlated(self) -> bool:
        """Whether the noise of neighbouring voxels is correlated."""
        return self.lengths != WHITE

    def without_noise(self) -> Perturbation:
        """Return what is left when each voxel's own noise is integrated out."""
        return replace(self, scale=0.0, lengths=WHITE)

    def check(self, grid: Grid) -> None:
        """Raise where the noise does not fit the image; nothing is drawn."""
        check_fits(self.lengths, grid)

    def describe(self) -> dict[str, object]:
        """Return all that makes the perturbation, as values that JSON can hold."""
        return {
            "seed": self.seed,
            "scale": self.scale,
            "antithetic": self.antithetic,
            **({"lengths_mm": describe_lengths(self.lengths)} if self.correlated else {}),
        }

    def energies(
        self, base: NDArray[np.floating], grid: Grid, samples: ArrayLike
    ) -> NDArray[np.float32]:
        """Return the perturbed energies (B, L, N) of ``base`` (L, N), the unaries in the mask."""
        self.check(grid)
        options = {"antithetic": self.antithetic}
        if self.correlated:
            together = correlated_gumbel(
                self.lengths, self.seed, samples, grid, len(base), **options
            )
            return np.stack([base - self.scale * each for each in together]).astype(np.float32)
        noise = gumbel(self.seed, samples, grid.index, len(base), **options)
        energies: NDArray[np.float64] = base - self.scale * noise.astype(np.float64)
        return energies.astype(np.float32)
