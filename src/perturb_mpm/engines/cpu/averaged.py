"""The averaged mean field, compiled: ``engines/averaging.py`` says what it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.engines.averaging import SPAN, STEP, HoldRule, in_turn
from perturb_mpm.engines.cpu.buffers import LANES, Buffers
from perturb_mpm.engines.cpu.compile import fma, kernel
from perturb_mpm.engines.cpu.groups import Compatibilities, Slices
from perturb_mpm.engines.cpu.held import HeldAverages
from perturb_mpm.engines.cpu.perturber import LN2, ROOT_HALF, bits_of_float, log2_of_bits
from perturb_mpm.engines.cpu.row_kernels import ONE, ZERO, exp_negative, interact, scratch_of
from perturb_mpm.engines.cpu.threads import Threads

# The pairwise energies of q̄ᵗ against label 0's, (L−1, N), and q̄ᵗ, (N, L−1).
AveragedStep = tuple[NDArray[np.float32], NDArray[Any]]

LEAST = np.float32(1e-37)
FIRST_GAP, PER_STEP = np.float32(SPAN), np.float32(1 / STEP)


@kernel
def _locate(logits, size, shares, highest, places):
    """Set ``places`` (L, lanes) to where in the table of h each label's average stands.

    ``shares`` becomes the softmax without its norm, ``highest`` what it leaves to all but the most
    probable label.
    """
    labels, lanes = places.shape
    total = np.empty(lanes, np.float32)
    for k in range(lanes):
        highest[k] = ZERO
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
    last = np.float32(size - 2)
    for l in range(labels):
        for k in range(lanes):
            others = total[k] - shares[l, k]
            others = others if others > LEAST else LEAST
            own = (logits[l - 1, k] if l else ZERO) - highest[k]
            gap = fma(-LN2, log2_of_bits(bits_of_float(others), ROOT_HALF), own)
            place = (gap + FIRST_GAP) * PER_STEP
            place = place if place > ZERO else ZERO
            places[l, k] = place if place < last else last
    for k in range(lanes):
        highest[k] = ONE - ONE / total[k]


@kernel
def _look_up(table, place):
    """Return what stands in a table at a place between two entries."""
    low = np.int64(place)
    return fma(place - np.float32(low), table[low + 1] - table[low], table[low])


@kernel
def judge(logits, centre, energies, spreads, dissent, variance, start, stop):
    """Find what voxels do with averaged ``energies`` (L−1, N), in some of them.

    ``logits`` and ``centre`` are those of ``follow``. ``dissent`` (N,) becomes the share that the
    softmax leaves to other labels, ``variance`` (N,) the largest of their marginals.
    """
    count = logits.shape[0]
    away = np.zeros((count, LANES), np.float32)
    shares, places = (
        np.zeros((count + 1, LANES), np.float32),
        np.zeros((count + 1, LANES), np.float32),
    )
    highest = np.zeros(LANES, np.float32)
    for i0 in range(start, stop, LANES):
        size = min(LANES, stop - i0)
        for l in range(count):
            for t in range(size):
                sent = centre[l, i0 + t] - energies[l, i0 + t]
                away[l, t] = sent + logits[l, i0 + t]
        _locate(away, spreads.size, shares, highest, places)
        for t in range(size):
            dissent[i0 + t] = highest[t]
            variance[i0 + t] = ZERO
        for l in range(count + 1):
            for t in range(size):
                spread = _look_up(spreads, places[l, t])
                variance[i0 + t] = spread if spread > variance[i0 + t] else variance[i0 + t]


@kernel
def follow(
    logits,
    centre,
    first,
    before,
    energies,
    averages,
    filters,
    compatibility,
    rows,
    marginals,
    following,
    unit,
    rounding,
    damping,
    start,
    stop,
):
    """Turn averaged ``marginals`` (N, L−1) into the ``following`` in some tiles of one problem.

    ``logits`` (L−1, N) are the unaries' log-odds against label 0 and ``centre`` (L−1, N) what is
    added to them, both in the engine's order. The ``first`` marginals are those of the logits
    alone. Later, the pairwise energies (L−1, N) of the present marginals are written beside those
    ``before``, and the largest difference of the two is returned. ``averages`` is the table of h.
    """
    count = logits.shape[0]
    tile = LANES
    away, zero = np.zeros((count, tile), np.float32), np.zeros(tile, np.float32)
    shares, average = (
        np.zeros((count + 1, tile), np.float32),
        np.zeros((count + 1, tile), np.float32),
    )
    highest = np.zeros(tile, np.float32)
    scratch = scratch_of(count, tile, 1)
    inverse = ONE / unit
    moved = ZERO
    for block in range(start, stop):
        i0 = block * tile
        size = min(tile, marginals.shape[0] - i0)
        away[:] = 0
        if not first:
            interact(
                i0, size, filters, compatibility, rows, marginals, inverse, scratch, away, zero
            )
        for l in range(count):
            for t in range(size):
                if not first:
                    energies[l, i0 + t] = -away[l, t]
                    step = abs(away[l, t] + before[l, i0 + t])
                    moved = step if step > moved else moved
                    away[l, t] += centre[l, i0 + t]
                away[l, t] += logits[l, i0 + t]
        _locate(away, averages.size, shares, highest, average)
        for l in range(count + 1):
            for t in range(size):
                average[l, t] = _look_up(averages, average[l, t])
        for t in range(size):
            total = ZERO
            for l in range(count + 1):
                total += average[l, t]
            norm = ONE / total
            if damping == 0 or first:
                for l in range(count):
                    following[i0 + t, l] = fma(average[l + 1, t] * norm, unit, rounding)
                continue
            old = ONE
            total = ZERO
            for l in range(count):
                was = np.float32(marginals[i0 + t, l]) * inverse
                old -= was
                further = fma(ONE - damping, average[l + 1, t] * norm - was, was)
                average[l + 1, t] = further if further > ZERO else ZERO
                total += average[l + 1, t]
            rest = fma(ONE - damping, average[0, t] * norm - old, old)
            total += rest if rest > ZERO else ZERO
            for l in range(count):
                following[i0 + t, l] = fma(average[l + 1, t] / total, unit, rounding)
    return moved


@kernel
def pick(sent, marginals, places, inverse, base, averages, start, stop):
    """Copy minus the energies (L−1, N) and the marginals (N, L−1) of some places: (L−1, A) each."""
    for a in range(start, stop):
        i = places[a]
        for l in range(base.shape[0]):
            base[l, a] = -sent[l, i]
            averages[l, a] = np.float32(marginals[i, l]) * inverse


@kernel
def furthest(tile, filters, compatibility, rows, marginals, nothing, unit, root, start, stop):
    """Return the largest root[i] times what the rows change of a pairwise energy, in some tiles.

    ``nothing`` are rows and marginals of zeros, where label 0 has every voxel.
    """
    no_rows, no_marginals = nothing
    count = marginals.shape[1]
    flat, no_flat = marginals.reshape(-1, count), no_marginals.reshape(-1, count)
    moved, unmoved = np.zeros((count, tile), np.float32), np.zeros((count, tile), np.float32)
    first, no_first = np.zeros(tile, np.float32), np.zeros(tile, np.float32)
    scratch = scratch_of(count, tile, 1)
    inverse = ONE / unit
    most = ZERO
    for block in range(start, stop):
        i0 = block * tile
        size = min(tile, marginals.shape[0] - i0)
        moved[:] = 0
        unmoved[:] = 0
        first[:] = 0
        no_first[:] = 0
        interact(i0, size, filters, compatibility, rows, flat, inverse, scratch, moved, first)
        interact(
            *(i0, size, filters, compatibility, no_rows, no_flat),
            *(inverse, scratch, unmoved, no_first),
        )
        for t in range(size):
            away = first[t] - no_first[t]
            far = abs(away)
            for l in range(count):
                step = abs(away - (moved[l, t] - unmoved[l, t]))
                far = step if step > far else far
            far *= root[i0 + t]
            most = far if far > most else most
    return most


@dataclass
class AveragedPath:
    """An averaged mean field of ``count`` updates, in the engine's order.

    ``logits`` and ``centre`` (L−1, N) are those of ``follow``; ``blur`` takes marginals through
    every kernel's chain into the rows of the buffers. Marginals are in units of 1/unit.
    """

    rule: HoldRule
    logits: NDArray[np.float32]
    centre: NDArray[np.float32]
    buffers: Buffers
    slices: Slices
    compatibilities: Compatibilities
    blur: Callable[[NDArray[Any]], None]
    unit: np.float32
    rounding: np.float32
    threads: Threads
    count: int = 0  # known when ``steps`` have come to their end

    def steps(self) -> Iterator[AveragedStep]:
        """Follow it from the start: the energies of q̄ᵗ, and q̄ᵗ itself, of each update t."""
        before = np.zeros(self.logits.shape, dtype=np.float32)
        q = np.empty(self.logits.shape[::-1], dtype=self.buffers.marginals.dtype)
        self._advance(before, before, q, q, 0.0, first=True)
        for t in range(self.rule.iterations):
            self.blur(q)
            sent, following = np.empty_like(before), np.empty_like(q)
            damping = in_turn(self.rule.dampings, t)
            moved = self._advance(before, sent, q, following, damping, first=False)
            self.count = t + 1
            yield sent, q
            if moved <= self.rule.still_nats:
                return
            before, q = sent, following

    def judged(self, last: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return what voxels do with the last energies, (N,) each.

        That is the probability of another label, and the variance of their marginals.
        """
        dissent, variance = np.empty((2, last.shape[1]), dtype=np.float32)
        arguments = (self.logits, self.centre, last, self.rule.variances, dissent, variance)
        self.threads.run(judge, last.shape[1], *arguments)
        return dissent, variance

    def held_at(self, places: NDArray[np.int64], steps: Iterable[AveragedStep]) -> HeldAverages:
        """Return what is held where only the voxels at these places are active, from all steps."""
        labels, voxels = self.logits.shape
        base, averages = np.empty((2, self.count, labels, len(places)), dtype=np.float32)
        others = np.ones(voxels, dtype=np.bool_)
        others[places] = False
        inverse = np.float32(1 / self.unit)
        rest = np.empty((labels, 0), dtype=np.float32)
        for t, (sent, marginals) in enumerate(steps):
            arguments = (sent, marginals, places, inverse, base[t], averages[t])
            self.threads.run(pick, len(places), *arguments)
            if t == len(base) - 1:
                rest = -sent[:, others]
        return HeldAverages(places, base, averages, rest)

    def _advance(
        self,
        before: NDArray[np.float32],
        sent: NDArray[np.float32],
        q: NDArray[Any],
        following: NDArray[Any],
        damping: float,
        *,
        first: bool,
    ) -> float:
        moved = self.threads.run(
            follow,
            self.buffers.tiles,
            self.logits,
            self.centre,
            first,
            before,
            sent,
            self.rule.table,
            self.slices,
            self.compatibilities,
            self.buffers.rows,
            q,
            following,
            self.unit,
            self.rounding,
            np.float32(damping),
        )
        return float(max(moved))
