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

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.engines import (
    FreezingSolver,
    Hold,
    HoldingSolver,
    HoldRule,
    Solver,
    averaged_marginals,
    averaged_variance,
    held_bound,
    in_turn,
    next_average,
    pairwise_of,
    softmax,
)
from perturb_mpm.model import DenseCRF
from perturb_mpm.sampling.settings import Sampling


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


def hold_certain(crf: DenseCRF, solver: Solver, sampling: Sampling) -> Holding:
    """Let a solver of the CRF hold what is nearly certain at ``sampling.hold``."""
    reason = _reason_against(crf, solver, sampling)
    rule = rule_of(sampling)
    if not reason and isinstance(solver, HoldingSolver):
        share, bound = solver.hold_by(rule)
        return Holding(sampling.hold, None, share, bound, _too_active(share, rule))
    found = prepare_hold(crf, solver, sampling)
    if isinstance(solver, FreezingSolver):
        solver.hold(found.hold)
    return found


def rule_of(sampling: Sampling) -> HoldRule:
    """Return which voxels these samples hold."""
    return HoldRule(
        sampling.hold, sampling.scale, sampling.sharpness, sampling.iterations, sampling.dampings
    )


def prepare_hold(crf: DenseCRF, solver: Solver, sampling: Sampling) -> Holding:
    """Return what to hold at ``sampling.hold``, computed on a solver of the CRF."""
    epsilon, rule = sampling.hold, rule_of(sampling)
    reason = _reason_against(crf, solver, sampling)
    if reason:
        return Holding(epsilon, None, 1.0, 0.0, reason)
    table = rule.table
    unaries = -np.asarray(crf.energies, dtype=np.float32)  # (L, N)
    centred = unaries if solver.centre is None else unaries + solver.centre
    energies: list[NDArray[np.float32]] = []  # of q̄ᵗ, (L − 1, N) against label 0's
    q = averaged_marginals(unaries, table)
    for t in range(rule.iterations):
        sent = pairwise_of(solver, crf, q)  # (L, N)
        energies.append((sent - sent[0])[1:].astype(np.float32))
        if len(energies) == rule.iterations or _still(energies, rule):
            break
        q = next_average(q, centred - _with_first(energies[-1]), table, in_turn(rule.dampings, t))
    last = _with_first(energies[-1])
    dissent = 1.0 - softmax((centred - last)[np.newaxis])[0].max(axis=0)  # (N,)
    active = np.flatnonzero(dissent > epsilon)
    share = len(active) / crf.grid.voxels
    reason = _too_active(share, rule)
    if reason:
        return Holding(epsilon, None, share, 0.0, reason)
    here = np.stack([_with_first(each[:, active]) for each in energies])  # (T, L, A)
    marginals = np.empty_like(here)
    marginals[0] = averaged_marginals(unaries[:, active], table)
    for t in range(1, len(here)):
        logits = centred[:, active] - here[t - 1]
        damping = in_turn(rule.dampings, t - 1)
        marginals[t] = next_average(marginals[t - 1], logits, table, damping)
    bound = held_bound(solver, crf, averaged_variance(q, rule), active)
    return Holding(epsilon, Hold(active, here, marginals, last), share, bound)


def _reason_against(crf: DenseCRF, solver: Solver, sampling: Sampling) -> str:
    """Return why every voxel must be updated; nothing where there is no reason."""
    if not isinstance(solver, FreezingSolver):
        return f"the {solver.engine.upper()} engine updates every voxel"
    if sampling.goes_together:
        return "noise goes together between voxels"
    if sampling.start == "warm" or sampling.iterations == 0 or not crf.terms:
        return "there is no cold start to follow"
    return ""


def _too_active(share: float, rule: HoldRule) -> str:
    return f"{100 * share:.0f} % of the voxels are active" if share > rule.most_active else ""


def _still(energies: list[NDArray[np.float32]], rule: HoldRule) -> bool:
    """Return whether the averaged energies no longer move."""
    if len(energies) < 2:
        return False
    return bool(np.abs(energies[-1] - energies[-2]).max() <= rule.still_nats)


def _with_first(against_first: NDArray[np.float32]) -> NDArray[np.float32]:
    """Put label 0's energies, 0, before those of the others."""
    return np.concatenate([np.zeros_like(against_first[:1]), against_first])


def _rounded(value: float) -> float:
    """Return three digits: engines and machines differ in the last ones."""
    return float(f"{value:.3g}")
