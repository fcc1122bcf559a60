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
        n = len(features)
        # float32 resolves differences best around the origin
        centred = features - features.mean(axis=0)
        self._features = np.ascontiguousarray(centred.T, dtype=np.float32)  # (d, N)
        self._before = np.ones(n, dtype=np.float32)
        sums = self._filter(np.ones((n, 1), dtype=np.float32), threads)[:, 0]
        before, after = normalizers(sums.astype(np.float64), normalization)
        self._before = before.astype(np.float32)
        mass = sums
        if normalization in ("symmetric", "before"):
            mass = self._filter(np.ones((n, 1), dtype=np.float32), threads)[:, 0]
        self.rows = n
        self.columns = np.arange(n, dtype=np.int32)[:, np.newaxis]
        self.coefficients = after.astype(np.float32)[:, np.newaxis]
        self.total = (after * mass).astype(np.float32)
        self.diagonal = (before * after).astype(np.float32)

    def forget_slice(self) -> None:
        """Give the slice's memory back, once it stands in a stack of slices."""
        self.columns = np.empty((0, 0), dtype=np.int32)
        self.coefficients = np.empty((0, 0), dtype=np.float32)

    def apply(
        self,
        values: NDArray[Any],
        target: NDArray[Any],
        spare: NDArray[Any],
        threads: Threads,
    ) -> None:
        """Write K·(before·values), (N, C), to ``target``."""
        threads.run(
            all_pairs, self.rows, self._features, self._features, self._before, values, target
        )

    def _filter(self, values: NDArray[np.float32], threads: Threads) -> NDArray[np.float32]:
        out = np.empty_like(values)
        self.rows = len(values)
        self.apply(values, out, out, threads)
        return out
