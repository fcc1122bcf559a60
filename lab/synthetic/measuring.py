"""The measurements of the synthetic validation: tiny grids, one voxel, other samplers beside."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lab.comparators import (
    Enumeration,
    exact,
    full_perturbation,
    gibbs,
    independent,
    log_probability_error,
    perturb_and_map,
    smoothed_frequencies,
    total_variation,
    unary_only,
)
from perturb_mpm.engines import kernel_matrix
from perturb_mpm.inference import ConvergenceWarning
from perturb_mpm.model import DenseCRF, SpatialKernel
from perturb_mpm.noise import gumbel
from perturb_mpm.posterior import Posterior

SHAPES = {6: (2, 3), 9: (3, 3), 12: (3, 4)}
ITERATIONS = 10

# The noise and the sharpness of the conditional estimator that are matched: τ² + 1/β² = 1.
NOISE_SCALE = 0.5

SHARPNESS = 1 / math.sqrt(1 - NOISE_SCALE**2)

_BATCH = 1000  # samples at a time

# How often a number of samples is drawn anew, at most: its error is an expectation over the noise.
MOST_RUNS = 400

# Batches of noise that are kept: a million samples, 100 MB at most. The settings and estimators
# that follow each other share their noise, and drawing it is half of the work.
_KEPT = 2**10

# As float64 holds no less in 1 − p, and a logarithm is taken of it.
_LEAST = 1e-12

# What the noise is multiplied by before it is taken off the energies. The last makes its variance
# 1, which the paper says it is; that of −log(−log u) is π²/6.
SCALES = {
    "noise subtracted": 1.0,
    "noise added, as printed": -1.0,
    "noise of unit variance": math.sqrt(6) / math.pi,
}

Comparator = Callable[[DenseCRF, range, int], Posterior]

OF_THE_MODEL: dict[str, Comparator] = {
    "Gibbs": gibbs,
    "order-1 Perturb-and-MAP": perturb_and_map,
    "full perturbation": full_perturbation,
    "exact samples": exact,
    "unary only": unary_only,
}


class ErrorRow(NamedTuple):
    """The errors of one estimate of the marginals of one problem."""

    experiment: str
    """"curves", "comparators", "map" or "single voxel"."""
    voxels: int
    labels: int
    weight: float
    sigma_voxels: float | None
    self_term: bool
    estimator: str
    samples: int | None
    """None for what is not sampled."""
    draw: int
    total_variation: float
    log_probability_error_nats: float
    runs: int = 1
    """How many independent runs of so many samples the two errors are means over."""
    total_variation_run_error: float = math.nan
    """The standard error of that mean, NaN of one run."""
    log_probability_error_nats_run_error: float = math.nan


@dataclass(frozen=True)
class ProblemErrors:
    """Makes the rows of one binary problem, whose exact marginals of label 1 are known."""

    experiment: str
    setting: KernelSetting
    draw: int
    truth: NDArray[np.float64]  # (N,)

    def estimate(self, name: str, estimate: NDArray[np.float64], samples: int | None) -> ErrorRow:
        """Return the row of an estimate of P(x_i = 1), (N,)."""
        return self._row(name, samples, *errors(estimate, self.truth))

    def estimates(
        self, name: str, estimates: NDArray[np.float64], sizes: Sequence[int]
    ) -> Iterator[ErrorRow]:
        """Return the rows of estimates (C, N) from the first S samples, one for each S."""
        for estimate, samples in zip(estimates, sizes):
            yield self.estimate(name, estimate, samples)

    def counts(
        self, name: str, counts: NDArray[np.integer], sizes: Sequence[int]
    ) -> Iterator[ErrorRow]:
        """Return the rows of votes for label 1, (C, N), among the first S samples.

        The total variation is that of k / S; logarithms are taken of (k + ½) / (S + 1).
        """
        for votes, samples in zip(counts.astype(np.int64), sizes):
            yield self.runs(name, votes[np.newaxis], samples)

    def runs(self, name: str, counts: NDArray[np.int64], samples: int) -> ErrorRow:
        """Return the mean errors of runs, whose votes for label 1 are (R, N), as one row."""
        variation, _ = run_errors(counts / samples, self.truth)  # (R,)
        _, logarithmic = run_errors(smooth(counts, samples), self.truth)  # (R,)
        row = self._row(name, samples, float(variation.mean()), float(logarithmic.mean()))
        if len(counts) == 1:
            return row
        spread = [
            float(each.std(ddof=1)) / math.sqrt(len(counts)) for each in (variation, logarithmic)
        ]
        return row._replace(
            runs=len(counts),
            total_variation_run_error=spread[0],
            log_probability_error_nats_run_error=spread[1],
        )

    def _row(
        self, name: str, samples: int | None, variation: float, logarithmic: float
    ) -> ErrorRow:
        setting = self.setting
        return ErrorRow(
            self.experiment,
            self.truth.size,
            2,
            setting.weight,
            setting.sigma,
            setting.self_term,
            name,
            samples,
            self.draw,
            variation,
            logarithmic,
        )


@dataclass(frozen=True)
class KernelSetting:
    """What the paper leaves open: K_ij = weight · exp(−|p_i − p_j|² / 2 sigma²), j = i or not."""

    weight: float
    sigma: float
    self_term: bool


def problem(voxels: int, draw: int, setting: KernelSetting) -> DenseCRF:
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
    counts = []
    total = np.zeros(crf.grid.voxels, dtype=np.int64)
    for batch, is_size in _batches(sizes):
        total += sample_labels(crf, batch, seed, printed_sign=printed_sign).sum(axis=0)
        if is_size:
            counts.append(total.copy())
    return np.stack(counts)


def sample_labels(
    crf: DenseCRF, samples: range, seed: int, *, printed_sign: bool = False
) -> NDArray[np.bool_]:
    """Return the perturbed MPM labellings, (S, N)."""
    sign = -1.0 if printed_sign else 1.0
    kernel, difference = _binary(crf)
    d = _last_update(kernel, difference - sign * _noise(crf, samples, seed), sharpness=1.0)
    labels: NDArray[np.bool_] = d < 0
    return labels


def votes_of_runs(crf: DenseCRF, sizes: Sequence[int], seed: int) -> list[NDArray[np.int64]]:
    """Return the votes for label 1 of independent runs of S samples, for each S: (R, N).

    The runs of one S are the parts of one long stream of samples, at most ``MOST_RUNS`` of them.
    """
    block = math.gcd(*sizes, _BATCH)
    counts = np.concatenate(
        [
            sample_labels(crf, batch, seed).reshape(-1, block, crf.grid.voxels).sum(axis=1)
            for batch, _ in _batches([sizes[-1]])
        ]
    )  # (blocks, N)
    found = []
    for size in sizes:
        runs = min(MOST_RUNS, sizes[-1] // size)
        each = counts[: runs * (size // block)].reshape(runs, -1, crf.grid.voxels)
        found.append(each.sum(axis=1))
    return found


def fixed_field_votes(crf: DenseCRF, samples: int, seed: int) -> NDArray[np.int64]:
    """Return the votes for label 1, (N,), of Proposition 1: noise on the mean field's energies.

    The mean field is computed once, and its energies E_Q are perturbed, never the unaries.
    """
    kernel, difference = _binary(crf)
    d = _last_update(kernel, difference[np.newaxis], sharpness=1.0)
    counts = [(d - _noise(crf, batch, seed) < 0).sum(axis=0) for batch, _ in _batches([samples])]
    total: NDArray[np.int64] = np.sum(counts, axis=0)
    return total


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


def smooth(counts: NDArray[np.int64], samples: int) -> NDArray[np.float64]:
    """Return (k + ½) / (S + 1), which has a logarithm."""
    return (counts + 0.5) / (samples + 1)


def errors(estimate: NDArray[np.float64], truth: NDArray[np.float64]) -> tuple[float, float]:
    """Return the total variation and the mean absolute error of log-probabilities.

    Both are marginals of label 1, (N,), and taken to be at least 1e-12 and at most 1 − 1e-12.
    """
    variation, logarithmic = run_errors(estimate[np.newaxis], truth)
    return float(variation[0]), float(logarithmic[0])


def run_errors(
    estimates: NDArray[np.float64], truth: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return both errors of each of several estimates (R, N): (R,), (R,)."""
    mine, true = (np.clip(p, _LEAST, 1 - _LEAST) for p in (estimates, truth))
    of_one = np.abs(np.log(mine) - np.log(true))
    of_zero = np.abs(np.log(1 - mine) - np.log(1 - true))
    return np.abs(mine - true).mean(axis=1), ((of_one + of_zero) / 2).mean(axis=1)


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
    return _cached_noise(seed, samples, tuple(crf.grid.index.tolist()))


@lru_cache(maxsize=_KEPT)
def _cached_noise(seed: int, samples: range, voxels: tuple[int, ...]) -> NDArray[np.float64]:
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


def single_voxel(labels: int, draws: int, samples: int, seed: int) -> list[ErrorRow]:
    """Measure each noise on random unaries: probabilities uniform on the simplex."""
    rows = []
    for draw in range(draws):
        truth = np.random.default_rng(draw).dirichlet(np.ones(labels))  # (L,)
        noise = gumbel(noise_seed(seed, draw), range(samples), [0], labels)[:, :, 0]  # (S, L)
        for name, scale in SCALES.items():
            perturbed = -np.log(truth) - scale * noise.astype(np.float64)  # (S, L)
            counts = np.bincount(perturbed.argmin(axis=1), minlength=labels)  # (L,)
            rows.append(_row(name, counts, truth, samples, draw))
    return rows


def _row(
    name: str, counts: NDArray[np.integer], truth: NDArray[np.float64], samples: int, draw: int
) -> ErrorRow:
    exact, votes = truth[:, np.newaxis], counts[:, np.newaxis]  # (L, 1)
    return ErrorRow(
        experiment="single voxel",
        voxels=1,
        labels=truth.size,
        weight=0.0,
        sigma_voxels=None,
        self_term=False,
        estimator=name,
        samples=samples,
        draw=draw,
        total_variation=total_variation(votes / samples, exact),
        log_probability_error_nats=log_probability_error(smoothed_frequencies(votes), exact),
    )


def noise_seed(seed: int, draw: int) -> int:
    """Return the seed of the noise of one draw: no two runs or draws share theirs."""
    return seed << 32 | draw


def pose_problem(
    experiment: str, voxels: int, draw: int, setting: KernelSetting
) -> tuple[DenseCRF, Enumeration, ProblemErrors]:
    """Return a problem, all its labellings, and what measures errors against them."""
    crf = problem(voxels, draw, setting)
    every = Enumeration(crf)
    return crf, every, ProblemErrors(experiment, setting, draw, every.marginals[1].ravel())


def curve(
    voxels: int, draw: int, setting: KernelSetting, sizes: Sequence[int], seed: int
) -> list[ErrorRow]:
    """Measure mean field, votes and the conditional estimator along the number of samples.

    The errors of votes are expectations over the noise, by runs that share no sample.
    """
    crf, _, measure = pose_problem("curves", voxels, draw, setting)
    noise = noise_seed(seed, draw)
    runs = votes_of_runs(crf, sizes, noise)
    return [
        measure.estimate("mean field", mean_field_marginals(crf), None),
        *(measure.runs("votes", counts, size) for counts, size in zip(runs, sizes)),
        *measure.estimates("conditional", conditional_marginals(crf, sizes, noise), sizes),
    ]


def map_point(
    voxels: Sequence[int], draws: int, setting: KernelSetting, samples: int, seed: int
) -> list[ErrorRow]:
    """Measure the same three at one weight and width, and what perfect samples would give."""
    sizes = [samples]
    rows = []
    for size in voxels:
        for draw in range(draws):
            crf, every, measure = pose_problem("map", size, draw, setting)
            noise = noise_seed(seed, draw)
            perfect = every.draw(range(samples), noise).sum(axis=0, keepdims=True)  # (1, N)
            conditional = conditional_marginals(crf, sizes, noise)
            rows += [
                measure.estimate("mean field", mean_field_marginals(crf), None),
                *measure.counts("votes", votes(crf, sizes, noise), sizes),
                *measure.estimates("conditional", conditional, sizes),
                *measure.counts("exact samples", perfect, sizes),
            ]
    return rows


def _sample_marginals(crf: DenseCRF, samples: range, seed: int) -> Posterior:
    with warnings.catch_warnings():
        # Ten updates of mean field are what is measured, converged or not.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return independent(crf, samples, seed, iterations=ITERATIONS, engine="reference")


FROM_Q: dict[str, Comparator] = {"samples of Q": _sample_marginals}


def compared(
    voxels: int, draw: int, setting: KernelSetting, sizes: Sequence[int], seed: int
) -> list[ErrorRow]:
    """Measure every method; those that know no self term only where none is kept."""
    crf, _, measure = pose_problem("comparators", voxels, draw, setting)
    noise = noise_seed(seed, draw)
    conditional = conditional_marginals(crf, sizes, noise)
    printed = votes(crf, sizes, noise, printed_sign=True)
    rows = [
        measure.estimate("mean field", mean_field_marginals(crf), None),
        *measure.counts("votes", votes(crf, sizes, noise), sizes),
        *measure.counts("votes, printed sign", printed, sizes),
        *measure.estimates("conditional", conditional, sizes),
    ]
    samplers = FROM_Q if setting.self_term else FROM_Q | OF_THE_MODEL
    for name, sampler in samplers.items():
        rows += measure.counts(name, _counts(sampler, crf, sizes, noise), sizes)
    return rows


def _counts(
    sampler: Comparator, crf: DenseCRF, sizes: Sequence[int], seed: int
) -> NDArray[np.int64]:
    """Return how many of the first S samples give label 1, (C, N): ranges of samples add up."""
    parts = [
        sampler(crf, range(start, stop), seed).counts[1].ravel().astype(np.int64)
        for start, stop in pairwise([0, *sizes])
    ]
    return np.cumsum(parts, axis=0)
