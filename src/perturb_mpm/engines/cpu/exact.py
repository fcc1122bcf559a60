"""The exact filter: every pair of voxels, in tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.engines.cpu.exact_kernels import all_pairs
from perturb_mpm.engines.cpu.filters import normalizers
from perturb_mpm.engines.cpu.threads import Threads
from perturb_mpm.kernels import Normalization


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
    """K̂ over all pairs; see ``filters.Filter`` for what its parts mean."""

    def __init__(
        self, features: NDArray[np.float64], normalization: Normalization, threads: Threads
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

    def forget_slice(self) -> None:
        """Give the slice's memory back, once it stands in a stack of slices."""
        self.columns = np.empty((0, 0), dtype=np.int32)
        self.coefficients = np.empty((0, 0), dtype=np.float32)

    def apply(
        self, values: NDArray[Any], target: NDArray[Any], spare: NDArray[Any], threads: Threads
    ) -> None:
        """Write K·(before·values), (N, C), to ``target``."""
        arguments = (self._features, self._features, self._before, values, target)
        threads.run(all_pairs, self.rows, *arguments)

    def _row_sums(self, threads: Threads) -> NDArray[np.float64]:
        """Return K·before, (N,)."""
        ones = np.ones((self.rows, 1), dtype=np.float32)
        out = np.empty((self.rows, 1))
        self.apply(ones, out, out, threads)
        return out[:, 0]
