"""Mean field of a labelled volume as a function of what is learned, and its gradient.

What is learned of a CRF, as changes against its start:

    U' = U / T − bias            temperature T, one bias in nats for each label but label 0
    μ_m' = w_m · (C_m + Δ_m)     weight w_m and a symmetric change Δ_m of the compatibility, (L, L)
    σ_g' = σ_g · s_g             one factor for each group of a kernel's features

The vector θ that an optimiser moves holds log T, the biases, log (w_m / start), Δ_m and log s_g:
the CRF itself is θ = 0.

Forwards, with Q, U, E all (N, L), K̂_m (N, N) and F_m = K̂_m Q − diag(K̂_m) Q, an iteration is
E = U' + Σ_m F_m μ_m and Q = softmax(−E). Backwards, given G = dv/dQ, dv/dE is
b = −Q∘(G − Σ_l Q∘G); then b is added to dv/dU', bᵀF_m to dv/dμ_m, and a = b μ_m goes on to the
iteration before as K̂_mᵀ a − diag(K̂_m) a.

With centring c the kernels act on Q − c·Q⁰, where Q⁰ = softmax(−U') is the start: F_m is that of
the difference, and −c times what goes on to the iteration before goes to the start too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perturb_mpm import checks
from perturb_mpm.engines import morton_order, softmax
from perturb_mpm.learning.kernel_filters import (
    NORMALIZER_SHARES,
    FilterMaker,
    KernelFilter,
    bandwidth_form,
)
from perturb_mpm.model import BilateralKernel, DenseCRF, FeatureKernel, Normalization, PairwiseTerm

Kind = Literal["temperature", "bias", "weight", "compatibility", "bandwidth"]
Phase = Literal["unary", "weights", "compatibility", "bandwidths"]

# What each phase moves. A weight and its compatibility are never moved together: one would do.
PHASES: dict[Phase, tuple[Kind, ...]] = {
    "unary": ("temperature", "bias"),
    "weights": ("temperature", "bias", "weight"),
    "compatibility": ("temperature", "bias", "compatibility"),
    "bandwidths": ("temperature", "bias", "weight", "bandwidth"),
}

# How far each kind may go from its start; logarithms but for bias (nats) and compatibility.
REACH: dict[Kind, float] = {
    "temperature": 2.0,
    "bias": 6.0,
    "weight": 4.0,
    "compatibility": 4.0,
    "bandwidth": 1.5,
}

FeatureGroups = dict[str, slice]
"""The columns of a kernel's features that share a bandwidth, by name."""


@dataclass(frozen=True, eq=False)
class KernelChange:
    """What is learned of one kernel."""

    weight_factor: float
    compatibility_change: NDArray[np.float64]  # (L, L), symmetric
    bandwidth_factors: dict[str, float]  # by group


@dataclass(frozen=True, eq=False)
class Parameters:
    """What is learned of a CRF: temperature, bias (L,) in nats, and a change of each kernel."""

    temperature: float
    bias: NDArray[np.float64]  # (L,), 0 for label 0
    kernels: tuple[KernelChange, ...]


@dataclass(eq=False)
class Gradient:
    """Derivatives by what ``Parameters`` holds: logarithms where θ has them."""

    log_temperature: float
    bias: NDArray[np.float64]  # (L,)
    log_weights: NDArray[np.float64]  # (M,)
    compatibility: NDArray[np.float64]  # (M, L, L), not symmetric: by each entry
    log_bandwidths: list[dict[str, float]] = field(default_factory=list)


@dataclass(frozen=True)
class ParameterLayout:
    """Where each parameter of a CRF with L labels and these kernels stands in θ."""

    n_labels: int
    kernels: tuple[FeatureGroups, ...]

    @cached_property
    def kinds(self) -> list[Kind]:
        """The kind of each entry of θ."""
        pairs = self.n_labels * (self.n_labels + 1) // 2
        kinds: list[Kind] = ["temperature", *["bias"] * (self.n_labels - 1)]  # type: ignore[list-item]
        for groups in self.kernels:
            kinds += ["weight", *["compatibility"] * pairs, *["bandwidth"] * len(groups)]  # type: ignore[list-item]
        return kinds

    @property
    def size(self) -> int:
        """The length of θ."""
        return len(self.kinds)

    def free_entries(self, phase: Phase) -> NDArray[np.bool_]:
        """Return which entries a phase moves, (size,)."""
        return np.array([kind in PHASES[phase] for kind in self.kinds])

    def bounds(self) -> list[tuple[float, float]]:
        """Return how far each entry may go."""
        return [(-REACH[kind], REACH[kind]) for kind in self.kinds]

    def unpack(self, theta: NDArray[np.float64]) -> Parameters:
        """Return the parameters of a vector."""
        entries = iter(theta.tolist())
        temperature = float(np.exp(next(entries)))
        bias = np.array([0.0, *(next(entries) for _ in range(self.n_labels - 1))])
        rows, columns = np.triu_indices(self.n_labels)
        changes = []
        for groups in self.kernels:
            weight = float(np.exp(next(entries)))
            change = np.zeros((self.n_labels, self.n_labels))
            change[rows, columns] = [next(entries) for _ in rows]
            change[columns, rows] = change[rows, columns]
            factors = {name: float(np.exp(next(entries))) for name in groups}
            changes.append(KernelChange(weight, change, factors))
        return Parameters(temperature, bias, tuple(changes))

    def pack(self, gradient: Gradient) -> NDArray[np.float64]:
        """Return a gradient as a vector, (size,)."""
        rows, columns = np.triu_indices(self.n_labels)
        entries = [gradient.log_temperature, *gradient.bias[1:].tolist()]
        for m, groups in enumerate(self.kernels):
            by_entry = gradient.compatibility[m]
            both = by_entry + by_entry.T - np.diag(np.diag(by_entry))
            entries.append(float(gradient.log_weights[m]))
            entries += both[rows, columns].tolist()
            entries += [gradient.log_bandwidths[m][name] for name in groups]
        return np.array(entries)


@dataclass(eq=False)
class LearnedKernel:
    """One kernel of a volume: its features at the start, and its filter at the present bandwidths.

    The filter is made again only when the bandwidths change.
    """

    features: NDArray[np.float64]  # (N, d), in units of the start's sigma
    groups: FeatureGroups
    normalization: Normalization
    compatibility: NDArray[np.float64]  # (L, L), with the start's weight
    weight: float
    scale: float
    _made: tuple[dict[str, float], KernelFilter] | None = field(default=None, repr=False)

    def make_filter(self, factors: dict[str, float], maker: FilterMaker) -> KernelFilter:
        """Return the filter with every group's sigma multiplied by its factor."""
        if self._made is None or self._made[0] != factors:
            self._made = None  # frees the old one first
            made = maker.make(self.scaled_features(factors), self.normalization, self.scale)
            self._made = (dict(factors), made)
        return self._made[1]

    def scaled_features(self, factors: dict[str, float]) -> NDArray[np.float64]:
        """Return the features in units of the present sigma, (N, d)."""
        scaled = self.features.copy()
        for name, columns in self.groups.items():
            scaled[:, columns] /= factors[name]
        return scaled

    def matrix(self, change: KernelChange) -> NDArray[np.float64]:
        """Return μ of the kernel, (L, L)."""
        start = self.compatibility + self.weight * change.compatibility_change
        return change.weight_factor * start


@dataclass(eq=False)
class Problem:
    """The voxels of one volume, in an order that keeps neighbours close."""

    energies: NDArray[Any]  # (N, L)
    truth: NDArray[np.int64]  # (N,)
    kernels: list[LearnedKernel]
    maker: FilterMaker
    self_term: bool
    centring: float = 0.0

    @property
    def n_labels(self) -> int:
        """L, the number of labels."""
        return int(self.energies.shape[1])

    @property
    def layout(self) -> ParameterLayout:
        """Where its parameters stand in a vector."""
        return ParameterLayout(self.n_labels, tuple(kernel.groups for kernel in self.kernels))


def make_problem(
    crf: DenseCRF, truth: ArrayLike, maker: FilterMaker, crop_mm: float | None
) -> Problem:
    """Return the problem of a CRF and its true labels (*spatial).

    With ``crop_mm`` only the voxels within so many mm of foreground are used, be it true or the
    most probable by the unaries; of a volume without any the whole is.
    """
    if crf.centring > 0 and crf.prior is not crf.energies:
        raise ValueError("crf must be centred on its own energies to be learned, got others")
    x = check_truth(crf, truth)  # (N,)
    order = morton_order(crf.grid)
    if crop_mm is not None:
        order = order[_near_foreground(crf, x, crop_mm)[order]]
    dtype = np.float64 if maker.accuracy is None else np.float32
    energies: NDArray[np.floating] = np.ascontiguousarray(crf.energies.T[order], dtype=dtype)
    marginals = softmax(-energies)
    kernels = [_start_kernel(term, order, maker, marginals) for term in crf.terms]
    return Problem(energies, x[order], kernels, maker, crf.self_term, crf.centring)


def check_truth(crf: DenseCRF, truth: ArrayLike) -> NDArray[np.int64]:
    """Return the true labels inside the mask, (N,), after checking them."""
    whole = checks.whole(truth, "truths")
    if whole.shape != crf.shape:
        raise ValueError(f"truths must have their image's shape {crf.shape}, got {whole.shape}")
    inside: NDArray[np.int64] = crf.grid.gather(whole)
    checks.in_range(inside, "truths", crf.n_labels)
    return inside


def _feature_groups(term: PairwiseTerm) -> FeatureGroups:
    """Return the groups of features that share a bandwidth."""
    if isinstance(term.kernel, BilateralKernel):
        ndim = term.grid.ndim
        return {"space": slice(0, ndim), "intensity": slice(ndim, None)}
    return {"features" if isinstance(term.kernel, FeatureKernel) else "space": slice(None)}


def shared_layout(problems: Sequence[Problem]) -> ParameterLayout:
    """Return the layout that all problems share."""
    layout = problems[0].layout
    for number, problem in enumerate(problems):
        if problem.layout != layout:
            raise ValueError(
                "crfs must all have the same labels and kinds of kernels, "
                f"got others for number {number} than for number 0"
            )
    return layout


def _start_kernel(
    term: PairwiseTerm, order: NDArray[np.int64], maker: FilterMaker, marginals: NDArray[Any]
) -> LearnedKernel:
    features = term.features()[order]
    return LearnedKernel(
        features=features,
        groups=_feature_groups(term),
        normalization=term.normalization,
        compatibility=np.array(term.compatibility),
        weight=term.kernel.weight,
        scale=maker.scale(features, marginals),
    )


def _near_foreground(crf: DenseCRF, x: NDArray[np.int64], margin_mm: float) -> NDArray[np.bool_]:
    """Return which voxels inside the mask are near true or likely foreground, (N,)."""
    from scipy.ndimage import distance_transform_edt

    foreground = (x != 0) | (crf.energies.argmin(axis=0) != 0)
    if not foreground.any():
        return np.ones(len(x), dtype=bool)
    outside = crf.grid.scatter(~foreground, outside=True)  # (*spatial)
    away = crf.grid.gather(distance_transform_edt(outside, sampling=crf.grid.spacing))
    return away <= margin_mm


@dataclass(eq=False)
class UnrolledMeanField:
    """Every iteration's marginals and what the kernels made of them."""

    parameters: Parameters
    marginals: list[NDArray[Any]]  # T + 1 of (N, L)
    filtered: list[list[NDArray[Any]]]  # T of M of (N, L): F_m
    filters: list[KernelFilter]
    matrices: list[NDArray[Any]]  # M of (L, L)


def run_forwards(problem: Problem, parameters: Parameters, iterations: int) -> UnrolledMeanField:
    """Run so many mean-field iterations from softmax(−U')."""
    dtype = problem.energies.dtype
    filters = [
        kernel.make_filter(change.bandwidth_factors, problem.maker)
        for kernel, change in zip(problem.kernels, parameters.kernels, strict=True)
    ]
    matrices = [
        kernel.matrix(change).astype(dtype)
        for kernel, change in zip(problem.kernels, parameters.kernels, strict=True)
    ]
    unary: NDArray[Any] = problem.energies / dtype.type(parameters.temperature)  # U', (N, L)
    unary -= parameters.bias.astype(dtype)
    unrolled = UnrolledMeanField(parameters, [softmax(-unary)], [], filters, matrices)
    for _ in range(iterations):
        q = unrolled.marginals[-1]
        filtered = [_remove_self_term(problem, f, f.apply(q), q) for f in filters]
        unrolled.filtered.append(filtered)
        energies = unary.copy()
        for m, matrix in enumerate(matrices):
            energies += _deviation(problem, filtered[m], unrolled.filtered[0][m]) @ matrix
        unrolled.marginals.append(softmax(-energies))
    return unrolled


def run_backwards(
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
            back = kernel.apply_transpose(a)
            if bandwidths:
                slopes[m].add(a, back, before, filtered)
            by_marginals += _remove_self_term(problem, kernel, back, a)
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

    def __init__(self, problem: Problem, m: int, unrolled: UnrolledMeanField) -> None:
        kernel = problem.kernels[m]
        factors = unrolled.parameters.kernels[m].bandwidth_factors
        self._filter = unrolled.filters[m]
        self._self_term = problem.self_term
        self._shares = NORMALIZER_SHARES[kernel.normalization]
        dtype = unrolled.marginals[0].dtype
        scaled = kernel.scaled_features(factors).astype(dtype)
        self._groups = {name: scaled[:, columns] for name, columns in kernel.groups.items()}
        self._slopes = dict.fromkeys(self._groups, 0.0)
        self._by_sums = np.zeros(len(scaled))

    def add(
        self, a: NDArray[Any], back: NDArray[Any], q: NDArray[Any], filtered: NDArray[Any]
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
    return -q * (by_marginals - np.sum(q * by_marginals, axis=1, keepdims=True))


def _deviation(problem: Problem, values: NDArray[Any], start: NDArray[Any]) -> NDArray[Any]:
    """Return what kernels act on: values (N, L) less ``centring`` times those of the start."""
    if problem.centring == 0:
        return values
    return values - values.dtype.type(problem.centring) * start


def _remove_self_term(
    problem: Problem, kernel: KernelFilter, filtered: NDArray[Any], values: NDArray[Any]
) -> NDArray[Any]:
    """Take j = i out of filtered (N, L) values, unless the CRF keeps its self term."""
    if not problem.self_term:
        filtered -= (kernel.diagonal[:, np.newaxis] * values).astype(filtered.dtype)
    return filtered
