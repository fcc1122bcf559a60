"""The exact filter: (KQ)_i = Σ_j exp(−|f_i − f_j|²/2)·Q_j over all pairs, f (N, d), Q (N, C)."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.engines.cpu.chain import normalizers
from perturb_mpm.engines.cpu.compile import fma, kernel
from perturb_mpm.engines.cpu.row_kernels import exp_negative
from perturb_mpm.engines.cpu.threads import Threads
from perturb_mpm.model import Normalization

ROWS = 128
BLOCK = 64


@kernel
def all_pairs(queries, sources, before, values, out, start, stop):
    """Write Σ_j exp(−|q_i − s_j|²/2)·before_j·values_j for queries (d, M), sources (d, N): (M, C).

    The queries of a tile fill vector instructions, so that one channel is as quick as many. A
    block of sources stays in the cache; its float32 sums are added up in float64, so that a million
    terms lose nothing.
    """
    d, n = sources.shape
    width = values.shape[1]
    width_of_tile = min(ROWS, stop - start)
    here = np.empty((d, width_of_tile), np.float32)
    gaussian = np.zeros((BLOCK, width_of_tile), np.float32)
    flat = gaussian.reshape(-1)
    four = np.zeros((BLOCK, width), np.float32)
    block = np.empty((width, width_of_tile), np.float32)
    total = np.empty((width, width_of_tile), np.float64)
    for tile in range(start, stop, width_of_tile):
        for k in range(d):
            for r in range(width_of_tile):
                here[k, r] = queries[k, min(tile + r, stop - 1)]
        total[:] = 0
        for first in range(0, n, BLOCK):
            size = min(BLOCK, n - first)
            four[:] = 0  # a last, shorter block is filled up with nothing
            for j in range(size):
                weight = before[first + j]
                for k in range(width):
                    four[j, k] = values[first + j, k] * weight
                for r in range(width_of_tile):
                    gaussian[j, r] = 0
                for k in range(d):
                    there = sources[k, first + j]
                    for r in range(width_of_tile):
                        away = here[k, r] - there
                        gaussian[j, r] = fma(away, away, gaussian[j, r])
            for k in range(flat.size):
                flat[k] = exp_negative(np.float32(-0.5) * flat[k])
            block[:] = 0
            for j in range(0, BLOCK, 4):
                for k in range(width):
                    v0, v1, v2, v3 = four[j, k], four[j + 1, k], four[j + 2, k], four[j + 3, k]
                    for r in range(width_of_tile):
                        near = fma(gaussian[j + 1, r], v1, fma(gaussian[j, r], v0, block[k, r]))
                        block[k, r] = fma(gaussian[j + 3, r], v3, fma(gaussian[j + 2, r], v2, near))
            for k in range(width):
                for r in range(width_of_tile):
                    total[k, r] += block[k, r]
        for r in range(min(width_of_tile, stop - tile)):
            for k in range(width):
                out[tile + r, k] = total[k, r]


def exact_rows(
    features: NDArray[np.float32],
    queries: NDArray[np.int64],
    values: NDArray[np.float32],
    threads: Threads,
) -> NDArray[np.float64]:
    """Return K·values (M, C) at the queried voxels (M,) for features (N, d), values (N, C)."""
    centred = np.ascontiguousarray((features - features.mean(axis=0)).T)  # (d, N)
    out = np.empty((len(queries), values.shape[1]))
    wanted = np.ascontiguousarray(centred[:, queries])
    ones = np.ones(len(features), dtype=np.float32)
    threads.run(all_pairs, len(queries), wanted, centred, ones, values, out)
    return out


class ExactFilter:
    """K̂ over all pairs; see ``chain.Filter`` for what its parts mean."""

    def __init__(
        self,
        features: NDArray[np.float64],
        normalization: Normalization,
        threads: Threads,
    ) -> None:
        self.rows = len(features)
        # float32 resolves differences best around the origin
        centred = features - features.mean(axis=0)
        self._features = np.ascontiguousarray(centred.T, dtype=np.float32)  # (d, N)
        self._before = np.ones(self.rows, dtype=np.float32)
        sums = self._row_sums(threads)
        before, after = normalizers(sums, normalization)
        self._before = before.astype(np.float32)
        if normalization in ("symmetric", "before"):
            sums = self._row_sums(threads)
        self.columns = np.arange(self.rows, dtype=np.int32)[:, np.newaxis]
        self.coefficients = after.astype(np.float32)[:, np.newaxis]
        self.total = (after * sums).astype(np.float32)
        self.diagonal = (before * after).astype(np.float32)

    def restrict(self, voxels: NDArray[np.int64]) -> ExactFilter:
        """Return the same kernel among some of the voxels, with the numbers it has there."""
        part = copy.copy(self)
        part.rows = len(voxels)
        part._features = np.ascontiguousarray(self._features[:, voxels])
        part._before = self._before[voxels]
        return part

    def apply(
        self, values: NDArray[Any], target: NDArray[Any], spare: NDArray[Any], threads: Threads
    ) -> None:
        """Write K·(before·values), (N, C), to ``target``."""
        arguments = (self._features, self._features, self._before, values, target)
        threads.run(all_pairs, self.rows, *arguments)

    def apply_from(
        self,
        voxels: NDArray[np.int64],
        values: NDArray[np.float32],
        target: NDArray[Any],
        threads: Threads,
    ) -> None:
        """Write K·(before·values) at every voxel, (N, C), for values (V, C) at some of them."""
        sources = np.ascontiguousarray(self._features[:, voxels])
        arguments = (self._features, sources, self._before[voxels], values, target)
        threads.run(all_pairs, self.rows, *arguments)

    def _row_sums(self, threads: Threads) -> NDArray[np.float64]:
        """Return K·before, (N,)."""
        ones = np.ones((self.rows, 1), dtype=np.float32)
        out = np.empty((self.rows, 1))
        self.apply(ones, out, out, threads)
        return out[:, 0]
