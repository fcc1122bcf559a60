"""Held voxels: cost that follows the doubt.

Most voxels are nearly certain, and where the noise of each voxel is its own, what they send to
others averages out. They are held at their marginals averaged over the noise, and samples update
the others alone. With h(x) = E_γ softmax(β(x + τγ)) the averaged mean field is

    q̄⁰ = h(−U),   q̄ᵗ⁺¹ = h(−U − pairwise(q̄ᵗ)),

and a voxel is active where a sample dissents, given the averaged energies, with a probability
above ε. Noise that goes together between voxels does not average out: it is sampled in full.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.engines import Hold, Solver, softmax
from perturb_mpm.model import DenseCRF
from perturb_mpm.sampling.settings import Sampling

MOST_ACTIVE = 0.45
"""Above this share of active voxels holding the others saves nothing."""

CHUNK = 1 << 16
"""Voxels whose averaged marginals are computed at once: they stay in the cache."""

STILL_NATS = 1e-3
"""An averaged mean field whose energies move by no more has converged."""

# The table of h: log-odds from −SPAN to SPAN; beyond it e^−SPAN counts.
SPAN = 44.0
STEP = 1 / 32


@dataclass(frozen=True)
class Holding:
    """What sampling holds: nothing where ``hold`` is None, and then ``reason`` says why."""

    epsilon: float
    hold: Hold | None
    active_share: float
    bound_nats: float
    reason: str = ""

    def describe(self) -> dict[str, object]:
        """Return what the law of the samples depends on, and how far it may be off."""
        return {
            "epsilon": self.epsilon,
            "active_share": _rounded(self.active_share),
            "bound_nats": _rounded(self.bound_nats),
            **({"every_voxel": self.reason} if self.reason else {}),
        }


def prepare_hold(crf: DenseCRF, solver: Solver, sampling: Sampling) -> Holding:
    """Return what to hold at ``sampling.hold``, computed on a solver of the CRF."""
    epsilon = sampling.hold
    if sampling.goes_together:
        return Holding(epsilon, None, 1.0, 0.0, "noise goes together between voxels")
    if solver.engine == "gpu":
        return Holding(epsilon, None, 1.0, 0.0, "the engine gpu holds none yet")
    if sampling.start == "warm" or sampling.iterations == 0 or not crf.terms:
        return Holding(epsilon, None, 1.0, 0.0, "there is no cold start to follow")
    table = averaging_table(sampling.scale, sampling.sharpness)
    unaries = -np.asarray(crf.energies, dtype=np.float32)  # (L, N)
    centred = unaries if solver.centre is None else unaries + solver.centre
    energies: list[NDArray[np.float32]] = []  # of q̄ᵗ, (L − 1, N) against label 0's
    q = averaged_marginals(unaries, table)
    for _ in range(sampling.iterations):
        sent = _pairwise(crf, solver, q)  # (L, N)
        energies.append((sent - sent[0])[1:].astype(np.float32))
        if len(energies) == sampling.iterations or _still(energies):
            break
        q = _next_average(q, centred - _with_first(energies[-1]), table, sampling.damping)
    last = _with_first(energies[-1])
    dissent = 1.0 - softmax((centred - last)[np.newaxis])[0].max(axis=0)  # (N,)
    active = np.flatnonzero(dissent > epsilon)
    share = len(active) / crf.grid.voxels
    if share > MOST_ACTIVE:
        return Holding(epsilon, None, share, 0.0, f"{100 * share:.0f} % of the voxels are active")
    here = np.stack([_with_first(each[:, active]) for each in energies])  # (T, L, A)
    marginals = np.empty_like(here)
    marginals[0] = averaged_marginals(unaries[:, active], table)
    for t in range(1, len(here)):
        logits = centred[:, active] - here[t - 1]
        marginals[t] = _next_average(marginals[t - 1], logits, table, sampling.damping)
    bound = _bound(crf, solver, averaged_variance(q, sampling), active)
    return Holding(epsilon, Hold(active, here, marginals, last), share, bound)


@lru_cache(maxsize=8)
def averaging_table(scale: float, sharpness: float, power: int = 1) -> NDArray[np.float32]:
    """Return E σ(β(Δ + τΛ))ᵖ at log-odds Δ from −SPAN to SPAN, Λ logistic: (2·SPAN/STEP + 1,).

    The difference of two Gumbel variables is logistic. At β = τ = 1 it is r(r − 1 + Δ)/(1 − r)²
    for the less probable label, r = e^−Δ.
    """
    noise = np.arange(-80.0, 80.0, 0.2)  # analytic and falling as e^−|Λ|: trapezoids are exact
    decay = np.exp(-np.abs(noise))
    density = decay / (1 + decay) ** 2
    density /= density.sum()
    gaps = np.arange(-SPAN, SPAN + STEP / 2, STEP)
    return np.array(
        [density @ _logistic(sharpness * (gap + scale * noise)) ** power for gap in gaps]
    ).astype(np.float32)


def averaged_marginals(
    logits: NDArray[np.floating], table: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return E_γ softmax(β(logits + τγ)), (L, N): exact for two labels.

    With more, each label is held against all others together, which is right where one of them
    is nearly certain.
    """
    out = np.empty(logits.shape, dtype=np.float32)
    for first in range(0, logits.shape[1], CHUNK):
        part = slice(first, first + CHUNK)
        x = logits[:, part].astype(np.float32)
        x -= x.max(axis=0)
        shares = np.exp(x)
        total = shares.sum(axis=0)
        q = out[:, part]
        for l in range(len(x)):
            gap = x[l] - np.log(np.maximum(total - shares[l], np.float32(1e-37)))
            np.clip(gap, np.float32(-SPAN), np.float32(SPAN - 2 * STEP), out=gap)
            gap += np.float32(SPAN)
            gap *= np.float32(1 / STEP)
            place = gap.astype(np.int32)
            gap -= place
            low = table[place]
            q[l] = low + gap * (table[place + 1] - low)
        q /= q.sum(axis=0)
    return out


def _next_average(
    q: NDArray[np.float32],
    logits: NDArray[np.floating],
    table: NDArray[np.float32],
    damping: float,
) -> NDArray[np.float32]:
    """Return the averaged marginals after q, (L, N), damped as the samples' own are."""
    new = averaged_marginals(logits, table)
    if damping == 0:
        return new
    further = np.maximum(q + np.float32(1 - damping) * (new - q), 0)
    further /= further.sum(axis=0)
    return further


def _still(energies: list[NDArray[np.float32]]) -> bool:
    """Return whether the averaged energies no longer move."""
    return len(energies) > 1 and bool(np.abs(energies[-1] - energies[-2]).max() <= STILL_NATS)


def averaged_variance(q: NDArray[np.float32], sampling: Sampling) -> NDArray[np.float32]:
    """Return the variance of each voxel's marginals over its noise, (N,): the largest label's.

    ``q`` (L, N) are averaged marginals. The log-odds that have such an average say how far a
    marginal spreads around it.
    """
    first = averaging_table(sampling.scale, sampling.sharpness)
    spread = averaging_table(sampling.scale, sampling.sharpness, power=2) - first**2
    gaps = np.arange(0, len(first), 8)  # rising; every eighth is enough
    most = np.zeros(q.shape[1], dtype=np.float32)
    for each in q:
        np.maximum(most, np.interp(each, first[gaps], spread[gaps]), out=most, casting="same_kind")
    return most


def _bound(
    crf: DenseCRF, solver: Solver, variance: NDArray[np.float32], active: NDArray[np.int64]
) -> float:
    """Return how far noise may move a held message, in nats: its largest standard deviation.

    The variance of Σ_j k_ij Q_j over held voxels is Σ_j k_ij² v_j. For a positive semi-definite
    kernel with the diagonal d, k_ij ≤ √(d_i d_j), which makes it at most √d_i·(K(v√d))_i: one
    filtering.
    """
    root = np.sqrt(solver.diagonal.astype(np.float32))  # (N,)
    sources = variance * root
    sources[active] = 0
    most = float(sources.max(initial=0.0))
    if most == 0:
        return 0.0
    spread = np.zeros((2, *crf.energies.shape), dtype=np.float32)
    spread[:, 0] = 1
    spread[1, 0] -= sources / most
    spread[1, 1] += sources / most
    without, filtered = (_pairwise(crf, solver, each) for each in spread)
    moved = np.abs(filtered - without).max(axis=0) * most  # (N,)
    return float(np.sqrt((root * moved).max()))


def _pairwise(
    crf: DenseCRF, solver: Solver, marginals: NDArray[np.float32]
) -> NDArray[np.floating]:
    solver.load(crf.energies[np.newaxis], marginals[np.newaxis])
    energies: NDArray[np.floating] = solver.pairwise()[0]
    return energies


def _with_first(against_first: NDArray[np.float32]) -> NDArray[np.float32]:
    """Put label 0's energies, 0, before those of the others."""
    return np.concatenate([np.zeros_like(against_first[:1]), against_first])


def _logistic(x: NDArray[np.float64]) -> NDArray[Any]:
    return 0.5 * (1 + np.tanh(0.5 * x))


def _rounded(value: float) -> float:
    """Return three digits: engines and machines differ in the last ones."""
    return float(f"{value:.3g}")
