"""Compiled all-pairs sums of a Gaussian kernel."""

from __future__ import annotations

import numpy as np

from perturb_mpm.engines.cpu.compile import fma, kernel
from perturb_mpm.engines.cpu.row_kernels import exp_negative

ROWS = 128
BLOCK = 64


@kernel
def all_pairs(queries, sources, before, values, out, start, stop):
    """Write Σ_j exp(−|q_i − s_j|²/2)·before_j·values_j for queries (d, M), sources (d, N): (M, C).

    The queries of a tile are the vector lanes, so that one channel is as quick as many. A block of
    sources stays in the cache; its float32 sums are added up in float64, so that a million terms
    lose nothing.
    """
    d, n = sources.shape
    width = values.shape[1]
    lanes = min(ROWS, stop - start)
    here = np.empty((d, lanes), np.float32)
    gaussian = np.zeros((BLOCK, lanes), np.float32)
    flat = gaussian.reshape(-1)
    four = np.zeros((BLOCK, width), np.float32)
    block = np.empty((width, lanes), np.float32)
    total = np.empty((width, lanes), np.float64)
    for tile in range(start, stop, lanes):
        for k in range(d):
            for r in range(lanes):
                here[k, r] = queries[k, min(tile + r, stop - 1)]
        total[:] = 0
        for first in range(0, n, BLOCK):
            size = min(BLOCK, n - first)
            four[:] = 0  # a last, shorter block is filled up with nothing
            for j in range(size):
                weight = before[first + j]
                for k in range(width):
                    four[j, k] = values[first + j, k] * weight
                for r in range(lanes):
                    gaussian[j, r] = 0
                for k in range(d):
                    there = sources[k, first + j]
                    for r in range(lanes):
                        away = here[k, r] - there
                        gaussian[j, r] = fma(away, away, gaussian[j, r])
            for k in range(flat.size):
                flat[k] = exp_negative(np.float32(-0.5) * flat[k])
            block[:] = 0
            for j in range(0, BLOCK, 4):
                for k in range(width):
                    v0, v1, v2, v3 = four[j, k], four[j + 1, k], four[j + 2, k], four[j + 3, k]
                    for r in range(lanes):
                        near = fma(gaussian[j + 1, r], v1, fma(gaussian[j, r], v0, block[k, r]))
                        block[k, r] = fma(gaussian[j + 3, r], v3, fma(gaussian[j + 2, r], v2, near))
            for k in range(width):
                for r in range(lanes):
                    total[k, r] += block[k, r]
        for r in range(min(lanes, stop - tile)):
            for k in range(width):
                out[tile + r, k] = total[k, r]
