"""Compiled all-pairs sums of a Gaussian kernel."""

from __future__ import annotations

import numpy as np

from perturb_mpm.engines.cpu.compile import fma, kernel
from perturb_mpm.engines.cpu.row_kernels import exp_negative

ROWS = 8
BLOCK = 512


@kernel
def all_pairs(queries, sources, before, values, out, start, stop):
    """Write Σ_j exp(−|q_i − s_j|²/2)·before_j·values_j for queries (d, M), sources (d, N): (M, C).

    A block of sources stays in the cache for a tile of queries. Float32 sums end with the block and
    are added up in float64, so that a million terms lose nothing.
    """
    d, n = sources.shape
    width = values.shape[1]
    gaussian = np.empty(BLOCK, np.float32)
    block = np.empty(width, np.float32)
    total = np.empty((ROWS, width), np.float64)
    for tile in range(start, stop, ROWS):
        rows = min(ROWS, stop - tile)
        total[:] = 0
        for first in range(0, n, BLOCK):
            size = min(BLOCK, n - first)
            for r in range(rows):
                for j in range(size):
                    gaussian[j] = 0
                for k in range(d):
                    here = queries[k, tile + r]
                    for j in range(size):
                        away = here - sources[k, first + j]
                        gaussian[j] = fma(away, away, gaussian[j])
                for j in range(size):
                    weight = exp_negative(np.float32(-0.5) * gaussian[j])
                    gaussian[j] = weight * before[first + j]
                block[:] = 0
                for j in range(size):
                    weight = gaussian[j]
                    for k in range(width):
                        block[k] = fma(weight, values[first + j, k], block[k])
                for k in range(width):
                    total[r, k] += block[k]
        for r in range(rows):
            for k in range(width):
                out[tile + r, k] = total[r, k]
