"""The update of a voxel in all problems of a batch at once, in registers from message to marginal.

``row_kernels.py`` says what is computed, and does it by passes over tiles, which serve any CRF.
Where all kernels are Potts', labels are few and problems many, one loop over a voxel's problems
makes everything instead: the loop over labels is unrolled, because ``each``, a tuple of L − 1
zeros, tells the compiler how many there are. Every number is made by the same operations in the
same order, so that it has the same bits. It takes a fifth of the time to compile, so that a first
run solves single problems with it too, and is done before the others are.
"""

from __future__ import annotations

import numpy as np
from numba import int32
from numba.cpython.unsafe.tuple import tuple_setitem

from perturb_mpm.engines.cpu.compile import disjoint_kernel, fma, kernel, widen
from perturb_mpm.engines.cpu.row_kernels import NEAREST, ONE, ZERO, exp_negative
from perturb_mpm.engines.cpu.vectors import write_received

LEAST_PROBLEMS = 8  # that fill a vector
MOST_LABELS = 3  # besides label 0: LLVM does not unroll loops over more, and makes no vectors


@kernel
def _softmax(x):
    """Return unnormalised probabilities of log-odds x, label 0's, and what normalises them."""
    highest = ZERO
    for l in range(len(x)):
        highest = x[l] if x[l] > highest else highest
    zero = exp_negative(-highest)
    total = zero
    for l in range(len(x)):
        share = exp_negative(x[l] - highest)
        total += share
        x = tuple_setitem(x, l, share)
    return x, zero, ONE / total


@kernel
def _read_row(values, i, each):
    """Return the values (V, L−1, 1) of voxel i that its problems share, 0 where there are none."""
    if values.size:
        for l in range(len(each)):
            each = tuple_setitem(each, l, values[i, l, 0])
    return each


@kernel
def _log_odds(given, received, b, each):
    """Return the log-odds of problem b at a voxel, before ``sharpness``."""
    energies, block, t, _, base = given
    message, left = received
    every = message[0, 0, b]
    for l in range(1, len(each)):
        every += message[0, l, b]
    every -= left
    for l in range(len(each)):
        x = -widen(energies[block, l, t, b]) + base[l]
        each = tuple_setitem(each, l, x + (message[0, l, b] + every))
    return each


@kernel
def _to_stored(value, reference, form):
    """Return a marginal less its reference in the format that it is stored in."""
    unit, rounding, signed = form
    away = value - reference
    return (away * unit + NEAREST) - NEAREST if signed else fma(away, unit, rounding)


@disjoint_kernel
def _update_voxel(given, received, sharpness, marginals, stored, each):
    """Update the marginals of a voxel to softmax(sharpness·x)."""
    i = given[3]
    form, _, after = stored
    for b in range(marginals.shape[2]):
        x = _log_odds(given, received, b, each)
        for l in range(len(each)):
            x = tuple_setitem(x, l, x[l] * sharpness)
        shares, _, norm = _softmax(x)
        for l in range(len(each)):
            marginals[i, l, b] = _to_stored(shares[l] * norm, after[l], form)


@disjoint_kernel
def _watch_voxel(given, received, step, marginals, stored, seen, each):
    """Update the marginals of a voxel, beyond softmax(sharpness·x) where damping < 0, and labels.

    ``seen`` are the labels and three (B,), which take the largest change of a marginal, the same in
    the foreground, and one more for a label that changed.
    """
    i = given[3]
    damping, sharpness, _ = step
    form, before, after = stored
    labels, overall, inside, switched = seen
    inverse, keep = ONE / form.unit, ONE - damping
    for b in range(marginals.shape[2]):
        x = _log_odds(given, received, b, each)
        for l in range(len(each)):
            x = tuple_setitem(x, l, x[l] * sharpness)
        shares, highest, norm = _softmax(x)
        old = new = each
        total = ZERO
        for l in range(len(each)):
            was = fma(np.float32(marginals[i, l, b]), inverse, before[l])
            further = fma(keep, shares[l] * norm - was, was)
            further = further if further > ZERO else ZERO
            total += further
            old, new = tuple_setitem(old, l, was), tuple_setitem(new, l, further)
        beyond = ONE / total if total > ONE else ONE
        if damping != ZERO:
            highest = ONE - total if total < ONE else ZERO
        best = moved = change = ZERO
        for l in range(len(each)):
            value = new[l] * beyond if damping != ZERO else shares[l] * norm
            share = value if damping != ZERO else shares[l]
            best = np.float32(l + 1) if share > highest else best
            highest = share if share > highest else highest
            marginals[i, l, b] = _to_stored(value, after[l], form)
            # What the other labels' changes add up to is label 0's own.
            one = value - old[l]
            change += one
            moved = abs(one) if abs(one) > moved else moved
        moved = abs(change) if abs(change) > moved else moved
        was_best = np.float32(labels[i, b])
        labels[i, b] = int32(best)
        counted = moved if best + was_best > ZERO else ZERO
        overall[b] = moved if moved > overall[b] else overall[b]
        inside[b] = counted if counted > inside[b] else inside[b]
        switched[b] += ONE if best != was_best else ZERO


@kernel
def update(problem, blurred, marginals, labels, how, each, start, stop):
    """Do what ``row_kernels.update`` does, for damping of at most 0 and references (V, L−1, 1)."""
    form, step = how
    energies, base, before, after = problem
    columns, coefficients, _, totals, diagonals = blurred.slices
    rows, entries = blurred.rows, columns.shape[1]
    voxels, count, problems = marginals.shape
    tile = energies.shape[2] // problems
    by_voxel = energies.reshape(energies.shape[0], count, tile, problems)
    known = base.reshape(base.shape[0], base.shape[1], 1)
    flat_marginals = marginals.reshape(voxels, count * problems)
    flat = np.empty((1, count * problems), np.float32)
    message = flat.reshape(1, count, problems)
    overall, inside = np.zeros(problems, np.float32), np.zeros(problems, np.float32)
    here, switched = np.zeros(problems, np.float32), np.zeros(problems)
    seen = (labels, overall, inside, here)
    inverse = ONE / form.unit
    for block in range(start, stop):
        i0 = block * tile
        for t in range(min(tile, voxels - i0)):
            i = i0 + t
            own = diagonals[0, i]
            write_received(
                *(flat, 0, -own * inverse, flat_marginals, i),
                *(rows, columns, coefficients, 0, entries),
            )
            given = (by_voxel, block, t, i, _read_row(known, i, each))
            received = (message, totals[0, i] - own)
            stored = (form, _read_row(before, i, each), _read_row(after, i, each))
            if step.watched or step.damping != ZERO:
                _watch_voxel(given, received, step, marginals, stored, seen, each)
            else:
                _update_voxel(given, received, step.sharpness, marginals, stored, each)
        for b in range(problems):  # float32 counts no further than 2^24
            switched[b] += here[b]
            here[b] = ZERO
    return overall, inside, switched


@disjoint_kernel
def _begin_tile(problem, tile, marginals, labels, stored, each):
    """Start a tile at softmax(sharpness·(−energies)), with its labels."""
    energies, sharpness = problem
    block, i0, size = tile
    form, reference = stored
    for t in range(size):
        row = _read_row(reference, i0 + t, each)
        for b in range(marginals.shape[2]):
            x = each
            for l in range(len(each)):
                x = tuple_setitem(x, l, -widen(energies[block, l, t, b]) * sharpness)
            shares, highest, norm = _softmax(x)
            best = ZERO
            for l in range(len(each)):
                best = np.float32(l + 1) if shares[l] > highest else best
                highest = shares[l] if shares[l] > highest else highest
                marginals[i0 + t, l, b] = _to_stored(shares[l] * norm, row[l], form)
            labels[i0 + t, b] = int32(best)


@kernel
def begin(problem, marginals, labels, form, sharpness, each, start, stop):
    """Do what ``row_kernels.begin`` does, for references (V, L−1, 1)."""
    energies, _, _, reference = problem
    voxels, count, problems = marginals.shape
    tile = energies.shape[2] // problems
    by_voxel = energies.reshape(energies.shape[0], count, tile, problems)
    for block in range(start, stop):
        i0 = block * tile
        size = min(tile, voxels - i0)
        stored = (form, reference)
        _begin_tile((by_voxel, sharpness), (block, i0, size), marginals, labels, stored, each)


@kernel
def pairwise(blurred, marginals, unit, order, out, start, stop):
    """Do what ``row_kernels.pairwise`` does, voxel by voxel, for any number of labels."""
    columns, coefficients, _, totals, diagonals = blurred.slices
    rows, entries = blurred.rows, columns.shape[1]
    voxels, count, problems = marginals.shape
    flat_marginals = marginals.reshape(voxels, count * problems)
    flat = np.empty((1, count * problems), np.float32)
    message = flat.reshape(count, problems)
    inverse = ONE / unit
    for i in range(start, stop):
        own = diagonals[0, i]
        write_received(
            *(flat, 0, -own * inverse, flat_marginals, i),
            *(rows, columns, coefficients, 0, entries),
        )
        left = totals[0, i] - own
        for b in range(problems):
            every = message[0, b]
            for l in range(1, count):
                every += message[l, b]
            rest = every - left
            out[b, 0, order[i]] = every
            for l in range(count):
                out[b, l + 1, order[i]] = every - (message[l, b] + rest)
