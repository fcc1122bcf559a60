"""A kernel as learning needs it: K̂·X and K̂ᵀ·X for any signed X, and what its bandwidths change.

K̂ = diag(after) K diag(before) is the normalised kernel of an engine. ``DenseFilter`` keeps all
pairs in float64, for tiny problems; ``TwoWayLattice`` runs the CPU engine's own lattice in float32,
forwards and, stage by stage transposed, backwards.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.engines import BLURS, Accuracy, published_gain
from perturb_mpm.model import Normalization

if TYPE_CHECKING:
    from perturb_mpm.engines.cpu import Taps, Threads


# The share of a row sum's derivative that each side of K̂ takes: (after, before).
NORMALIZER_SHARES: dict[Normalization, tuple[float, float]] = {
    "symmetric": (0.5, 0.5),
    "before": (0.0, 1.0),
    "after": (1.0, 0.0),
    "none": (0.0, 0.0),
}


class KernelFilter(Protocol):
    """The normalised kernel of one problem; N voxels in the problem's own order."""

    before: NDArray[np.float64]  # (N,)
    after: NDArray[np.float64]  # (N,)
    row_sums: NDArray[np.float64]  # (N,): K·1, before any normalisation
    diagonal: NDArray[Any]  # (N,): of K̂

    def apply(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return K̂·values, (N, C)."""

    def apply_transpose(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return K̂ᵀ·values, (N, C)."""


class DenseFilter:
    """All pairs in float64, one (N, N) matrix."""

    def __init__(self, features: NDArray[np.float64], normalization: Normalization) -> None:
        squares = np.zeros((len(features), len(features)))
        for f in features.T:  # (N,)
            squares += (f[:, np.newaxis] - f) ** 2
        kernel = np.exp(-squares / 2)  # (N, N)
        self.row_sums = kernel.sum(axis=1)
        self.before, self.after = _normalizers(self.row_sums, normalization)
        self._matrix = self.after[:, np.newaxis] * kernel * self.before
        self.diagonal = np.diag(self._matrix).copy()

    def apply(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """Return K̂·values, (N, C)."""
        return self._matrix @ values

    def apply_transpose(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """Return K̂ᵀ·values, (N, C)."""
        return self._matrix.T @ values


class TwoWayLattice:
    """The CPU engine's lattice. ``scale`` is its calibration, see ``FilterMaker.scale``."""

    def __init__(
        self,
        features: NDArray[np.float32],
        normalization: Normalization,
        accuracy: Accuracy,
        scale: float,
        threads: Threads,
    ) -> None:
        from perturb_mpm.engines.cpu import (
            Taps,
            build,
            calibrated_gain,
            factorize,
            row_sums,
            transpose,
        )

        self._threads = threads
        lattice = build(features, replace(BLURS[accuracy], scale=scale), threads)
        gain = published_gain(features.shape[1])
        if accuracy != "plain" and normalization == "none":
            gain = calibrated_gain(features, lattice, threads)
        self.row_sums = gain * row_sums(lattice, threads)
        self.before, self.after = _normalizers(self.row_sums, normalization)
        chain = factorize(lattice, normalization, gain, threads)
        self.diagonal = chain.diagonal
        self._forwards = [*chain.stages, Taps.of_table(chain.columns, chain.coefficients)]
        sources = [len(features), *(stage.rows for stage in self._forwards)]
        pairs = zip(self._forwards, sources, strict=False)
        self._backwards = [transpose(*pair, threads) for pair in pairs][::-1]

    def apply(self, values: NDArray[Any]) -> NDArray[np.float32]:
        """Return K̂·values, (N, C)."""
        return self._run(self._forwards, values)

    def apply_transpose(self, values: NDArray[Any]) -> NDArray[np.float32]:
        """Return K̂ᵀ·values, (N, C)."""
        return self._run(self._backwards, values)

    def _run(self, stages: list[Taps], values: NDArray[Any]) -> NDArray[np.float32]:
        from perturb_mpm.engines.cpu import combine

        source = np.ascontiguousarray(values, dtype=np.float32)
        for stage in stages:
            target = np.empty((stage.rows, source.shape[1]), dtype=np.float32)
            self._threads.run(combine, stage.rows, stage, source, target, np.float32(0))
            source = target
        return source


@dataclass(frozen=True)
class FilterMaker:
    """How filters are made: all pairs where ``accuracy`` is None, else the CPU engine's lattice."""

    accuracy: Accuracy | None
    threads: Threads | None

    def scale(self, features: NDArray[np.float64], marginals: NDArray[Any]) -> float:
        """Return the calibration of a kernel for (N, L) marginals; 1 where there is none.

        It is chosen once and then fixed: chosen again at every bandwidth it would make the
        objective jump.
        """
        if self.accuracy is None or self.accuracy == "plain" or self.threads is None:
            return 1.0
        from perturb_mpm.engines.cpu import calibrated_scale

        narrow = np.ascontiguousarray(features, dtype=np.float32)
        values = np.ascontiguousarray(marginals, dtype=np.float32)
        return calibrated_scale(narrow, values, BLURS[self.accuracy], self.threads).scale

    def make(
        self, features: NDArray[np.float64], normalization: Normalization, scale: float
    ) -> KernelFilter:
        """Return the filter of (N, d) features in units of sigma."""
        if self.accuracy is None or self.threads is None:
            return DenseFilter(features, normalization)
        narrow = np.ascontiguousarray(features, dtype=np.float32)
        return TwoWayLattice(narrow, normalization, self.accuracy, scale, self.threads)


def bandwidth_form(
    kernel: KernelFilter, left: NDArray[Any], right: NDArray[Any], features: NDArray[Any]
) -> float:
    """Return Σ_d Σ_ij left_i K̂_ij (f_i − f_j)_d² right_j, summed over columns.

    It is the derivative of Σ leftᵀ K̂ right by the logarithm of the features' common sigma, with
    fixed normalisers: ``left`` and ``right`` are (N, C), ``features`` (N, d) in units of sigma.
    """
    # Around their mean squares are smallest, and float32 loses least in their differences.
    features = features - features.mean(axis=0)
    squares = np.sum(features**2, axis=1, keepdims=True)  # (N, 1)
    total = np.sum(left * squares * kernel.apply(right), dtype=np.float64)
    total += np.sum(left * kernel.apply(right * squares), dtype=np.float64)
    for f in features.T:  # (N,)
        column = f[:, np.newaxis]
        total -= 2.0 * np.sum(left * column * kernel.apply(right * column), dtype=np.float64)
    return float(total)


def _normalizers(
    row_sums: NDArray[np.float64], normalization: Normalization
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return (before, after), both (N,)."""
    after, before = NORMALIZER_SHARES[normalization]
    return row_sums**-before, row_sums**-after
