"""Gibbs sampling of a dense CRF with all pairs (Geman & Geman 1984), and whether it mixed."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lab.comparators.common import (
    Collector,
    Model,
    Samples,
    check_model,
    couplings,
    generator,
    problem,
)
from perturb_mpm import checks
from perturb_mpm.engines import require, resolve_budget
from perturb_mpm.inference import ConvergenceWarning
from perturb_mpm.model import DenseCRF
from perturb_mpm.noise import checked_seed
from perturb_mpm.posterior import Posterior

FEWEST_DRAWS = 4

LARGEST_VOXELS = 5000
HIGHEST_R_HAT = 1.1
FEWEST_JUDGED = 50

_DECIMALS = 6  # of an energy in nats; the sums it comes from are good to about nine

# How many sweeps are made in one call of the kernel.
_SWEEPS = 256


def split_r_hat(draws: NDArray[np.floating]) -> float:
    """Return R-hat of (chains, n) draws, each chain cut in two halves.

    1 where all halves agree, and where nothing ever changes; infinite where chains stand still at
    different values; NaN with fewer than 4 draws a chain.
    """
    if draws.shape[1] < FEWEST_DRAWS:
        return np.nan
    halves = _halves(draws)  # (2M, n)
    n = halves.shape[1]
    within = halves.var(axis=1, ddof=1).mean()
    between = halves.mean(axis=1).var(ddof=1)
    if within == 0:
        return 1.0 if between == 0 else np.inf
    return float(np.sqrt((n - 1) / n + between / within))


def effective_samples(draws: NDArray[np.floating]) -> float:
    """Return how many independent draws have the information of (chains, n) draws.

    n / (1 + 2 Σ ρ_t), with the autocorrelations ρ_t of all halves pooled and the sum cut where
    two in a row stop being positive (Geyer 1992). NaN with fewer than 4 draws a chain or where
    nothing ever changes.
    """
    if draws.shape[1] < FEWEST_DRAWS:
        return np.nan
    halves = _halves(draws)  # (2M, n)
    m, n = halves.shape
    covariance = _autocovariance(halves).mean(axis=0)  # (n,)
    within = covariance[0] * n / (n - 1)
    total = within * (n - 1) / n + halves.mean(axis=1).var(ddof=1)
    if total == 0:
        return np.nan
    correlation = 1 - (within - covariance) / total  # (n,)
    correlation[0] = 1.0
    pairs = correlation[: n - n % 2].reshape(-1, 2).sum(axis=1)  # ρ_0 + ρ_1, ρ_2 + ρ_3, …
    negative = np.flatnonzero(pairs < 0)
    kept = np.minimum.accumulate(pairs[: negative[0] if negative.size else None])
    time = max(2 * kept.sum() - 1, 1 / np.log10(m * n))
    return float(m * n / time)


def _halves(draws: NDArray[np.floating]) -> NDArray[np.float64]:
    half = draws.shape[1] // 2
    return np.concatenate([draws[:, :half], draws[:, -half:]]).astype(np.float64)


def _autocovariance(chains: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return Σ_s (x_s − x̄)(x_{s+t} − x̄) / n for every lag t, (M, n), by FFT."""
    n = chains.shape[1]
    centred = chains - chains.mean(axis=1, keepdims=True)
    spectrum = np.fft.rfft(centred, 2 * n, axis=1)
    sums = np.fft.irfft(np.abs(spectrum) ** 2, 2 * n, axis=1)[:, :n]
    means: NDArray[np.float64] = sums / n
    return means


@dataclass(frozen=True, eq=False)
class Chains:
    """The kept sweeps of several chains, and whether they agree.

    What is watched is the energy and, label by label, the share of the voxels that have it.
    """

    labels: NDArray[np.uint8] = field(repr=False)
    """(chains, n, N)."""
    energies: NDArray[np.float64] = field(repr=False)
    """E of every labelling to six decimals, (chains, n)."""
    r_hat: dict[str, float]
    """Split R-hat of what is watched: near 1 where the chains have mixed."""
    effective_samples: dict[str, float]
    """How many independent draws all chains together are worth, of what is watched."""


def gibbs(
    crf: Model,
    samples: Samples,
    seed: int,
    *,
    chains: int = 4,
    burn_in: int = 500,
    thin: int = 1,
) -> Posterior:
    """Draw samples of P by Gibbs sampling; see ``run_chains``, which also reports on mixing.

    Sample t is sweep ⌊t / chains⌋ of chain t mod chains, so neighbouring samples of one chain are
    dependent. At most 5000 voxels.

    Warns
    -----
    ConvergenceWarning
        Where some R-hat exceeds 1.1: the samples are then not samples of P. With fewer than 50
        sweeps a chain R-hat says too little, and nothing is said.
    """
    chains = checks.integer(chains, "chains", minimum=1)
    options = {"chains": chains, "burn_in": burn_in, "thin": thin}
    run = Collector("gibbs", samples, seed, **options)
    found = run_chains(crf, -(-run.samples.stop // chains), seed, **options)
    worst = max(found.r_hat, key=lambda name: found.r_hat[name])
    if found.energies.shape[1] >= FEWEST_JUDGED and found.r_hat[worst] > HIGHEST_R_HAT:
        warnings.warn(
            f"the Gibbs chains have not mixed: R-hat of {worst} is {found.r_hat[worst]:.3g}. "
            "Raise burn_in and samples; a problem with several modes may never mix.",
            ConvergenceWarning,
            stacklevel=2,
        )
    in_order = found.labels.swapaxes(0, 1).reshape(-1, crf.grid.voxels)  # (n · chains, N)
    draws = [in_order[run.samples.start : run.samples.stop]]
    return run.collect(crf.grid, crf.n_labels, draws, problem(crf))


def run_chains(
    crf: Model,
    sweeps: int,
    seed: int,
    *,
    chains: int = 4,
    burn_in: int = 500,
    thin: int = 1,
) -> Chains:
    """Run Gibbs chains, each from a start of its own, and say whether they have mixed.

    A sweep visits the voxels in their order (a systematic scan). The first chains start with one
    label everywhere, a different one each, the rest at random: the starts lie further apart than
    P does, as R-hat asks for. The first ``burn_in`` sweeps are dropped, then every ``thin``-th is
    kept, ``sweeps`` in all. Every chain has its own stream of random numbers.

    All kernels are exact, so at most 5000 voxels (0.2 GB a kernel).
    """
    sweeps = checks.integer(sweeps, "sweeps", minimum=1)
    seed = checked_seed(seed)
    chains = checks.integer(chains, "chains", minimum=1)
    burn_in = checks.integer(burn_in, "burn_in", minimum=0)
    thin = checks.integer(thin, "thin", minimum=1)
    _check_size(crf, chains * sweeps)
    pairwise = _Pairwise(crf)
    runs = [_run(crf, pairwise, sweeps, seed, chain, burn_in, thin) for chain in range(chains)]
    labels = np.stack([kept for kept, _ in runs])  # (chains, n, N)
    energies = np.stack([energy for _, energy in runs])  # (chains, n)
    watched = {"the energy": energies}
    for l in range(crf.n_labels):
        watched[f"the share of label {l}"] = (labels == l).mean(axis=2)
    return Chains(
        labels=labels,
        energies=energies,
        r_hat={name: split_r_hat(draws) for name, draws in watched.items()},
        effective_samples={name: effective_samples(draws) for name, draws in watched.items()},
    )


class _Pairwise:
    """The couplings of a CRF, stacked for the compiled loop."""

    def __init__(self, crf: Model) -> None:
        n_labels, voxels = crf.energies.shape
        terms = couplings(crf)
        self.kernels = np.empty((len(terms), voxels, voxels))
        self.compatibilities = np.empty((len(terms), n_labels, n_labels))
        for g, term in enumerate(terms):
            self.kernels[g] = term.kernel
            self.compatibilities[g] = term.compatibility

    def energies(self, labels: NDArray[np.uint8]) -> NDArray[np.float64]:
        """Return what each label would cost each voxel, given all others' (N,) labels: (L, N)."""
        n_labels = self.compatibilities.shape[1]
        one_hot = (labels == np.arange(n_labels)[:, np.newaxis]).astype(np.float64)  # (L, N)
        total: NDArray[np.float64] = np.zeros_like(one_hot)
        for kernel, compatibility in zip(self.kernels, self.compatibilities):
            total += compatibility @ one_hot @ kernel
        return total


def _run(
    crf: Model, pairwise: _Pairwise, sweeps: int, seed: int, chain: int, burn_in: int, thin: int
) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """Return the kept labels (n, N) and energies (n,) of one chain."""
    from lab.comparators.gibbs_kernel import sweep

    random = generator("gibbs", seed, chain)
    n_labels, voxels = crf.energies.shape
    labels = np.empty(voxels, dtype=np.uint8)
    labels[:] = chain if chain < n_labels else random.integers(n_labels, size=voxels)
    messages = pairwise.energies(labels)  # (L, N)
    fields = crf.energies + messages
    here = labels[np.newaxis].astype(np.int64)
    energy = float(np.take_along_axis(fields - messages / 2, here, axis=0).sum())

    kept = np.empty((sweeps, voxels), dtype=np.uint8)
    energies = np.empty(sweeps)
    done = 0  # sweeps made
    while done < burn_in + thin * sweeps:
        n = min(_SWEEPS, burn_in + thin * sweeps - done)
        every, change = np.empty((n, voxels), dtype=np.uint8), np.empty(n)
        uniforms = random.random((n, voxels))
        sweep(labels, fields, pairwise.kernels, pairwise.compatibilities, uniforms, every, change)
        # The kept ones are thin − 1, 2·thin − 1, … sweeps after the burn-in.
        number = np.arange(done, done + n) - burn_in - (thin - 1)
        keep = (number >= 0) & (number % thin == 0)
        kept[number[keep] // thin] = every[keep]
        energies[number[keep] // thin] = energy + change[keep]
        energy += change[-1]
        done += n
    # Chains that stand still at one energy came there by different sums: R-hat must not see it.
    return kept, np.round(energies, _DECIMALS)


def _check_size(crf: Model, kept: int) -> None:
    check_model(crf)
    voxels = crf.grid.voxels
    if voxels > LARGEST_VOXELS:
        raise ValueError(
            f"crf must have at most {LARGEST_VOXELS} voxels for Gibbs sampling with all pairs, "
            f"got {voxels}: use a smaller mask or a coarser grid"
        )
    kernels = len(crf.terms) if isinstance(crf, DenseCRF) else 1
    require(
        8 * (2 * kernels + 3) * voxels**2 + 4 * kept * voxels,
        resolve_budget(None),
        f"Gibbs sampling of {voxels} voxels, {kernels} kernels and {kept} kept sweeps",
        "use a smaller mask or fewer samples",
    )
