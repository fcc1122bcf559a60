"""Mean field of one volume forwards, and the derivatives of what is made of it backwards.

With F_m = K̂_m Q − diag(K̂_m) Q, the energies of an iteration are E = U' + Σ_m F_m μ_m and
Q = softmax(−E). Given G = dv/dQ, dv/dE is b = −Q∘(G − Σ_l Q∘G); then b is added to dv/dU', bᵀF_m to
dv/dμ_m, and a = b μ_m goes on to the iteration before as K̂_mᵀ a − diag(K̂_m) a.

With centring c the kernels act on Q − c·Q⁰, where Q⁰ = softmax(−U') is the start: F_m is that of
the difference, and −c times what goes on to the iteration before goes to the start too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.engines import softmax
from perturb_mpm.learning.kernel_filters import NORMALIZER_SHARES, KernelFilter, bandwidth_form
from perturb_mpm.learning.parameters import Gradient, Parameters
from perturb_mpm.learning.problem import Problem


@dataclass(eq=False)
class UnrolledMeanField:
    """Every iteration's marginals and what the kernels made of them."""

    parameters: Parameters
    marginals: list[NDArray[Any]]  # T + 1 of (N, L)
    filtered: list[list[NDArray[Any]]]  # T of M of (N, L): F_m
    filters: list[KernelFilter]
    matrices: list[NDArray[Any]]  # M of (L, L)


def forwards(problem: Problem, parameters: Parameters, iterations: int) -> UnrolledMeanField:
    """Run so many mean-field iterations from softmax(−U')."""
    dtype = problem.energies.dtype
    filters = [
        kernel.at(change.bandwidth_factors, problem.maker)
        for kernel, change in zip(problem.kernels, parameters.kernels, strict=True)
    ]
    matrices = [
        kernel.matrix(parameters, place).astype(dtype)
        for place, kernel in enumerate(problem.kernels)
    ]
    unary = unary_energies(problem, parameters)
    unrolled = UnrolledMeanField(parameters, [softmax(-unary)], [], filters, matrices)
    for _ in range(iterations):
        q = unrolled.marginals[-1]
        filtered = [_coupled(problem, f, f.apply(q), q) for f in filters]
        unrolled.filtered.append(filtered)
        energies = unary.copy()
        for m, matrix in enumerate(matrices):
            energies += _deviation(problem, filtered[m], unrolled.filtered[0][m]) @ matrix
        unrolled.marginals.append(softmax(-energies))
    return unrolled


def unary_energies(problem: Problem, parameters: Parameters) -> NDArray[Any]:
    """Return U' = U / T − bias, (N, L)."""
    scaled: NDArray[Any] = problem.energies / problem.energies.dtype.type(parameters.temperature)
    scaled -= parameters.bias.astype(scaled.dtype)
    return scaled


def backwards(
    problem: Problem,
    unrolled: UnrolledMeanField,
    by_marginals: NDArray[Any],
    *,
    bandwidths: bool = True,
) -> Gradient:
    """Return the derivatives of a value, given those by the last marginals, (N, L).

    Those by bandwidths cost several times what the others do, and are 0 where not asked for.
    """
    by_unary = np.zeros_like(problem.energies)
    by_start = np.zeros_like(problem.energies)  # what centring adds for the start
    by_matrix = np.zeros((len(problem.kernels), problem.n_labels, problem.n_labels))
    slopes = [_BandwidthSlopes(problem, m, unrolled) for m in range(len(problem.kernels))]
    for t in range(len(unrolled.filtered), 0, -1):
        b = _through_softmax(unrolled.marginals[t], by_marginals)
        by_unary += b
        before = _deviation(problem, unrolled.marginals[t - 1], unrolled.marginals[0])
        by_marginals = np.zeros_like(b)
        for m, (kernel, matrix) in enumerate(zip(unrolled.filters, unrolled.matrices, strict=True)):
            filtered = _deviation(problem, unrolled.filtered[t - 1][m], unrolled.filtered[0][m])
            by_matrix[m] += (b.T @ filtered).astype(np.float64)
            a = b @ matrix
            back = kernel.transposed(a)
            if bandwidths:
                slopes[m].add(a, back, before, filtered)
            by_marginals += _coupled(problem, kernel, back, a)
        if problem.centring > 0:
            by_start -= problem.centring * by_marginals
    by_marginals = by_marginals + by_start
    by_unary += _through_softmax(unrolled.marginals[0], by_marginals)

    parameters = unrolled.parameters
    scaled = problem.energies / parameters.temperature
    weights = [kernel.weight for kernel in problem.kernels]
    factors = [change.weight_factor for change in parameters.kernels]
    return Gradient(
        log_temperature=-float(np.sum(by_unary * scaled, dtype=np.float64)),
        bias=-by_unary.sum(axis=0, dtype=np.float64),
        log_weights=np.einsum("mkl,mkl->m", by_matrix, np.array(unrolled.matrices, dtype=float))
        if weights
        else np.zeros(0),
        compatibility=by_matrix * np.multiply(weights, factors).reshape(-1, 1, 1),
        log_bandwidths=[slope.finish() for slope in slopes],
    )


class _BandwidthSlopes:
    """The derivatives by the bandwidths of one kernel, added up over iterations.

    Two things change with a bandwidth: K itself, and its row sums D, which the normalisers and
    the diagonal are made of. What stands before dD is added up over iterations as ``_by_sums``.
    """

    def __init__(self, problem: Problem, place: int, unrolled: UnrolledMeanField) -> None:
        kernel = problem.kernels[place]
        factors = unrolled.parameters.kernels[place].bandwidth_factors
        self._filter = unrolled.filters[place]
        self._self_term = problem.self_term
        self._shares = NORMALIZER_SHARES[kernel.normalization]
        dtype = unrolled.marginals[0].dtype
        scaled = kernel.scaled_features(factors).astype(dtype)
        self._groups = {name: scaled[:, columns] for name, columns in kernel.shape.groups.items()}
        self._slopes = dict.fromkeys(self._groups, 0.0)
        self._by_sums = np.zeros(len(scaled))

    def add(
        self,
        a: NDArray[Any],
        back: NDArray[Any],
        q: NDArray[Any],
        filtered: NDArray[Any],
    ) -> None:
        """Add Σ aᵀ dK̂ q, with K̂ᵀa, F = K̂q − diag(K̂)q at hand; all (N, L)."""
        for name, features in self._groups.items():
            self._slopes[name] += bandwidth_form(self._filter, a, q, features)
        after, before = self._shares
        if after + before == 0:
            return
        own = np.sum(a * q, axis=1, dtype=np.float64) * self._filter.diagonal
        forward = np.sum(a * filtered, axis=1, dtype=np.float64)  # (N,)
        if not self._self_term:
            forward += own
        self._by_sums -= after * forward + before * np.sum(q * back, axis=1, dtype=np.float64)
        if not self._self_term:
            self._by_sums += own

    def finish(self) -> dict[str, float]:
        """Return the slope of each group, with what the row sums add."""
        if not self._by_sums.any():
            return self._slopes
        kernel = self._filter
        dtype = next(iter(self._groups.values())).dtype
        left = (self._by_sums / (kernel.row_sums * kernel.after))[:, np.newaxis]
        right = (1.0 / kernel.before)[:, np.newaxis]
        return {
            name: slope
            + bandwidth_form(kernel, left.astype(dtype), right.astype(dtype), self._groups[name])
            for name, slope in self._slopes.items()
        }


def _through_softmax(q: NDArray[Any], by_marginals: NDArray[Any]) -> NDArray[Any]:
    """Return dv/dE of Q = softmax(−E) from dv/dQ, all (N, L)."""
    slope: NDArray[Any] = -q * (by_marginals - np.sum(q * by_marginals, axis=1, keepdims=True))
    return slope


def _deviation(problem: Problem, values: NDArray[Any], start: NDArray[Any]) -> NDArray[Any]:
    """Return what kernels act on: values (N, L) less ``centring`` times those of the start."""
    if problem.centring == 0:
        return values
    deviation: NDArray[Any] = values - values.dtype.type(problem.centring) * start
    return deviation


def _coupled(
    problem: Problem, kernel: KernelFilter, filtered: NDArray[Any], values: NDArray[Any]
) -> NDArray[Any]:
    """Take j = i out of filtered (N, L) values, unless the CRF keeps its self term."""
    if not problem.self_term:
        filtered -= (kernel.diagonal[:, np.newaxis] * values).astype(filtered.dtype)
    return filtered
