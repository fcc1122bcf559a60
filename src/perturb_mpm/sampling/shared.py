"""Noise that two scans of one patient share in part, so that their errors are correlated.

    g_t = √ρ·g_shared + √(1 − ρ)·g_t,own      γ_t = −log(−log Φ(g_t))

Each g is the Gaussian field behind Gumbel noise, so that γ_t keeps its law at every voxel and its
correlation in space, and between two scans on one grid the fields correlate by ρ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perturb_mpm import checks
from perturb_mpm.model import Grid
from perturb_mpm.noise import FARTHEST, Perturbation


@dataclass(frozen=True)
class SharedPerturbation(Perturbation):
    """Gumbel noise of this seed, correlated by ``correlation`` with all that share ``shared_seed``.

    It is drawn in NumPy, whatever the engine.
    """

    shared_seed: int = 0
    correlation: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        share = checks.number(self.correlation, "correlation", minimum=0, maximum=1)
        object.__setattr__(self, "correlation", share)
        if self.seed == self.shared_seed:
            raise ValueError("shared_seed must differ from the seed, which names the own noise")

    def energies(
        self, base: NDArray[np.floating], grid: Grid, samples: ArrayLike
    ) -> NDArray[np.float32]:
        """Return the perturbed energies (B, L, N) of ``base`` (L, N), the unaries in the mask."""
        own = self._normal(self.seed, base, grid, samples)
        shared = self._normal(self.shared_seed, base, grid, samples)
        g = math.sqrt(self.correlation) * shared + math.sqrt(1 - self.correlation) * own
        energies: NDArray[np.float64] = base - self.scale * _to_gumbel(g)
        return energies.astype(np.float32)

    def _normal(
        self, seed: int, base: NDArray[np.floating], grid: Grid, samples: ArrayLike
    ) -> NDArray[np.float64]:
        """Return the Gaussian field of a seed, (B, L, N)."""
        plain = Perturbation(seed, 1.0, self.antithetic, self.lengths)
        return _to_normal(-plain.energies(np.zeros(base.shape), grid, samples).astype(np.float64))


def share_noise(
    perturbation: Perturbation, number: int, shared_seed: int, correlation: float
) -> SharedPerturbation:
    """Return the noise of scan ``number`` (1, 2 …) of some that share a part of it."""
    seed = (shared_seed + number) % 2**64
    plain = replace(perturbation, seed=seed)
    return SharedPerturbation(
        plain.seed, plain.scale, plain.antithetic, plain.lengths, shared_seed, correlation
    )


def _to_normal(gumbel: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return g with Φ(g) = exp(−exp(−γ)), from the nearer tail."""
    from scipy.special import ndtri

    below = np.exp(-gumbel)
    g: NDArray[np.float64] = np.where(gumbel < 0, ndtri(np.exp(-below)), -ndtri(-np.expm1(-below)))
    return g


def _to_gumbel(g: NDArray[np.float64]) -> NDArray[np.float64]:
    from scipy.special import log_ndtr

    gumbel: NDArray[np.float64] = -np.log(-log_ndtr(np.clip(g, -FARTHEST, FARTHEST)))
    return gumbel
