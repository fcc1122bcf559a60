"""The mathematics of the paper's synthetic validation: binary grids of 6, 9 and 12 voxels.

With two labels and Potts all that counts at a voxel is d = E(1) − E(0), and all it sends to the
others is t = Q(0) − Q(1) = tanh(d/2): one update of mean field is d ← ΔU + K·t. That is what is
done here, in float64, for many perturbed problems at once, so that a million samples take seconds.
The paper leaves the weight, the width, the self term and the iterations open.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.crf import DenseCRF
from perturb_mpm.distances import log_probability_error, total_variation
from perturb_mpm.engines.reference import kernel_matrix
from perturb_mpm.kernels import SpatialKernel
from perturb_mpm.noise import gumbel

SHAPES = {6: (2, 3), 9: (3, 3), 12: (3, 4)}
ITERATIONS = 10

# The noise and the sharpness of the conditional estimator that are matched: τ² + 1/β² = 1.
NOISE_SCALE = 0.5
SHARPNESS = 1 / math.sqrt(1 - NOISE_SCALE**2)

# Samples at a time. With 2¹⁴ a threaded matrix product was six times slower on a busy machine: the
# matrices are too small to share out.
_BATCH = 2**10

# Batches of noise that are kept: a million samples, 100 MB at most. The settings and estimators
# that follow each other share their noise, and drawing it is half of the work.
_KEPT = 2**10

# As float64 holds no less in 1 − p, and a logarithm is taken of it.
_LEAST = 1e-12


@dataclass(frozen=True)
class Setting:
    """What the paper leaves open: K_ij = weight · exp(−|p_i − p_j|² / 2 sigma²), j = i or not."""

    weight: float
    sigma: float
    self_term: bool


def problem(voxels: int, draw: int, setting: Setting) -> DenseCRF:
    """Return one validation problem: p(x_i = 0) uniform on [0, 1), one of 20 draws."""
    p = np.random.default_rng(draw).random(voxels).reshape(SHAPES[voxels])
    kernel = SpatialKernel(sigma=setting.sigma, weight=setting.weight, normalization="none")
    unary = -np.log([p, 1 - p])
    return DenseCRF(unary=unary, kernels=[kernel], self_term=setting.self_term)


def mean_field_marginals(crf: DenseCRF) -> NDArray[np.float64]:
    """Return Q_i(1) after the parallel updates, (N,)."""
    kernel, difference = _binary(crf)
    d = _last_update(kernel, difference[np.newaxis], sharpness=1.0)[0]
    return _logistic(-d)


def votes(
    crf: DenseCRF, sizes: Sequence[int], seed: int, *, printed_sign: bool = False
) -> NDArray[np.int64]:
    """Return how many of the first S samples vote for label 1, for each S in ``sizes``: (C, N).

    ``sizes`` rise. The samples are those of ``pm.sample`` with the same seed, but for rounding.
    ``printed_sign`` adds the noise to the energies, as the paper prints it.
    """
    sign = -1.0 if printed_sign else 1.0
    kernel, difference = _binary(crf)
    counts = []
    total = np.zeros(crf.grid.voxels, dtype=np.int64)
    for batch, is_size in _batches(sizes):
        d = _last_update(kernel, difference - sign * _noise(crf, batch, seed), sharpness=1.0)
        total += (d < 0).sum(axis=0)
        if is_size:
            counts.append(total.copy())
    return np.stack(counts)


def conditional_marginals(crf: DenseCRF, sizes: Sequence[int], seed: int) -> NDArray[np.float64]:
    """Return the conditional estimate of P(x_i = 1) from the first S samples: (C, N)."""
    kernel, difference = _binary(crf)
    estimates = []
    total = np.zeros(crf.grid.voxels)
    for batch, is_size in _batches(sizes):
        noise = NOISE_SCALE * _noise(crf, batch, seed)  # (B, N)
        d = _last_update(kernel, difference - noise, SHARPNESS)
        total += _logistic(-(d + noise)).sum(axis=0)
        if is_size:
            estimates.append(total / batch.stop)
    return np.stack(estimates)


def smoothed(counts: NDArray[np.int64], samples: int) -> NDArray[np.float64]:
    """Return (k + ½) / (S + 1), which has a logarithm."""
    return (counts + 0.5) / (samples + 1)


def errors(estimate: NDArray[np.float64], truth: NDArray[np.float64]) -> tuple[float, float]:
    """Return the total variation and the mean absolute error of log-probabilities.

    Both are marginals of label 1, (N,), and taken to be at least 1e-12 and at most 1 − 1e-12.
    """
    inside = [np.clip(p, _LEAST, 1 - _LEAST) for p in (estimate, truth)]
    one, other = (np.stack([1 - p, p]) for p in inside)
    return total_variation(one, other), log_probability_error(one, other)


def _binary(crf: DenseCRF) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return K, (N, N), with or without its diagonal, and U(1) − U(0), (N,)."""
    kernel = np.zeros((crf.grid.voxels, crf.grid.voxels))
    for term in crf.terms:
        kernel += float(term.compatibility[0, 1]) * kernel_matrix(term)
    if not crf.self_term:
        np.fill_diagonal(kernel, 0.0)
    zero, one = crf.energies.astype(np.float64)
    return kernel, one - zero


def _last_update(
    kernel: NDArray[np.float64], difference: NDArray[np.float64], sharpness: float
) -> NDArray[np.float64]:
    """Return d = E(1) − E(0) as the last update finds it, (B, N), from U(1) − U(0), (B, N)."""
    d = difference
    for _ in range(ITERATIONS):
        d = difference + np.tanh(sharpness / 2 * d) @ kernel
    return d


def _noise(crf: DenseCRF, samples: range, seed: int) -> NDArray[np.float64]:
    """Return γ(1) − γ(0), (B, N)."""
    return _kept_noise(seed, samples, tuple(crf.grid.index.tolist()))


@lru_cache(maxsize=_KEPT)
def _kept_noise(seed: int, samples: range, voxels: tuple[int, ...]) -> NDArray[np.float64]:
    noise = gumbel(seed, samples, voxels, 2).astype(np.float64)  # (B, 2, N)
    difference: NDArray[np.float64] = noise[:, 1] - noise[:, 0]
    difference.flags.writeable = False
    return difference


def _batches(sizes: Sequence[int]) -> Iterator[tuple[range, bool]]:
    """Cut the samples 0 … max into batches that end at every size, and say which do."""
    start = 0
    for size in sizes:
        while start < size:
            stop = min(start + _BATCH, size)
            yield range(start, stop), stop == size
            start = stop


def _logistic(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return 0.5 + 0.5 * np.tanh(x / 2)
