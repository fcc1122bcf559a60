"""Do sampled frequencies agree with exact probabilities within sampling error?"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def disagreement(frequencies: NDArray, probabilities: NDArray, samples: float) -> float:
    """The largest difference of any frequency, in standard errors of independent samples."""
    p = np.clip(probabilities, 0.0, 1.0)
    error = np.sqrt(p * (1 - p) / samples) + 1 / samples
    return float((np.abs(frequencies - p) / error).max())


def size_distribution(energies: NDArray, label: int) -> NDArray:
    """P(n voxels have the label), n = 0 … N, from a table of all energies, an axis a voxel."""
    voxels = energies.ndim
    states = np.indices(energies.shape).reshape(voxels, -1)
    weights = np.exp(energies.min() - energies).ravel()
    sizes = (states == label).sum(axis=0)
    return np.bincount(sizes, weights / weights.sum(), minlength=voxels + 1)
