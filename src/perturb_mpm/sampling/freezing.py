"""Frozen voxels: cost that follows the uncertain voxels.

Most voxels are nearly certain, and where the noise of each voxel is its own, what they send to
others averages out. They are frozen at their marginals averaged over the noise, and samples update
the others alone. With the scale τ of the noise, the sharpness β of the softmax and
h(x) = E_γ softmax(β(x + τγ)), the averaged mean field is

    q̄⁰ = h(−U),   q̄ᵗ⁺¹ = h(−U − pairwise(q̄ᵗ)),    all (L, N),

and a voxel is active where a sample dissents, given the averaged energies, with a probability
above ε. h is looked up in a table of two labels.

Noise that is correlated between voxels does not average out: in a few samples whole regions turn
at once, and what these send is no longer constant. So ``GROUP`` samples freeze voxels together, and
a voxel is active in all of them if the noise of any one brings it near to another label: nearer
than ``NEAR_NATS`` and half of what all others together send. All others keep their label in every
sample of the group, and q̄ is h of the mean field's log-odds, for all updates.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.engines import (
    LEAST_MARGINAL,
    FreezingSolver,
    FrozenVoxels,
    Solver,
    available_cores,
)
from perturb_mpm.inference import in_turn
from perturb_mpm.model import DenseCRF
from perturb_mpm.noise import Perturbation
from perturb_mpm.sampling.settings import MOST_SAMPLES, Sampling

CHUNK = 1 << 16
"""Voxels whose averaged marginals are computed at once: they stay in the cache."""

# The table of h: log-odds from −SPAN to SPAN; beyond it e^−SPAN counts.
SPAN = 44.0
STEP = 1 / 32

# Samples whose noise decides together: seven batches of 32 hold the 200 samples that are usual.
GROUP = 224
# Beside half of what all others together send. Chosen on two gliomas with a network: on the ten
# samples of BraTS2021_01658 at 1 mm whose noise moves most, margins of 0.5, 1 and 2 nats left at
# most .038, .022 and .007 % of the votes different from full sampling, with 15, 18 and 25 % of the
# voxels active; three times as strong kernels on BraTS2021_00006 at 2 mm left .08 % at 1 nat.
NEAR_NATS = 0.7

MOST_STORED_BYTES = 1 << 30
"""Of averaged energies; what takes more is computed a second time instead."""


@dataclass(frozen=True)
class FreezeRule:
    """Which voxels are frozen, and what the averaged mean field that they follow is made of.

    A voxel is active where a sample dissents with a probability above ``epsilon``, and nothing is
    frozen where more than a share ``most_active`` of them is: every voxel then takes hardly longer.
    The averaged mean field makes at most ``iterations`` updates, which are damped as the samples'
    own are, in turns, and stops where its energies move by no more than ``still_nats``.
    """

    epsilon: float
    scale: float
    sharpness: float
    iterations: int
    dampings: tuple[float, ...] = (0.0,)
    most_active: float = 0.6
    still_nats: float = 1e-3
    reason_against: str = ""
    """Why no voxel can be frozen, where that is so."""
    threads: int | None = None
    """On how many to compute; as many as there are cores by default."""

    @classmethod
    def from_sampling(cls, sampling: Sampling, threads: int | None = None) -> FreezeRule:
        """Return the rule of some samples."""
        reason = "there is no cold start to follow" if sampling.start == "warm" else ""
        return cls(
            sampling.hold,
            sampling.scale,
            sampling.sharpness,
            sampling.iterations,
            sampling.dampings,
            reason_against=reason,
            threads=threads,
        )

    @property
    def table(self) -> NDArray[np.float32]:
        """The table of h."""
        return averaging_table(self.scale, self.sharpness)

    def average(self, logits: NDArray[np.floating]) -> NDArray[np.float32]:
        """Return h of log-odds, (L, N)."""
        return averaged_marginals(logits, self.table, self.threads)


@dataclass(frozen=True)
class NoiseGroup:
    """Samples of correlated noise that freeze the same voxels."""

    perturbation: Perturbation
    number: int
    mean_field: NDArray[np.floating]
    """That of the CRF itself, (L, N)."""

    @property
    def samples(self) -> NDArray[np.int64]:
        """The numbers of its samples, (GROUP,)."""
        return np.arange(self.number * GROUP, (self.number + 1) * GROUP)


def group_size(sampling: Sampling) -> int:
    """Return how many samples freeze the same voxels."""
    return GROUP if sampling.hold > 0 and sampling.correlated else MOST_SAMPLES


@dataclass(frozen=True)
class Freezing:
    """What sampling freezes: nothing where ``frozen`` is None, and then ``reason`` says why."""

    epsilon: float
    frozen: FrozenVoxels | None
    active_share: float
    bound_nats: float
    reason: str = ""

    def describe(self) -> dict[str, object]:
        """Return what the law of the samples depends on, and how far it may be off.

        Of several groups it is the first that says so.
        """
        # Three digits: engines and machines differ in the last ones. Names rise, as in the file of
        # a posterior, so that a resumed run writes the same bytes.
        return {
            "active_share": float(f"{self.active_share:.3g}"),
            "bound_nats": float(f"{self.bound_nats:.3g}"),
            "epsilon": self.epsilon,
            **({"every_voxel": self.reason} if self.reason else {}),
        }


def find_frozen(
    crf: DenseCRF,
    solver: Solver,
    rule: FreezeRule,
    group: NoiseGroup | None = None,
) -> Freezing:
    """Return what to freeze by a rule, computed on a solver of the CRF.

    Where noise is correlated it is for a group of samples.
    """
    if not isinstance(solver, FreezingSolver):
        reason = f"the {solver.engine.upper()} engine updates every voxel"
        return Freezing(rule.epsilon, None, 1.0, 0.0, reason)
    reason = rule.reason_against
    if rule.iterations == 0 or not crf.terms:
        reason = "there is nothing to follow: no updates, or no kernels"
    if reason:
        return Freezing(rule.epsilon, None, 1.0, 0.0, reason)
    size = rule.iterations * crf.energies.size * 4
    steps = None
    if group is not None:
        steps = [_averaged_mean_field(crf, solver, rule, group.mean_field)]
    elif size <= MOST_STORED_BYTES:
        steps = list(_averaged_steps(crf, solver, rule))
    last, q = deque(steps or _averaged_steps(crf, solver, rule), maxlen=1)[0]
    moved = _find_dissent(_centred_logits(crf, solver), last, rule.threads) > rule.epsilon  # (N,)
    strongest = 0.0
    if group is not None:
        strongest = strongest_message(crf, solver)
        nats = NEAR_NATS + strongest / 2
        moved |= solver.find_near(group.perturbation, group.samples, last, nats)
    active = np.flatnonzero(moved)
    share = len(active) / crf.grid.voxels
    if share > rule.most_active:
        reason = f"{100 * share:.0f} % of the voxels are active"
        return Freezing(rule.epsilon, None, share, 0.0, reason)
    path = [
        (energies[:, active], marginals[:, active])
        for energies, marginals in (_averaged_steps(crf, solver, rule) if steps is None else steps)
    ]
    energies, averages = (np.stack(each) for each in zip(*path, strict=True))  # (T, L, A)
    if group is not None:
        bound = bound_correlated_messages(strongest, np.delete(q.max(axis=0), active))
    else:
        bound = bound_frozen_messages(crf, solver, averaged_variance(q, rule), active)
    frozen = FrozenVoxels(active, energies, averages, last, steady=group is not None)
    return Freezing(rule.epsilon, frozen, share, bound)


def _averaged_mean_field(
    crf: DenseCRF, solver: Solver, rule: FreezeRule, mean_field: NDArray[np.floating]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return q̄ = h(log-odds of the mean field) and its energies against label 0's, (L, N)."""
    q = rule.average(np.log(np.maximum(mean_field, LEAST_MARGINAL)))
    sent = send_marginals(crf, solver, q)
    return (sent - sent[0]).astype(np.float32), q


def _averaged_steps(
    crf: DenseCRF, solver: Solver, rule: FreezeRule
) -> Iterator[tuple[NDArray[np.float32], NDArray[np.float32]]]:
    """Follow the averaged mean field: the energies of q̄ᵗ against label 0's, and q̄ᵗ, (L, N)."""
    centred = _centred_logits(crf, solver)
    q = rule.average(-np.asarray(crf.energies, dtype=np.float32))
    before = None
    for t in range(rule.iterations):
        sent = send_marginals(crf, solver, q)
        energies = (sent - sent[0]).astype(np.float32)
        yield energies, q
        if before is not None and np.abs(energies - before).max() <= rule.still_nats:
            return
        before = energies
        if t + 1 < rule.iterations:
            new = rule.average(centred - energies)
            q = _damp(q, new, in_turn(rule.dampings, t))


def _find_dissent(
    logits: NDArray[np.float32], last: NDArray[np.float32], threads: int | None
) -> NDArray[np.float32]:
    """Return 1 − max softmax(logits − last) of (L, N), (N,)."""
    out = np.empty(logits.shape[1], dtype=np.float32)

    def dissent(part: slice) -> None:
        x = logits[:, part] - last[:, part]
        x -= x.max(axis=0)
        np.exp(x, out=x)
        out[part] = 1 - 1 / x.sum(axis=0)

    _in_chunks(dissent, logits.shape[1], threads)
    return out


def _in_chunks(work: Callable[[slice], None], voxels: int, threads: int | None) -> None:
    """Let threads work on some voxels each."""
    parts = [slice(first, first + CHUNK) for first in range(0, voxels, CHUNK)]
    with ThreadPoolExecutor(threads or available_cores()) as pool:
        list(pool.map(work, parts))


def _centred_logits(crf: DenseCRF, solver: Solver) -> NDArray[np.float32]:
    """Return −U, plus what a centred CRF adds, (L, N)."""
    unaries = -np.asarray(crf.energies, dtype=np.float32)
    return unaries if solver.centre is None else (unaries + solver.centre).astype(np.float32)


def _damp(q: NDArray[np.float32], new: NDArray[np.float32], damping: float) -> NDArray[np.float32]:
    """Return the averaged marginals after q, (L, N), damped as the samples' own are."""
    if damping == 0:
        return new
    further: NDArray[np.float32] = np.maximum(q + np.float32(1 - damping) * (new - q), 0)
    further /= further.sum(axis=0)
    return further


def send_marginals(
    crf: DenseCRF, solver: Solver, marginals: NDArray[np.float32]
) -> NDArray[np.floating]:
    """Return the pairwise energies of one problem's marginals (L, N), (L, N)."""
    solver.load(crf.energies[np.newaxis], marginals[np.newaxis])
    energies: NDArray[np.floating] = solver.pairwise()[0]
    return energies


def bound_frozen_messages(
    crf: DenseCRF, solver: Solver, variance: NDArray[np.float32], active: NDArray[np.int64]
) -> float:
    """Return how far noise may move a frozen message, in nats: its largest standard deviation.

    The variance of Σ_j k_ij Q_j over frozen voxels is Σ_j k_ij² v_j. For a positive semi-definite
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
    without, filtered = (send_marginals(crf, solver, each) for each in spread)
    moved = np.abs(filtered - without).max(axis=0) * most  # (N,)
    return float(np.sqrt((root * moved).max()))


def strongest_message(crf: DenseCRF, solver: Solver) -> float:
    """Return how far all voxels together move the energies of two labels, at most, in nats.

    They do where each is certain of the same label.
    """
    one_label = np.zeros(crf.energies.shape, dtype=np.float32)
    one_label[0] = 1
    return float(np.ptp(send_marginals(crf, solver, one_label), axis=0).max())


def bound_correlated_messages(strongest: float, certainty: NDArray[np.float32]) -> float:
    """Return how far noise moves a frozen message in the mean, at most, in nats.

    E|Q_j − q̄_j| ≤ 2·(1 − q̄_j) of the most probable label, however the noise of neighbours is
    correlated; ``certainty`` (F,) is q̄_j of frozen voxels, ``strongest`` what all voxels together
    send at most.
    """
    return 2 * (1 - float(certainty.min())) * strongest if certainty.size else 0.0


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
    logits: NDArray[np.floating], table: NDArray[np.float32], threads: int | None = None
) -> NDArray[np.float32]:
    """Return E_γ softmax(β(logits + τγ)), (L, N): exact for two labels.

    With more, each label is taken against all others together, which is right where one of them
    is nearly certain.
    """
    out = np.empty(logits.shape, dtype=np.float32)

    def average(part: slice) -> None:
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
            index = gap.astype(np.int32)
            gap -= index
            low = table[index]
            q[l] = low + gap * (table[index + 1] - low)
        q /= q.sum(axis=0)

    _in_chunks(average, logits.shape[1], threads)
    return out


def averaged_variance(q: NDArray[np.float32], rule: FreezeRule) -> NDArray[np.float32]:
    """Return the variance of each voxel's marginals over its noise, (N,): the largest label's.

    ``q`` (L, N) are averaged marginals. The log-odds that have such an average say how far a
    marginal spreads around it.
    """
    variances = averaging_table(rule.scale, rule.sharpness, power=2) - rule.table**2
    most = np.zeros(q.shape[1], dtype=np.float32)
    for each in q:
        spread = np.interp(each, rule.table[::8], variances[::8])  # every eighth is enough
        np.maximum(most, spread, out=most, casting="same_kind")
    return most


def _logistic(x: NDArray[np.float64]) -> NDArray[Any]:
    return 0.5 * (1 + np.tanh(0.5 * x))
