"""The compiled loop of the Gibbs sampler."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.engines.cpu import kernel


@kernel
def sweep(
    labels: NDArray[np.uint8],
    fields: NDArray[np.float64],
    kernels: NDArray[np.float64],
    compatibilities: NDArray[np.float64],
    uniforms: NDArray[np.float64],
    kept: NDArray[np.uint8],
    energies: NDArray[np.float64],
) -> None:
    """Visit every voxel in order, once for each row of uniforms (n, N), and draw its label anew.

    ``fields`` (L, N) is the energy of every label given all other voxels; a voxel that changes
    adds one row of every kernel (G, N, N) to it, with the compatibilities (G, L, L). After each
    sweep the labels go to ``kept`` (n, N), and the change of energy since the start to
    ``energies`` (n,).
    """
    n_labels, voxels = fields.shape
    weights = np.empty(n_labels)
    energy = 0.0
    for s in range(len(uniforms)):
        for i in range(voxels):
            lowest = fields[0, i]
            for l in range(1, n_labels):
                lowest = min(lowest, fields[l, i])
            total = 0.0
            for l in range(n_labels):
                total += np.exp(lowest - fields[l, i])
                weights[l] = total
            old = labels[i]
            new = 0
            while new < n_labels - 1 and weights[new] <= uniforms[s, i] * total:
                new += 1
            if new == old:
                continue
            labels[i] = new
            energy += fields[new, i] - fields[old, i]
            for g in range(len(kernels)):
                for l in range(n_labels):
                    change = compatibilities[g, l, new] - compatibilities[g, l, old]
                    if change != 0:
                        for j in range(voxels):
                            fields[l, j] += change * kernels[g, i, j]
        kept[s] = labels
        energies[s] = energy
