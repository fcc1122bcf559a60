"""One voxel and no coupling: whether the perturbed labels follow softmax(−U)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.distances import log_probability_error, smoothed_frequencies, total_variation
from perturb_mpm.noise import gumbel
from perturb_mpm.reproduce.binary import noise_seed
from perturb_mpm.reproduce.rows import Row

# What the noise is multiplied by before it is taken off the energies. The last makes its variance
# 1, which the paper says it is; that of −log(−log u) is π²/6.
SCALES = {
    "noise subtracted": 1.0,
    "noise added, as printed": -1.0,
    "noise of unit variance": math.sqrt(6) / math.pi,
}


def single_voxel(labels: int, draws: int, samples: int, seed: int) -> list[Row]:
    """Measure each noise on random unaries: probabilities uniform on the simplex."""
    rows = []
    for draw in range(draws):
        truth = np.random.default_rng(draw).dirichlet(np.ones(labels))  # (L,)
        noise = gumbel(noise_seed(seed, draw), range(samples), [0], labels)[:, :, 0]  # (S, L)
        for name, scale in SCALES.items():
            perturbed = -np.log(truth) - scale * noise.astype(np.float64)  # (S, L)
            counts = np.bincount(perturbed.argmin(axis=1), minlength=labels)  # (L,)
            rows.append(_row(name, counts, truth, samples, draw))
    return rows


def _row(
    name: str, counts: NDArray[np.integer], truth: NDArray[np.float64], samples: int, draw: int
) -> Row:
    exact, votes = truth[:, np.newaxis], counts[:, np.newaxis]  # (L, 1)
    return Row(
        experiment="single voxel",
        voxels=1,
        labels=truth.size,
        weight=0.0,
        sigma_voxels=None,
        self_term=False,
        estimator=name,
        samples=samples,
        draw=draw,
        total_variation=total_variation(votes / samples, exact),
        log_probability_error_nats=log_probability_error(smoothed_frequencies(votes), exact),
    )
