"""Compiled kernels of the update, over tiles of voxels and B problems at once.

For voxel i, label l ≥ 1 and problem b, with x the log-odds against label 0,

    x = base − energies − Σ_groups μ(K̂(Q − reference)),    Q ← softmax(sharpness·x).

``base`` and ``reference`` are those of a restricted problem (``restricted.py``): only some voxels
are updated there, and what the others send is in ``base``. Without them both are 0, which is the
whole problem. Each array is empty where there is none.

Label 0 is left out of every row: what the others leave of the row's sum is its value. A row
(L − 1, B) of a voxel or vertex is flat: entry l·B + b belongs to label l + 1 of problem b. Stored
marginals are Q − reference in the format of ``NumberFormat``; energies are float32 or half
precision. Sums are made by fused multiply-adds in a fixed order: a problem's result does not depend
on its index in a batch, on the batch's size or on the threads.

A tile has T voxels and T·B values for each label, so that inner loops are long enough for vector
instructions whatever B is. Loops index whole arrays by loop variables alone: a view costs more than
the work on a row, and a computed index keeps the compiler from using vectors.
"""

from __future__ import annotations

import numpy as np
from numba import int32

from perturb_mpm.engines.cpu.compile import bits_to_float, fma, kernel, widen
from perturb_mpm.engines.cpu.layout import Tile, Watch
from perturb_mpm.engines.cpu.vectors import NARROW, sum_narrow, write_received, write_sum

ZERO, ONE = np.float32(0), np.float32(1)
FIRST = np.int64(0)  # a literal 0 would be a type of its own, and compiled once more
# e^x = 2^n·e^r: n the nearest whole number to x·log2 e, ln 2 in two parts, and a series in r.
LOG2E = np.float32(1.4426950408889634)
LN2_HIGH, LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
NEAREST = np.float32(12582912.0)  # adding and subtracting 1.5·2^23 rounds to a whole number
SMALLEST = np.float32(-87.0)
EXP_SERIES = tuple(
    np.float32(each) for each in (1.3888889e-3, 8.3333333e-3, 4.1666668e-2, 0.16666667, 0.5, 1, 1)
)


@kernel
def exp_negative(x):
    """Compute e^x for x ≤ 0 to two units in the last place; 1.6e-38 below −87."""
    x = x if x > SMALLEST else SMALLEST
    whole = fma(x, LOG2E, NEAREST) - NEAREST
    rest = fma(whole, -LN2_HIGH, x)
    rest = fma(whole, -LN2_LOW, rest)
    p = fma(rest, EXP_SERIES[0], EXP_SERIES[1])
    p = fma(p, rest, EXP_SERIES[2])
    p = fma(p, rest, EXP_SERIES[3])
    p = fma(p, rest, EXP_SERIES[4])
    p = fma(p, rest, EXP_SERIES[5])
    p = fma(p, rest, EXP_SERIES[6])
    return p * bits_to_float(int32((int32(whole) + int32(127)) << int32(23)))


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
def combine(taps, source, target, rounding, start, stop):
    """Make each target row a combination of source rows: a sparse matrix times all columns.

    Sums are raised by ``rounding`` first; signed whole numbers take the nearest, others are cut.
    """
    pointers, columns, coefficients = taps
    end = pointers[stop]
    for v in range(start, stop):
        first, last = pointers[v], pointers[v + 1]
        write_sum(target, v, source, columns, coefficients, first, last, end, rounding)


@kernel
def combine_narrow(taps, source, target, rounding, start, stop):
    """Do what ``combine`` does for rows of at most four unsigned values, in a register."""
    pointers, columns, coefficients = taps
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
def _make_tile(labels, voxels, problems):
    """Take the working memory of tiles of so many voxels and L − 1 labels."""
    values = voxels * problems
    logits, old = np.zeros((labels, values), np.float32), np.zeros((labels, values), np.float32)
    reference = np.zeros((labels, voxels, problems), np.float32)
    zero, norm = np.zeros(values, np.float32), np.zeros(values, np.float32)
    received = np.zeros((voxels, labels * problems), np.float32)
    message, rest = np.zeros((labels, values), np.float32), np.zeros(values, np.float32)
    return Tile(
        logits,
        logits.reshape(labels, voxels, problems),
        old,
        old.reshape(labels, voxels, problems),
        reference,
        zero,
        zero.reshape(voxels, problems),
        np.zeros(values, np.float32),
        norm,
        norm.reshape(voxels, problems),
        np.zeros(voxels, np.float32),
        received,
        received.reshape(voxels, labels, problems),
        message,
        message.reshape(labels, voxels, problems),
        np.zeros(values, np.float32),
        rest,
        rest.reshape(voxels, problems),
    )


@kernel
def _make_watch(voxels, problems):
    """Take the memory of what a watched update finds."""
    best, was = np.zeros(voxels * problems, np.int32), np.zeros(voxels * problems, np.int32)
    return Watch(
        best,
        best.reshape(voxels, problems),
        was,
        was.reshape(voxels, problems),
        np.zeros(voxels * problems, np.float32),
        np.zeros((3, voxels * problems), np.float32),
    )


@kernel
def _receive(i0, count, first, last, blurred, flat_marginals, tile):
    """Set row t of ``received`` to Σ_e coefficients[i, e]·rows[columns[i, e]], i = i0 + t.

    Entries are those from ``first`` to before ``last``. What a voxel sends to itself, ``own[t]``
    times its present marginals, is added first. All voxels of a tile at once: a call for each
    would take longer than the sum.
    """
    slices, _, rows = blurred
    columns, coefficients, own, received = (
        slices.columns,
        slices.coefficients,
        tile.own,
        tile.received,
    )
    for t in range(count):
        write_received(
            *(received, t, own[t], flat_marginals, i0 + t),
            *(rows, columns, coefficients, first, last),
        )


@kernel
def _receive_narrow(i0, count, first, last, blurred, flat_marginals, tile):
    """Do what ``_receive`` does for rows of at most four values."""
    slices, _, rows = blurred
    columns, coefficients, own, received = (
        slices.columns,
        slices.coefficients,
        tile.own,
        tile.received,
    )
    width, entries = rows.shape[1], columns.shape[1]
    for t in range(count):
        i = i0 + t
        a = own[t] * np.float32(flat_marginals[i, 0])
        b = own[t] * np.float32(flat_marginals[i, 1]) if width > 1 else ZERO
        c = own[t] * np.float32(flat_marginals[i, 2]) if width > 2 else ZERO
        d = own[t] * np.float32(flat_marginals[i, 3]) if width > 3 else ZERO
        begin, end = i * entries + first, i * entries + last
        a, b, c, d = sum_narrow((a, b, c, d), rows, columns, coefficients, begin, end)
        received[t, 0] = a
        if width > 1:
            received[t, 1] = b
        if width > 2:
            received[t, 2] = c
        if width > 3:
            received[t, 3] = d


@kernel
def _to_tile(rows, first, count, factor, out):
    """Turn rows (·, L−1, B) of consecutive voxels into (L−1, T, B), times a factor."""
    labels, _, problems = out.shape
    if problems == 1:  # the long loop must be the inner one; four labels at once share their lines
        for l in range(0, labels - 3, 4):
            for t in range(count):
                out[l, t, 0] = np.float32(rows[first + t, l, 0]) * factor
                out[l + 1, t, 0] = np.float32(rows[first + t, l + 1, 0]) * factor
                out[l + 2, t, 0] = np.float32(rows[first + t, l + 2, 0]) * factor
                out[l + 3, t, 0] = np.float32(rows[first + t, l + 3, 0]) * factor
        for l in range(labels // 4 * 4, labels):
            for t in range(count):
                out[l, t, 0] = np.float32(rows[first + t, l, 0]) * factor
        return
    for t in range(count):
        for l in range(labels):
            for b in range(problems):
                out[l, t, b] = np.float32(rows[first + t, l, b]) * factor


@kernel
def _read_marginals(marginals, reference, i0, size, inverse, tile):
    """Set ``old`` to the marginals of a tile: what is stored, plus its reference."""
    labels, _, problems = tile.voxel_old.shape
    _to_tile(marginals, i0, size, inverse, tile.voxel_old)
    if reference.size:
        _spread_reference(reference, i0, size, tile.voxel_reference)
        for l in range(labels):
            for t in range(size):
                for b in range(problems):
                    stored = np.float32(marginals[i0 + t, l, b])
                    tile.voxel_old[l, t, b] = fma(stored, inverse, tile.voxel_reference[l, t, b])


@kernel
def _spread_reference(reference, i0, size, out):
    """Write the reference (V, L−1, 1 or B) of a tile's voxels as (L−1, T, B)."""
    labels, _, problems = out.shape
    shared = reference.shape[2] == 1
    for l in range(labels):
        for t in range(size):
            for b in range(problems):
                out[l, t, b] = reference[i0 + t, l, 0 if shared else b]


@kernel
def _write_marginals(tile, reference, i0, size, form, marginals):
    """Store the tile's probabilities, each times its norm, less their reference."""
    values, norm = tile.voxel_logits, tile.voxel_norm
    labels, _, problems = values.shape
    unit, rounding, signed = form
    if reference.size:
        _spread_reference(reference, i0, size, tile.voxel_reference)
        for t in range(size):
            for l in range(labels):
                for b in range(problems):
                    away = values[l, t, b] * norm[t, b] - tile.voxel_reference[l, t, b]
                    away = (away * unit + NEAREST) - NEAREST if signed else away
                    marginals[i0 + t, l, b] = away
        return
    if problems == 1:
        for l in range(0, labels - 3, 4):
            for t in range(size):
                i, own = i0 + t, norm[t, 0]
                marginals[i, l, 0] = fma(values[l, t, 0] * own, unit, rounding)
                marginals[i, l + 1, 0] = fma(values[l + 1, t, 0] * own, unit, rounding)
                marginals[i, l + 2, 0] = fma(values[l + 2, t, 0] * own, unit, rounding)
                marginals[i, l + 3, 0] = fma(values[l + 3, t, 0] * own, unit, rounding)
        for l in range(labels // 4 * 4, labels):
            for t in range(size):
                marginals[i0 + t, l, 0] = fma(values[l, t, 0] * norm[t, 0], unit, rounding)
        return
    for t in range(size):
        for l in range(labels):
            for b in range(problems):
                marginals[i0 + t, l, b] = fma(values[l, t, b] * norm[t, b], unit, rounding)


@kernel
def _begin_tile(block, i0, size, energies, base, tile):
    """Set the log-odds of a tile to base − energies, and label 0's to 0."""
    labels, values = tile.logits.shape
    problems = tile.voxel_logits.shape[2]
    for l in range(labels):
        for k in range(values):
            tile.logits[l, k] = -widen(energies[block, l, k])
    if base.size:
        for l in range(labels):
            for t in range(size):
                known = base[i0 + t, l]
                for b in range(problems):
                    tile.voxel_logits[l, t, b] += known


@kernel
def _interact(i0, count, blurred, flat_marginals, inverse, tile):
    """Subtract the pairwise energy of a tile's voxels from their log-odds against label 0.

    ``zero`` is raised by label 0's own pairwise energy.
    """
    slices, compatibilities, rows = blurred
    potts, matrices, offsets, firsts = compatibilities
    ends, totals, diagonals = slices.ends, slices.totals, slices.diagonals
    logits, message, zero = tile.logits, tile.message, tile.zero
    every, rest, voxel_rest, own = tile.every, tile.rest, tile.voxel_rest, tile.own
    labels, values = logits.shape
    problems = voxel_rest.shape[1]
    first = FIRST
    for g in range(ends.size):
        last = ends[g]
        for t in range(count):
            own[t] = -diagonals[g, i0 + t] * inverse
            left = totals[g, i0 + t] - diagonals[g, i0 + t]
            for b in range(problems):
                voxel_rest[t, b] = left
        if rows.shape[1] <= NARROW:
            _receive_narrow(i0, count, first, last, blurred, flat_marginals, tile)
        else:
            _receive(i0, count, first, last, blurred, flat_marginals, tile)
        _to_tile(tile.voxel_received, FIRST, count, ONE, tile.voxel_message)
        first = last
        for k in range(values):
            every[k] = message[0, k]
        for l in range(1, labels):
            for k in range(values):
                every[k] += message[l, k]
        if potts[g]:
            for k in range(values):
                zero[k] += every[k]
                every[k] -= rest[k]
            for l in range(labels):
                for k in range(values):
                    logits[l, k] += message[l, k] + every[k]
            continue
        for k in range(values):
            zero[k] = fma(firsts[g, 0], rest[k] - every[k], zero[k])
        for l in range(labels):
            constant, above = -offsets[g, l], firsts[g, l + 1]
            for k in range(values):
                zero[k] = fma(above, message[l, k], zero[k])
                logits[l, k] = fma(constant, rest[k], logits[l, k])
            for m in range(labels):
                weight = -matrices[g, l, m]
                for k in range(values):
                    logits[l, k] = fma(weight, message[m, k], logits[l, k])


@kernel
def _exponentiate(tile, sharpness):
    """Turn log-odds against label 0 into unnormalised probabilities, ``zero`` into label 0's.

    ``norm`` becomes what normalises them.
    """
    logits, zero, highest, norm = tile.logits, tile.zero, tile.highest, tile.norm
    labels, values = logits.shape
    if sharpness != 1:
        for l in range(labels):
            for k in range(values):
                logits[l, k] *= sharpness
    for k in range(values):
        highest[k] = logits[0, k] if logits[0, k] > ZERO else ZERO
    for l in range(1, labels):
        for k in range(values):
            highest[k] = logits[l, k] if logits[l, k] > highest[k] else highest[k]
    for k in range(values):
        zero[k] = exp_negative(-highest[k])
        norm[k] = zero[k]
    for l in range(labels):
        for k in range(values):
            logits[l, k] = exp_negative(logits[l, k] - highest[k])
            norm[k] += logits[l, k]
    for k in range(values):
        norm[k] = ONE / norm[k]


@kernel
def _find_labels(tile, best):
    """Find the most probable label of every value, the lowest of equals."""
    shares, zero, highest = tile.logits, tile.zero, tile.highest
    labels, values = shares.shape
    for k in range(values):
        highest[k] = zero[k]
        best[k] = 0
    for l in range(labels):
        label = int32(l + 1)
        for k in range(values):
            share = shares[l, k]
            best[k] = label if share > highest[k] else best[k]
            highest[k] = share if share > highest[k] else highest[k]


@kernel
def _relax(tile, keep):
    """Move marginals to old + keep·(new − old), new being probabilities times their norm.

    With keep > 1 that goes beyond the new ones: below 0 counts as 0, and where labels 1 … L − 1
    have more than 1 together they share it. ``norm`` becomes 1, and ``zero`` what is left for
    label 0.
    """
    shares, old, zero, norm = tile.logits, tile.old, tile.zero, tile.norm
    labels, values = shares.shape
    if keep < ONE:
        for k in range(values):
            zero[k] = 1
        for l in range(labels):
            for k in range(values):
                shares[l, k] = fma(keep, shares[l, k] * norm[k] - old[l, k], old[l, k])
                zero[k] -= shares[l, k]
        for k in range(values):
            norm[k] = 1
        return
    for l in range(labels):
        for k in range(values):
            further = fma(keep, shares[l, k] * norm[k] - old[l, k], old[l, k])
            shares[l, k] = further if further > ZERO else ZERO
    for k in range(values):
        zero[k] = shares[0, k]
    for l in range(1, labels):
        for k in range(values):
            zero[k] += shares[l, k]
    for k in range(values):
        norm[k] = ONE / zero[k] if zero[k] > ONE else ONE
        zero[k] = ONE - zero[k] if zero[k] < ONE else ZERO
    for l in range(labels):
        for k in range(values):
            shares[l, k] *= norm[k]
    for k in range(values):
        norm[k] = ONE


@kernel
def _watch(used, tile, seen):
    """Find the labels of a tile, and note how far its marginals moved and which labels changed."""
    shares, norm, old, highest = tile.logits, tile.norm, tile.old, tile.highest
    best, was, moved, found = seen.best, seen.was, seen.moved, seen.found
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
    _find_labels(tile, best)
    for k in range(used):
        found[0, k] = moved[k] if moved[k] > found[0, k] else found[0, k]
        counted = moved[k] if best[k] + was[k] > 0 else ZERO
        found[1, k] = counted if counted > found[1, k] else found[1, k]
        found[2, k] += ONE if best[k] != was[k] else ZERO


@kernel
def _sum_changes(found, problems):
    """Return what was found of each problem, (B,): largest changes, and how many labels changed."""
    overall, inside = np.zeros(problems, np.float32), np.zeros(problems, np.float32)
    switched = np.zeros(problems, np.float32)
    for k in range(found.shape[1]):
        b = k % problems
        overall[b] = max(overall[b], found[0, k])
        inside[b] = max(inside[b], found[1, k])
        switched[b] += found[2, k]
    return overall, inside, switched


@kernel
def update(problem, blurred, marginals, labels, how, start, stop):
    """Update the marginals (V, L−1, B) of some tiles once, in place, from the blurred rows.

    Where it is watched, the labels (V, B) are updated too, and of each problem, (B,), the largest
    change of a marginal, the same in the foreground and the number of labels that changed are
    returned; else zeros.
    """
    energies, base, before, after = problem
    form, step = how
    damping, sharpness, watched = step
    voxels, count, problems = marginals.shape
    size_of_tile = energies.shape[2] // problems
    flat_marginals = marginals.reshape(voxels, count * problems)
    tile, seen = _make_tile(count, size_of_tile, problems), _make_watch(size_of_tile, problems)
    inverse = ONE / form.unit
    for block in range(start, stop):
        i0 = block * size_of_tile
        size = min(size_of_tile, voxels - i0)
        _begin_tile(block, i0, size, energies, base, tile)
        _interact(i0, size, blurred, flat_marginals, inverse, tile)
        _exponentiate(tile, sharpness)
        if damping != 0 or watched:
            _read_marginals(marginals, before, i0, size, inverse, tile)
        if damping != 0:
            _relax(tile, ONE - damping)
        _write_marginals(tile, after, i0, size, form, marginals)
        if not watched:
            continue
        for t in range(size):
            for b in range(problems):
                seen.voxel_was[t, b] = labels[i0 + t, b]
        _watch(size * problems, tile, seen)
        for t in range(size):
            for b in range(problems):
                labels[i0 + t, b] = seen.voxel_best[t, b]
    return _sum_changes(seen.found, problems)


@kernel
def begin(problem, marginals, labels, form, sharpness, start, stop):
    """Start every problem at softmax(sharpness·(base − energies)), less the reference."""
    energies, base, _, reference = problem
    voxels, count, problems = marginals.shape
    size_of_tile = energies.shape[2] // problems
    tile = _make_tile(count, size_of_tile, problems)
    best = np.empty(size_of_tile * problems, np.int32)
    voxel_best = best.reshape(size_of_tile, problems)
    for block in range(start, stop):
        i0 = block * size_of_tile
        size = min(size_of_tile, voxels - i0)
        _begin_tile(block, i0, size, energies, base, tile)
        _exponentiate(tile, sharpness)
        _find_labels(tile, best)
        _write_marginals(tile, reference, i0, size, form, marginals)
        for t in range(size):
            for b in range(problems):
                labels[i0 + t, b] = voxel_best[t, b]


@kernel
def pairwise(size_of_tile, blurred, marginals, unit, order, out, start, stop):
    """Write the pairwise energies of every voxel of some tiles: out (B, L, N)."""
    voxels, count, problems = marginals.shape
    flat_marginals = marginals.reshape(voxels, count * problems)
    tile = _make_tile(count, size_of_tile, problems)
    inverse = ONE / unit
    for block in range(start, stop):
        i0 = block * size_of_tile
        size = min(size_of_tile, voxels - i0)
        tile.logits[:] = 0
        tile.zero[:] = 0
        _interact(i0, size, blurred, flat_marginals, inverse, tile)
        for t in range(size):
            for b in range(problems):
                first = tile.voxel_zero[t, b]
                out[b, 0, order[i0 + t]] = first
                for l in range(count):
                    out[b, l + 1, order[i0 + t]] = first - tile.voxel_logits[l, t, b]


@kernel
def conditional(problem, blurred, marginals, unit, chosen, order, out, start, stop):
    """Add softmax(base − energies − pairwise) of chosen problems, in 2⁻³⁰, to out (L, N).

    The energies are those of all problems without their voxel noise.
    """
    energies, base, _, _ = problem
    voxels, count, problems = marginals.shape
    size_of_tile = energies.shape[2] // problems
    flat_marginals = marginals.reshape(voxels, count * problems)
    tile = _make_tile(count, size_of_tile, problems)
    inverse, whole = ONE / unit, float(1 << 30)
    for block in range(start, stop):
        i0 = block * size_of_tile
        size = min(size_of_tile, voxels - i0)
        _begin_tile(block, i0, size, energies, base, tile)
        _interact(i0, size, blurred, flat_marginals, inverse, tile)
        _exponentiate(tile, ONE)
        for t in range(size):
            for l in range(count):
                total = np.int64(0)
                for b in range(problems):
                    share = tile.voxel_logits[l, t, b] * tile.voxel_norm[t, b]
                    units = np.int64(np.float64(share) * whole + 0.5)
                    total += units if chosen[b] else 0
                out[l + 1, order[i0 + t]] += total
            total = np.int64(0)
            for b in range(problems):
                share = tile.voxel_zero[t, b] * tile.voxel_norm[t, b]
                units = np.int64(np.float64(share) * whole + 0.5)
                total += units if chosen[b] else 0
            out[0, order[i0 + t]] += total
