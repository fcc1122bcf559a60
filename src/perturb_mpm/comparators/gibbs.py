"""Gibbs sampling of a dense CRF, with all pairs (Geman & Geman, PAMI 1984)."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from perturb_mpm import checks
from perturb_mpm.comparators.common import Collector, Samples, generator
from perturb_mpm.comparators.couplings import Model, check_model, couplings, problem
from perturb_mpm.comparators.diagnostics import effective_samples, split_r_hat
from perturb_mpm.convergence import ConvergenceWarning
from perturb_mpm.crf import DenseCRF
from perturb_mpm.engines.memory import require, resolve_budget
from perturb_mpm.noise import checked_seed
from perturb_mpm.posterior import Posterior

LARGEST_VOXELS = 5000
HIGHEST_R_HAT = 1.1
FEWEST_JUDGED = 50

_DECIMALS = 6  # of an energy in nats; the sums it comes from are good to about nine

# How many sweeps are made in one call of the kernel.
_SWEEPS = 256


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

    All kernels are held exactly, so at most 5000 voxels (0.2 GB a kernel).
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
    from perturb_mpm.comparators.gibbs_kernel import sweep

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
