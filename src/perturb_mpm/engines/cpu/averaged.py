"""The averaged mean field, compiled: ``engines/averaging.py`` says what it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.engines.averaging import SPAN, STEP, HoldRule, in_turn
from perturb_mpm.engines.cpu.buffers import LANES, Buffers
from perturb_mpm.engines.cpu.compile import fma, kernel
from perturb_mpm.engines.cpu.groups import Compatibilities, Slices
from perturb_mpm.engines.cpu.perturber import LN2, ROOT_HALF, bits_of_float, log2_of_bits
from perturb_mpm.engines.cpu.row_kernels import ONE, ZERO, exp_negative, interact, scratch_of
from perturb_mpm.engines.cpu.threads import Threads
from perturb_mpm.engines.protocol import Hold

LEAST = np.float32(1e-37)
FIRST_GAP, PER_STEP = np.float32(SPAN), np.float32(1 / STEP)


@kernel
def _average(logits, averages, spreads, shares, highest, average, spread):
    """Set ``average`` (L, lanes) to h(0, logits), and ``spread`` to its largest variance.

    ``shares`` becomes the softmax without its norm, ``highest`` what it leaves to all but the most
    probable label.
    """
    labels, lanes = average.shape
    total = np.empty(lanes, np.float32)
    for k in range(lanes):
        highest[k] = ZERO
        spread[k] = ZERO
    for l in range(labels - 1):
        for k in range(lanes):
            highest[k] = logits[l, k] if logits[l, k] > highest[k] else highest[k]
    for k in range(lanes):
        shares[0, k] = exp_negative(-highest[k])
        total[k] = shares[0, k]
    for l in range(1, labels):
        for k in range(lanes):
            shares[l, k] = exp_negative(logits[l - 1, k] - highest[k])
            total[k] += shares[l, k]
    last = np.float32(averages.size - 2)
    for l in range(labels):
        for k in range(lanes):  # where in the table, in vectors; then what stands there
            others = total[k] - shares[l, k]
            others = others if others > LEAST else LEAST
            own = (logits[l - 1, k] if l else ZERO) - highest[k]
            gap = fma(-LN2, log2_of_bits(bits_of_float(others), ROOT_HALF), own)
            place = (gap + FIRST_GAP) * PER_STEP
            place = place if place > ZERO else ZERO
            average[l, k] = place if place < last else last
        for k in range(lanes):
            low = np.int64(average[l, k])
            part = average[l, k] - np.float32(low)
            away = fma(part, spreads[low + 1] - spreads[low], spreads[low])
            average[l, k] = fma(part, averages[low + 1] - averages[low], averages[low])
            spread[k] = away if away > spread[k] else spread[k]
    for k in range(lanes):
        highest[k] = ONE - ONE / total[k]


@kernel
def follow(
    logits,
    centre,
    first,
    before,
    energies,
    tables,
    filters,
    compatibility,
    rows,
    marginals,
    unit,
    rounding,
    damping,
    dissent,
    variance,
    start,
    stop,
):
    """Turn averaged marginals into the next, in place, in some tiles of one problem.

    ``logits`` (L−1, N) are the unaries' log-odds against label 0 and ``centre`` (L−1, N) what is
    added to them, both in the engine's order. The ``first`` marginals are those of the logits
    alone. Later, the pairwise energies (L−1, N) of the present marginals are written beside those
    ``before``, and the largest difference of the two is returned. ``dissent`` (N,) becomes the
    share that the softmax leaves to other labels, ``variance`` (N,) that of the marginals.
    """
    averages, spreads = tables
    count = logits.shape[0]
    tile = LANES
    flat = marginals.reshape(marginals.shape[0], count)
    away, zero = np.zeros((count, tile), np.float32), np.zeros(tile, np.float32)
    shares, average = (
        np.zeros((count + 1, tile), np.float32),
        np.zeros((count + 1, tile), np.float32),
    )
    highest, spread = np.zeros(tile, np.float32), np.zeros(tile, np.float32)
    scratch = scratch_of(count, tile, 1)
    inverse = ONE / unit
    moved = ZERO
    for block in range(start, stop):
        i0 = block * tile
        size = min(tile, marginals.shape[0] - i0)
        away[:] = 0
        if not first:
            interact(i0, size, filters, compatibility, rows, flat, inverse, scratch, away, zero)
        for l in range(count):
            for t in range(size):
                if not first:
                    energies[l, i0 + t] = -away[l, t]
                    step = abs(away[l, t] + before[l, i0 + t])
                    moved = step if step > moved else moved
                    away[l, t] += centre[l, i0 + t]
                away[l, t] += logits[l, i0 + t]
        _average(away, averages, spreads, shares, highest, average, spread)
        for t in range(size):
            dissent[i0 + t] = highest[t]
            variance[i0 + t] = spread[t]
            total = ZERO
            for l in range(count + 1):
                total += average[l, t]
            norm = ONE / total
            if damping == 0 or first:
                for l in range(count):
                    flat[i0 + t, l] = fma(average[l + 1, t] * norm, unit, rounding)
                continue
            old = ONE
            total = ZERO
            for l in range(count):
                was = np.float32(flat[i0 + t, l]) * inverse
                old -= was
                further = fma(ONE - damping, average[l + 1, t] * norm - was, was)
                average[l + 1, t] = further if further > ZERO else ZERO
                total += average[l + 1, t]
            rest = fma(ONE - damping, average[0, t] * norm - old, old)
            total += rest if rest > ZERO else ZERO
            for l in range(count):
                flat[i0 + t, l] = fma(average[l + 1, t] / total, unit, rounding)
    return moved


@dataclass(frozen=True)
class AveragedPath:
    """An averaged mean field of T updates, in the engine's order."""

    energies: list[NDArray[np.float32]]  # (L−1, N): the pairwise energies of q̄ᵗ against label 0's
    marginals: list[NDArray[Any]]  # (N, L−1): q̄ᵗ in units of 1/unit
    unit: float
    dissent: NDArray[np.float32]  # (N,): the probability of another label at the last energies
    variance: NDArray[np.float32]  # (N,): of the marginals, over the noise

    def hold(self, places: NDArray[np.int64], order: NDArray[np.int64]) -> Hold:
        """Return what to hold where only the voxels at these places are active."""
        active = order[places]
        rising = np.argsort(active)
        here = places[rising]
        labels, voxels = self.energies[0].shape
        energies = np.zeros((len(self.energies), labels + 1, len(here)), dtype=np.float32)
        marginals = np.empty_like(energies)
        for t, (sent, q) in enumerate(zip(self.energies, self.marginals, strict=True)):
            energies[t, 1:] = sent[:, here]
            marginals[t, 1:] = q[here].T * np.float32(1 / self.unit)
            marginals[t, 0] = 1 - marginals[t, 1:].sum(axis=0)
        last = np.zeros((labels + 1, voxels), dtype=np.float32)
        last[1:, order] = self.energies[-1]
        return Hold(active[rising], energies, marginals, last)


def averaged_path(
    rule: HoldRule,
    logits: NDArray[np.float32],
    centre: NDArray[np.float32],
    buffers: Buffers,
    slices: Slices,
    compatibilities: Compatibilities,
    blur: Callable[[], None],
    unit: np.float32,
    rounding: np.float32,
    threads: Threads,
) -> AveragedPath:
    """Follow the averaged mean field of one problem; its buffers are used up.

    ``logits`` and ``centre`` (L−1, N) are those of ``follow``; ``blur`` takes the marginals in the
    buffers through every kernel's chain into their rows.
    """
    dissent, variance = np.empty((2, logits.shape[1]), dtype=np.float32)
    none = np.zeros_like(logits)

    def advance(
        before: NDArray[np.float32], sent: NDArray[np.float32], damping: float, *, first: bool
    ) -> float:
        moved = threads.run(
            follow,
            buffers.tiles,
            logits,
            centre,
            first,
            before,
            sent,
            (rule.table, rule.variances),
            slices,
            compatibilities,
            buffers.rows,
            buffers.marginals,
            unit,
            rounding,
            np.float32(damping),
            dissent,
            variance,
        )
        return float(max(moved))

    advance(none, none, 0.0, first=True)
    energies: list[NDArray[np.float32]] = []
    path: list[NDArray[Any]] = []
    for t in range(rule.iterations):
        path.append(buffers.marginals[:, :, 0].copy())
        blur()
        sent = np.empty_like(logits)
        before = energies[-1] if energies else none
        moved = advance(before, sent, in_turn(rule.dampings, t), first=False)
        energies.append(sent)
        if moved <= rule.still_nats:
            break
    return AveragedPath(energies, path, float(unit), dissent, variance)
