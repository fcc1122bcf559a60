"""Compiled kernels over rows of values: B problems × (L − 1) labels lie side by side in a row.

Label 0 is left out of every row: what the others leave of the row's sum is its value. In a row,
entry l·B + b belongs to label l + 1 of problem b. Rows are float32, or 16-bit whole numbers in
units of 1/65535; energies are float32 or half precision. Sums are made by fused multiply-adds in a
fixed order: a problem's result does not depend on its place in a batch, on the batch's size or on
the threads.

The update works on tiles of T voxels, with T·B lanes for each label, so that its inner loops are
long enough for vector instructions whatever B is. Loops index whole arrays by loop variables
alone: a view costs more than the work on a row, and a computed index keeps the compiler from using
vectors.
"""

from __future__ import annotations

import numpy as np
from numba import int32

from perturb_mpm.engines.cpu.compile import float_of_bits, fma, kernel, widened
from perturb_mpm.engines.cpu.transfer import take_off
from perturb_mpm.engines.cpu.vectors import (
    EXP_SERIES,
    LN2_HIGH,
    LN2_LOW,
    LOG2E,
    NARROW,
    ROUND,
    SMALLEST,
    sum_narrow,
    write_received,
    write_sum,
)

ZERO = np.float32(0)
ONE = np.float32(1)


@kernel
def exp_negative(x):
    """Compute e^x for x ≤ 0 to two units in the last place; 1.6e-38 below −87."""
    x = x if x > SMALLEST else SMALLEST
    whole = fma(x, LOG2E, ROUND) - ROUND
    rest = fma(whole, -LN2_HIGH, x)
    rest = fma(whole, -LN2_LOW, rest)
    p = fma(rest, EXP_SERIES[0], EXP_SERIES[1])
    p = fma(p, rest, EXP_SERIES[2])
    p = fma(p, rest, EXP_SERIES[3])
    p = fma(p, rest, EXP_SERIES[4])
    p = fma(p, rest, EXP_SERIES[5])
    p = fma(p, rest, EXP_SERIES[6])
    return p * float_of_bits(int32((int32(whole) + int32(127)) << int32(23)))


@kernel
def foreground(energies, order, out, start, stop):
    """Write what softmax(−energies), (L, N), leaves to labels 1 … L − 1, in the engine's order."""
    for i in range(start, stop):
        lowest = np.float32(energies[0, order[i]])
        for l in range(1, energies.shape[0]):
            lowest = min(lowest, np.float32(energies[l, order[i]]))
        total = ZERO
        for l in range(energies.shape[0]):
            total += exp_negative(lowest - np.float32(energies[l, order[i]]))
        out[i] = ONE - exp_negative(lowest - np.float32(energies[0, order[i]])) / total


@kernel
def combine(pointers, columns, coefficients, source, target, rounding, start, stop):
    """Make each target row a combination of source rows: a sparse matrix times all columns.

    Sums are raised by ``rounding`` first; signed whole numbers take the nearest, others are cut.
    """
    end = pointers[stop]
    for v in range(start, stop):
        first, last = pointers[v], pointers[v + 1]
        write_sum(target, v, source, columns, coefficients, first, last, end, rounding)


@kernel
def combine_narrow(pointers, columns, coefficients, source, target, rounding, start, stop):
    """Do what ``combine`` does for rows of at most four values, which stay in a register."""
    width = source.shape[1]
    for v in range(start, stop):
        a, b, c, d = sum_narrow(
            (ZERO, ZERO, ZERO, ZERO), source, columns, coefficients, pointers[v], pointers[v + 1]
        )
        target[v, 0] = a + rounding
        if width > 1:
            target[v, 1] = b + rounding
        if width > 2:
            target[v, 2] = c + rounding
        if width > 3:
            target[v, 3] = d + rounding


@kernel
def _receive(i0, count, own, first, last, columns, coefficients, rows, marginals, message):
    """Set row t of ``message`` to Σ_e coefficients[i, e]·rows[columns[i, e]], i = i0 + t.

    Entries are those from ``first`` to before ``last``. What a voxel sends to itself, ``own[i]``
    times its present marginals, is added first. All voxels of a tile at once: a call for each
    would take longer than the sum.
    """
    for t in range(count):
        write_received(
            *(message, t, own[t], marginals, i0 + t, rows, columns, coefficients, first, last)
        )


@kernel
def _receive_narrow(i0, count, own, first, last, columns, coefficients, rows, marginals, message):
    """Do what ``_receive`` does for rows of at most four values."""
    width, entries = rows.shape[1], columns.shape[1]
    for t in range(count):
        i = i0 + t
        a = own[t] * np.float32(marginals[i, 0])
        b = own[t] * np.float32(marginals[i, 1]) if width > 1 else ZERO
        c = own[t] * np.float32(marginals[i, 2]) if width > 2 else ZERO
        d = own[t] * np.float32(marginals[i, 3]) if width > 3 else ZERO
        begin, end = i * entries + first, i * entries + last
        a, b, c, d = sum_narrow((a, b, c, d), rows, columns, coefficients, begin, end)
        message[t, 0] = a
        if width > 1:
            message[t, 1] = b
        if width > 2:
            message[t, 2] = c
        if width > 3:
            message[t, 3] = d


@kernel
def _to_lanes(rows, first, count, factor, lanes):
    """Turn rows (·, L−1, B) of consecutive voxels into lanes (L−1, T, B), times a factor."""
    labels, _, problems = lanes.shape
    if problems == 1:  # the long loop must be the inner one
        for l in range(labels):
            for t in range(count):
                lanes[l, t, 0] = np.float32(rows[first + t, l, 0]) * factor
        return
    for t in range(count):
        for l in range(labels):
            for b in range(problems):
                lanes[l, t, b] = np.float32(rows[first + t, l, b]) * factor


@kernel
def _to_rows(lanes, norm, first, count, unit, rounding, rows):
    """Write lanes (L−1, T, B), each times its norm (T, B), to the rows of consecutive voxels."""
    labels, _, problems = lanes.shape
    if problems == 1:
        for l in range(labels):
            for t in range(count):
                rows[first + t, l, 0] = fma(lanes[l, t, 0] * norm[t, 0], unit, rounding)
        return
    for t in range(count):
        for l in range(labels):
            for b in range(problems):
                rows[first + t, l, b] = fma(lanes[l, t, b] * norm[t, b], unit, rounding)


@kernel
def interact(
    i0, count, filters, compatibility, rows, flat_marginals, inverse, scratch, logits, zero
):
    """Subtract the pairwise energy of a tile of voxels from its log-odds against label 0.

    ``zero`` is raised by label 0's own pairwise energy. ``filters`` and ``compatibility`` are
    described in ``groups.py``.
    """
    columns, coefficients, ends, totals, diagonals = filters
    potts, matrices, offsets, firsts = compatibility
    own, received, shaped, message, spread, every, rest, shaped_rest = scratch
    labels, lanes = logits.shape
    problems = shaped.shape[2]
    first = 0
    for g in range(ends.size):
        last = ends[g]
        for t in range(count):
            own[t] = -diagonals[g, i0 + t] * inverse
            left = totals[g, i0 + t] - diagonals[g, i0 + t]
            for b in range(problems):
                shaped_rest[t, b] = left
        if rows.shape[1] <= NARROW:
            _receive_narrow(
                i0, count, own, first, last, columns, coefficients, rows, flat_marginals, received
            )
        else:
            _receive(
                i0, count, own, first, last, columns, coefficients, rows, flat_marginals, received
            )
        _to_lanes(shaped, 0, count, ONE, spread)
        first = last
        for k in range(lanes):
            every[k] = message[0, k]
        for l in range(1, labels):
            for k in range(lanes):
                every[k] += message[l, k]
        if potts[g]:
            for k in range(lanes):
                zero[k] += every[k]
                every[k] -= rest[k]
            for l in range(labels):
                for k in range(lanes):
                    logits[l, k] += message[l, k] + every[k]
            continue
        for k in range(lanes):
            zero[k] = fma(firsts[g, 0], rest[k] - every[k], zero[k])
        for l in range(labels):
            constant, above = -offsets[g, l], firsts[g, l + 1]
            for k in range(lanes):
                zero[k] = fma(above, message[l, k], zero[k])
                logits[l, k] = fma(constant, rest[k], logits[l, k])
            for m in range(labels):
                weight = -matrices[g, l, m]
                for k in range(lanes):
                    logits[l, k] = fma(weight, message[m, k], logits[l, k])


@kernel
def scratch_of(count, tile, problems):
    """Make room for what ``interact`` works on."""
    lanes = tile * problems
    received = np.zeros((tile, count * problems), np.float32)
    message = np.zeros((count, lanes), np.float32)
    every, rest = np.zeros(lanes, np.float32), np.zeros(lanes, np.float32)
    return (
        np.zeros(tile, np.float32),
        received,
        received.reshape(tile, count, problems),
        message,
        message.reshape(count, tile, problems),
        every,
        rest,
        rest.reshape(tile, problems),
    )


@kernel
def exponentials(logits, sharpness, zero, highest, norm):
    """Turn log-odds against label 0 into unnormalised probabilities, ``zero`` into label 0's.

    ``norm`` becomes what normalises them.
    """
    labels, lanes = logits.shape
    if sharpness != 1:
        for l in range(labels):
            for k in range(lanes):
                logits[l, k] *= sharpness
    for k in range(lanes):
        highest[k] = logits[0, k] if logits[0, k] > ZERO else ZERO
    for l in range(1, labels):
        for k in range(lanes):
            highest[k] = logits[l, k] if logits[l, k] > highest[k] else highest[k]
    for k in range(lanes):
        zero[k] = exp_negative(-highest[k])
        norm[k] = zero[k]
    for l in range(labels):
        for k in range(lanes):
            logits[l, k] = exp_negative(logits[l, k] - highest[k])
            norm[k] += logits[l, k]
    for k in range(lanes):
        norm[k] = ONE / norm[k]


@kernel
def most_probable(shares, zero, best, highest):
    """Find the most probable label of every lane, the lowest of equals."""
    labels, lanes = shares.shape
    for k in range(lanes):
        highest[k] = zero[k]
        best[k] = 0
    for l in range(labels):
        label = int32(l + 1)
        for k in range(lanes):
            share = shares[l, k]
            best[k] = label if share > highest[k] else best[k]
            highest[k] = share if share > highest[k] else highest[k]


@kernel
def relax(shares, norm, old, keep, zero):
    """Go beyond the new marginals, shares times norm: old + keep·(new − old), keep > 1.

    Below 0 counts as 0, and where labels 1 … L − 1 have more than 1 together they share it.
    ``norm`` becomes 1, and ``zero`` what is left for label 0.
    """
    labels, lanes = shares.shape
    for l in range(labels):
        for k in range(lanes):
            further = fma(keep, shares[l, k] * norm[k] - old[l, k], old[l, k])
            shares[l, k] = further if further > ZERO else ZERO
    for k in range(lanes):
        zero[k] = shares[0, k]
    for l in range(1, labels):
        for k in range(lanes):
            zero[k] += shares[l, k]
    for k in range(lanes):
        norm[k] = ONE / zero[k] if zero[k] > ONE else ONE
        zero[k] = ONE - zero[k] if zero[k] < ONE else ZERO
    for l in range(labels):
        for k in range(lanes):
            shares[l, k] *= norm[k]
    for k in range(lanes):
        norm[k] = ONE


@kernel
def watch_of(tile, problems):
    """Make room for what ``watch`` finds: labels now and before, and three sums of each lane.

    Labels come first by voxel and problem, (T, B), then as lanes.
    """
    lanes = tile * problems
    best, was = np.zeros(lanes, np.int32), np.zeros(lanes, np.int32)
    return (
        best.reshape(tile, problems),
        was.reshape(tile, problems),
        best,
        was,
        np.empty(lanes, np.float32),
        np.zeros((3, lanes), np.float32),
    )


@kernel
def watch(used, shares, norm, old, zero, highest, seen):
    """Find the labels of a tile, and note how far its marginals moved and which labels changed.

    Marginals are shares times norm, and were ``old``; ``zero`` is label 0's share.
    """
    _, _, best, was, moved, found = seen
    # What the other labels' changes add up to is label 0's own.
    for k in range(used):
        highest[k] = 0
        moved[k] = 0
    for l in range(shares.shape[0]):
        for k in range(used):
            step = shares[l, k] * norm[k] - old[l, k]
            highest[k] += step
            moved[k] = abs(step) if abs(step) > moved[k] else moved[k]
    for k in range(used):
        moved[k] = abs(highest[k]) if abs(highest[k]) > moved[k] else moved[k]
    most_probable(shares, zero, best, highest)
    for k in range(used):
        found[0, k] = moved[k] if moved[k] > found[0, k] else found[0, k]
        counted = moved[k] if best[k] + was[k] > 0 else ZERO
        found[1, k] = counted if counted > found[1, k] else found[1, k]
        found[2, k] += ONE if best[k] != was[k] else ZERO


@kernel
def changes_of(seen, problems):
    """Return what was found of each problem, (B,): largest changes, and how many labels changed."""
    _, _, _, _, _, found = seen
    overall, inside = np.zeros(problems, np.float32), np.zeros(problems, np.float32)
    switched = np.zeros(problems, np.float32)
    for k in range(found.shape[1]):
        b = k % problems
        overall[b] = max(overall[b], found[0, k])
        inside[b] = max(inside[b], found[1, k])
        switched[b] += found[2, k]
    return overall, inside, switched


@kernel
def update(
    energies,
    filters,
    compatibility,
    rows,
    marginals,
    labels,
    unit,
    rounding,
    damping,
    sharpness,
    watched,
    start,
    stop,
):
    """Update the marginals of every voxel of some tiles once, in place, from the blurred rows.

    Where it is ``watched``, the labels are updated too, and of each problem, (B,), the largest
    change of a marginal, the same in the foreground and the number of labels that changed are
    returned; else zeros.
    """
    _, count, lanes = energies.shape
    problems = labels.shape[1]
    tile = lanes // problems
    flat_marginals = marginals.reshape(marginals.shape[0], count * problems)
    logits = np.empty((count, lanes), np.float32)
    shaped_logits = logits.reshape(count, tile, problems)
    old = np.zeros((count, lanes), np.float32)
    shaped_old = old.reshape(count, tile, problems)
    scratch = scratch_of(count, tile, problems)
    zero, highest = np.zeros(lanes, np.float32), np.empty(lanes, np.float32)
    norm = np.empty(lanes, np.float32)
    shaped_norm = norm.reshape(tile, problems)
    seen = watch_of(tile, problems)
    shaped_best, shaped_was = seen[0], seen[1]
    inverse = ONE / unit
    keep = ONE - damping
    for block in range(start, stop):
        i0 = block * tile
        size = min(tile, marginals.shape[0] - i0)
        for l in range(count):
            for k in range(lanes):
                logits[l, k] = -widened(energies[block, l, k])
        interact(
            i0, size, filters, compatibility, rows, flat_marginals, inverse, scratch, logits, zero
        )
        exponentials(logits, sharpness, zero, highest, norm)
        if damping != 0 or watched:
            _to_lanes(marginals, i0, size, inverse, shaped_old)
        if damping < 0:
            relax(logits, norm, old, keep, zero)
        if damping > 0:
            for k in range(lanes):
                zero[k] = 1
            for l in range(count):
                for k in range(lanes):
                    logits[l, k] = fma(keep, logits[l, k] * norm[k] - old[l, k], old[l, k])
                    zero[k] -= logits[l, k]
            for k in range(lanes):
                norm[k] = 1
        _to_rows(shaped_logits, shaped_norm, i0, size, unit, rounding, marginals)
        if not watched:
            continue
        for t in range(size):
            for b in range(problems):
                shaped_was[t, b] = labels[i0 + t, b]
        watch(size * problems, logits, norm, old, zero, highest, seen)
        for t in range(size):
            for b in range(problems):
                labels[i0 + t, b] = shaped_best[t, b]
    return changes_of(seen, problems)


@kernel
def pairwise(tile, filters, compatibility, rows, marginals, unit, order, out, start, stop):
    """Write the pairwise energies of every voxel of some tiles: out (B, L, N)."""
    _, count, problems = marginals.shape
    lanes = tile * problems
    flat_marginals = marginals.reshape(marginals.shape[0], count * problems)
    logits = np.empty((count, lanes), np.float32)
    shaped_logits = logits.reshape(count, tile, problems)
    scratch = scratch_of(count, tile, problems)
    zero = np.empty(lanes, np.float32)
    shaped_zero = zero.reshape(tile, problems)
    inverse = ONE / unit
    for block in range(start, stop):
        i0 = block * tile
        size = min(tile, marginals.shape[0] - i0)
        logits[:] = 0
        zero[:] = 0
        interact(
            i0, size, filters, compatibility, rows, flat_marginals, inverse, scratch, logits, zero
        )
        for t in range(size):
            for b in range(problems):
                out[b, 0, order[i0 + t]] = shaped_zero[t, b]
                for l in range(count):
                    out[b, l + 1, order[i0 + t]] = shaped_zero[t, b] - shaped_logits[l, t, b]


@kernel
def conditional(
    energies, filters, compatibility, rows, marginals, chosen, unit, whole, order, out, start, stop
):
    """Add softmax(−energies − pairwise) of chosen problems up, times ``whole``: out (L, N).

    ``energies`` are those of all problems without their voxel noise, in tiles.
    """
    _, count, problems = marginals.shape
    lanes = energies.shape[2]
    tile = lanes // problems
    flat_marginals = marginals.reshape(marginals.shape[0], count * problems)
    logits = np.empty((count, lanes), np.float32)
    shaped_logits = logits.reshape(count, tile, problems)
    scratch = scratch_of(count, tile, problems)
    zero, highest = np.zeros(lanes, np.float32), np.empty(lanes, np.float32)
    norm = np.empty(lanes, np.float32)
    shaped_zero, shaped_norm = zero.reshape(tile, problems), norm.reshape(tile, problems)
    inverse = ONE / unit
    for block in range(start, stop):
        i0 = block * tile
        size = min(tile, marginals.shape[0] - i0)
        for l in range(count):
            for k in range(lanes):
                logits[l, k] = -widened(energies[block, l, k])
        interact(
            i0, size, filters, compatibility, rows, flat_marginals, inverse, scratch, logits, zero
        )
        exponentials(logits, ONE, zero, highest, norm)
        for t in range(size):
            for l in range(count):
                total = np.int64(0)
                for b in range(problems):
                    share = shaped_logits[l, t, b] * shaped_norm[t, b]
                    units = np.int64(np.float64(share) * whole + 0.5)
                    total += units if chosen[b] else 0
                out[l + 1, order[i0 + t]] += total
            total = np.int64(0)
            for b in range(problems):
                share = shaped_zero[t, b] * shaped_norm[t, b]
                units = np.int64(np.float64(share) * whole + 0.5)
                total += units if chosen[b] else 0
            out[0, order[i0 + t]] += total


@kernel
def begin(energies, centre, order, marginals, labels, unit, rounding, sharpness, start, stop):
    """Start every problem at softmax(−sharpness·energies), and take ``centre`` off its energies.

    ``centre`` (L, N), in the order of the mask, is empty where there is none.
    """
    _, count, lanes = energies.shape
    problems = labels.shape[1]
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
        size = min(tile, marginals.shape[0] - i0)
        for l in range(count):
            for k in range(lanes):
                logits[l, k] = -widened(energies[block, l, k])
        if centre.size:
            take_off(energies, block, centre, order, i0, size, problems)
        exponentials(logits, sharpness, zero, highest, norm)
        most_probable(logits, zero, best, highest)
        _to_rows(shaped_logits, shaped_norm, i0, size, unit, rounding, marginals)
        for t in range(size):
            for b in range(problems):
                labels[i0 + t, b] = shaped_best[t, b]
