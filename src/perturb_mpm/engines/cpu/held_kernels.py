"""Compiled kernels of samples whose held voxels follow an averaged mean field.

Rows, tiles and lanes are those of ``row_kernels.py``, over active voxels alone. What is filtered is
Qᵗ − q̄ᵗ, between −1 and 1: float32, or 16-bit whole numbers in units of 1/32767. A voxel that does
not count is exactly 0 there, so leaving out what is 0 changes no bit.
"""

from __future__ import annotations

import numpy as np
from numba import int32, uint32, uint64

from perturb_mpm.engines.cpu.compile import fma, kernel, widened
from perturb_mpm.engines.cpu.perturber import EVEN, LOW, WORD, philox
from perturb_mpm.engines.cpu.row_kernels import (
    ONE,
    ZERO,
    changes_of,
    exp_negative,
    exponentials,
    interact,
    most_probable,
    relax,
    scratch_of,
    watch,
    watch_of,
)
from perturb_mpm.engines.cpu.vectors import ROUND

BITS, ROUNDED = np.float32(2**15), np.float32(0.01)
LARGEST_BITS = 2**15 - 1
BLOCK = 32  # held voxels whose random words are in memory at once


@kernel
def mark_rows(pointers, columns, has_column, has_row, start, stop):
    """Mark the rows that have an entry in one of the marked columns."""
    for v in range(start, stop):
        found = False
        for e in range(pointers[v], pointers[v + 1]):
            found = found or has_column[columns[e]]
        has_row[v] = found


@kernel
def mark_columns(pointers, columns, has_row, has_column):
    """Mark the columns that one of the marked rows has an entry in."""
    for v in range(has_row.size):
        if has_row[v]:
            for e in range(pointers[v], pointers[v + 1]):
                has_column[columns[e]] = True


@kernel
def count_entries(pointers, columns, numbers, rows, counts, start, stop):
    """Count the entries of the chosen rows whose columns have a number, −1 meaning none."""
    for r in range(start, stop):
        total = 0
        for e in range(pointers[rows[r]], pointers[rows[r] + 1]):
            total += 1 if numbers[columns[e]] >= 0 else 0
        counts[r] = total


@kernel
def copy_entries(
    pointers,
    columns,
    coefficients,
    numbers,
    rows,
    new_pointers,
    new_columns,
    new_coefficients,
    start,
    stop,
):
    """Copy the entries of the chosen rows whose columns have a number, in their order."""
    for r in range(start, stop):
        place = new_pointers[r]
        for e in range(pointers[rows[r]], pointers[rows[r] + 1]):
            if numbers[columns[e]] >= 0:
                new_columns[place] = numbers[columns[e]]
                new_coefficients[place] = coefficients[e]
                place += 1


@kernel
def _to_deltas(lanes, norm, first, count, averages, unit, rounded, deltas):
    """Write lanes (L−1, T, B), each times its norm (T, B), less the averages of its voxel."""
    labels, _, problems = lanes.shape
    for t in range(count):
        for l in range(labels):
            average = averages[l, first + t]
            if rounded:
                for b in range(problems):
                    away = (lanes[l, t, b] * norm[t, b] - average) * unit
                    deltas[first + t, l, b] = (away + ROUND) - ROUND
            else:
                for b in range(problems):
                    deltas[first + t, l, b] = lanes[l, t, b] * norm[t, b] - average


@kernel
def begin_held(energies, averages, deltas, places, labels, unit, sharpness, rounded, start, stop):
    """Start every active voxel at softmax(−sharpness·energies), less the averages (L−1, A).

    Row ``places[a]`` of the labels (N, B) is that of active voxel a.
    """
    _, count, lanes = energies.shape
    problems = deltas.shape[2]
    tile = lanes // problems
    logits = np.empty((count, lanes), np.float32)
    shaped_logits = logits.reshape(count, tile, problems)
    zero, highest = np.empty(lanes, np.float32), np.empty(lanes, np.float32)
    norm = np.empty(lanes, np.float32)
    shaped_norm = norm.reshape(tile, problems)
    best = np.empty(lanes, np.int32)
    shaped_best = best.reshape(tile, problems)
    for block in range(start, stop):
        i0 = block * tile
        for l in range(count):
            for k in range(lanes):
                logits[l, k] = -widened(energies[block, l, k])
        exponentials(logits, sharpness, zero, highest, norm)
        most_probable(logits, zero, best, highest)
        size = min(tile, deltas.shape[0] - i0)
        _to_deltas(shaped_logits, shaped_norm, i0, size, averages, unit, rounded, deltas)
        for t in range(size):
            for b in range(problems):
                labels[places[i0 + t], b] = shaped_best[t, b]


@kernel
def _held_logits(block, i0, size, energies, base, logits, shaped_logits):
    """Set the log-odds of a tile to −energies, and add what ``base`` (L−1, A) says."""
    labels, lanes = logits.shape
    problems = shaped_logits.shape[2]
    for l in range(labels):
        for k in range(lanes):
            logits[l, k] = -widened(energies[block, l, k])
        for t in range(size):
            known = base[l, i0 + t]
            for b in range(problems):
                shaped_logits[l, t, b] += known


@kernel
def update_held(
    energies,
    base,
    before,
    after,
    filters,
    compatibility,
    rows,
    deltas,
    places,
    labels,
    unit,
    rounded,
    damping,
    sharpness,
    watched,
    start,
    stop,
):
    """Update the active voxels of some tiles once, in place, from the blurred rows.

    ``base`` (L−1, A) is what the averages q̄ᵗ add to the log-odds, ``before`` and ``after`` are q̄ᵗ
    and q̄ᵗ⁺¹. The rest is as in ``row_kernels.update``; ``places`` (A,) are the voxels' rows in
    ``labels`` (N, B).
    """
    _, count, lanes = energies.shape
    problems = labels.shape[1]
    tile = lanes // problems
    flat_deltas = deltas.reshape(deltas.shape[0], count * problems)
    logits = np.empty((count, lanes), np.float32)
    shaped_logits = logits.reshape(count, tile, problems)
    scratch = scratch_of(count, tile, problems)
    zero, highest = np.zeros(lanes, np.float32), np.empty(lanes, np.float32)
    norm = np.empty(lanes, np.float32)
    shaped_norm = norm.reshape(tile, problems)
    old = np.zeros((count, lanes), np.float32)
    shaped_old = old.reshape(count, tile, problems)
    seen = watch_of(tile, problems)
    shaped_best, shaped_was = seen[0], seen[1]
    inverse = ONE / unit
    for block in range(start, stop):
        i0 = block * tile
        size = min(tile, deltas.shape[0] - i0)
        _held_logits(block, i0, size, energies, base, logits, shaped_logits)
        interact(
            i0, size, filters, compatibility, rows, flat_deltas, inverse, scratch, logits, zero
        )
        exponentials(logits, sharpness, zero, highest, norm)
        if watched or damping < 0:
            for t in range(size):
                for l in range(count):
                    average = before[l, i0 + t]
                    for b in range(problems):
                        shaped_old[l, t, b] = fma(
                            np.float32(deltas[i0 + t, l, b]), inverse, average
                        )
        if damping < 0:
            relax(logits, norm, old, ONE - damping, zero)
        if watched:
            for t in range(size):
                for b in range(problems):
                    shaped_was[t, b] = labels[places[i0 + t], b]
            watch(size * problems, logits, norm, old, zero, highest, seen)
            for t in range(size):
                for b in range(problems):
                    labels[places[i0 + t], b] = shaped_best[t, b]
        _to_deltas(shaped_logits, shaped_norm, i0, size, after, unit, rounded, deltas)
    return changes_of(seen, problems)


@kernel
def limit_words(unaries, base, centre, order, margin, per_scale, lowest, most, likely, start, stop):
    """Set ``most`` (H, L) and ``likely`` (H,) as ``vote_certain`` takes them.

    ``unaries`` (L, N) and ``centre`` (L, N), or nothing, are in the order of the mask.
    """
    count = most.shape[1]
    gaps = np.empty(count, np.float32)
    for h in range(start, stop):
        i = order[h]
        first = np.float32(unaries[0, i])
        gaps[0] = ZERO
        best = 0
        for l in range(count - 1):
            gaps[l + 1] = np.float32(unaries[l + 1, i]) - first - base[l, h]
            if centre.size:
                gaps[l + 1] -= centre[l + 1, i] - centre[0, i]
            best = l + 1 if gaps[l + 1] < gaps[best] else best
        likely[h] = best
        for l in range(count):
            away = (gaps[l] - gaps[best] - margin) * per_scale + lowest
            share = exp_negative(-exp_negative(-away)) if away > ZERO else ZERO
            most[h, l] = np.int16(share * BITS - ROUNDED) - 1  # cut, and 1 less
        most[h, best] = LARGEST_BITS


@kernel
def vote_certain(
    most, likely, order, voxels, samples, key, antithetic, places, labels, doubtful, start, stop
):
    """Give held voxels their ``likely`` label where no sample's noise can change it.

    ``most`` (H, L) says how large the upper 15 bits of each label's random words may be there;
    where one is larger the voxel is marked as ``doubtful`` (H,). The words are those of
    ``perturber.perturb``.
    """
    count = most.shape[1]
    problems = samples.size
    lanes = BLOCK * problems
    index, high = np.empty(lanes, np.uint64), np.empty(lanes, np.uint64)
    shaped_index, shaped_high = index.reshape(BLOCK, problems), high.reshape(BLOCK, problems)
    sample, flip = np.empty(lanes, np.uint64), np.empty(problems, np.uint32)
    for k in range(lanes):
        sample[k] = samples[k % problems] & (EVEN if antithetic else LOW)
    for b in range(problems):
        flip[b] = LOW if antithetic and samples[b] & uint64(1) else uint64(0)
    words = np.empty((4, lanes), np.uint32)
    shaped_words = words.reshape(4, BLOCK, problems)
    found = np.empty(BLOCK, np.int32)
    for i0 in range(start, stop, BLOCK):
        size = min(BLOCK, stop - i0)
        for t in range(size):
            voxel = uint64(voxels[order[i0 + t]])
            found[t] = 0
            for b in range(problems):
                shaped_index[t, b] = voxel & LOW
                shaped_high[t, b] = voxel >> WORD
        for first in range(0, count, 4):
            philox(index, sample, high, uint64(first // 4), key, words, size * problems)
            for t in range(size):
                above = int32(0)
                for w in range(min(4, count - first)):
                    limit = int32(most[i0 + t, first + w])
                    for b in range(problems):
                        bits = uint32(shaped_words[w, t, b] ^ flip[b])
                        above |= int32(1) if int32(bits >> uint32(17)) > limit else int32(0)
                found[t] |= above
        for t in range(size):
            h = i0 + t
            doubtful[h] = found[t] > 0
            for b in range(problems):
                labels[places[h], b] = likely[h]


@kernel
def vote_held(energies, base, places, labels, start, stop):
    """Give held voxels the label that −energies + base (L−1, H) has."""
    _, count, lanes = energies.shape
    problems = labels.shape[1]
    tile = lanes // problems
    logits = np.empty((count, lanes), np.float32)
    shaped_logits = logits.reshape(count, tile, problems)
    zero, highest = np.zeros(lanes, np.float32), np.empty(lanes, np.float32)
    best = np.empty(lanes, np.int32)
    shaped_best = best.reshape(tile, problems)
    for block in range(start, stop):
        i0 = block * tile
        size = min(tile, places.size - i0)
        _held_logits(block, i0, size, energies, base, logits, shaped_logits)
        most_probable(logits, zero, best, highest)
        for t in range(size):
            i = places[i0 + t]
            for b in range(problems):
                labels[i, b] = shaped_best[t, b]


@kernel
def conditional_held(
    energies,
    base,
    filters,
    compatibility,
    rows,
    deltas,
    chosen,
    unit,
    whole,
    order,
    out,
    start,
    stop,
):
    """Add softmax(−energies − pairwise) of the chosen problems up at active voxels: out (L, N)."""
    _, count, problems = deltas.shape
    lanes = energies.shape[2]
    tile = lanes // problems
    flat_deltas = deltas.reshape(deltas.shape[0], count * problems)
    logits = np.empty((count, lanes), np.float32)
    shaped_logits = logits.reshape(count, tile, problems)
    scratch = scratch_of(count, tile, problems)
    zero, highest = np.zeros(lanes, np.float32), np.empty(lanes, np.float32)
    norm = np.empty(lanes, np.float32)
    shaped_zero, shaped_norm = zero.reshape(tile, problems), norm.reshape(tile, problems)
    inverse = ONE / unit
    for block in range(start, stop):
        i0 = block * tile
        size = min(tile, deltas.shape[0] - i0)
        _held_logits(block, i0, size, energies, base, logits, shaped_logits)
        interact(
            i0, size, filters, compatibility, rows, flat_deltas, inverse, scratch, logits, zero
        )
        exponentials(logits, ONE, zero, highest, norm)
        for t in range(size):
            for b in range(problems):
                if chosen[b]:
                    share = np.float64(shaped_zero[t, b] * shaped_norm[t, b])
                    out[0, order[i0 + t]] += np.int64(share * whole + 0.5)
                    for l in range(count):
                        share = np.float64(shaped_logits[l, t, b] * shaped_norm[t, b])
                        out[l + 1, order[i0 + t]] += np.int64(share * whole + 0.5)
