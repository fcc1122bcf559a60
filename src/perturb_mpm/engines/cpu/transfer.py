"""Compiled kernels that carry problems into the engine's layout and results out of it.

The layout of tiles and rows is described in ``row_kernels.py``. The engine walks through the voxels
in an order of its own; outside, arrays are in the order of the mask: voxel i of the engine is voxel
``order[i]`` there.
"""

from __future__ import annotations

import numpy as np

from perturb_mpm.engines.cpu.compile import kernel, narrow, widen

ZERO = np.float32(0)
ONE = np.float32(1)
NEAREST = np.float32(12582912.0)  # adding and subtracting 1.5·2^23 rounds to a whole number


@kernel
def load_problem(source, order, energies, problem, problems, ceiling, start, stop):
    """Copy energies (L, N) against label 0's to one of so many problems in the tiles.

    An energy more than ``ceiling`` above the voxel's lowest counts as that: a forbidden label must
    not use up the digits that tell the others apart.
    """
    labels, tile = source.shape[0], energies.shape[2] // problems
    given = np.empty((labels, tile), np.float32)
    lowest, base = np.empty(tile, np.float32), np.empty(tile, np.float32)
    for block in range(start // tile, (stop + tile - 1) // tile):
        i0, end = max(block * tile, start), min((block + 1) * tile, stop)
        count, first = end - i0, (i0 - block * tile) * problems + problem
        for l in range(labels):
            for t in range(count):
                given[l, t] = source[l, order[i0 + t]]
        for t in range(count):
            lowest[t] = given[0, t]
        for l in range(1, labels):
            for t in range(count):
                lowest[t] = given[l, t] if given[l, t] < lowest[t] else lowest[t]
        for t in range(count):
            base[t] = min(given[0, t] - lowest[t], ceiling)
        for l in range(labels - 1):
            for t in range(count):
                away = min(given[l + 1, t] - lowest[t], ceiling) - base[t]
                k = first + t * problems
                energies[block, l, k] = narrow(away, energies[block, l, k])


@kernel
def shift_energies(energies, centre, order, problems, start, stop):
    """Take ``centre`` (L, N), against label 0's, off the energies of some tiles."""
    tile = energies.shape[2] // problems
    for block in range(start, stop):
        i0 = block * tile
        for l in range(energies.shape[1]):
            for t in range(min(tile, order.size - i0)):
                i = order[i0 + t]
                taken = centre[l + 1, i] - centre[0, i]
                for k in range(t * problems, (t + 1) * problems):
                    left = widen(energies[block, l, k]) - taken
                    energies[block, l, k] = narrow(left, energies[block, l, k])


@kernel
def load_marginals(source, order, reference, form, marginals, labels, problem, start, stop):
    """Copy marginals (L, N), less their reference (V, L−1, 1), to one of the problems."""
    unit, rounding, signed = form
    for i in range(start, stop):
        best = 0
        for l in range(source.shape[0]):
            share = source[l, order[i]]
            if share > source[best, order[i]]:
                best = l
            if l and reference.size:
                away = (share - reference[i, l - 1, 0]) * unit
                marginals[i, l - 1, problem] = (away + NEAREST) - NEAREST if signed else away
            elif l:
                marginals[i, l - 1, problem] = share * unit + rounding
        labels[i, problem] = best


@kernel
def unload_marginals(marginals, reference, order, unit, out, start, stop):
    """Write marginals, plus their reference (V, L−1, 1 or B), as (B, N, L) at ``order``."""
    inverse = ONE / unit
    shared = reference.shape[2] == 1
    for i in range(start, stop):
        for b in range(marginals.shape[2]):
            rest = ONE
            for l in range(marginals.shape[1]):
                share = np.float32(marginals[i, l, b]) * inverse
                if reference.size:
                    share = max(share + reference[i, l, 0 if shared else b], ZERO)
                out[b, order[i], l + 1] = share
                rest -= share
            out[b, order[i], 0] = max(rest, ZERO)


@kernel
def sort_features(values, order, out, start, stop):
    """Write (N, d) values in the engine's order."""
    for i in range(start, stop):
        for j in range(out.shape[1]):
            out[i, j] = values[order[i], j]


@kernel
def count_votes(labels, order, chosen, counts, start, stop):
    """Add the chosen problems' labels (V, B) to counts (L, N); return all label sizes, (B, L).

    Labels (V, 1) are those of all problems.
    """
    problems = chosen.size
    mine = np.zeros((problems, counts.shape[0]), np.int64)
    alike = np.zeros(counts.shape[0], np.int64)
    taken = 0
    for b in range(problems):
        taken += 1 if chosen[b] else 0
    for i in range(start, stop):
        common, differs = labels[i, 0], np.uint8(0)
        for b in range(labels.shape[1]):
            differs |= labels[i, b] ^ common
        if not differs:  # as in most voxels
            counts[common, order[i]] += taken
            alike[common] += 1
            continue
        for b in range(problems):
            label = labels[i, b]
            counts[label, order[i]] += 1 if chosen[b] else 0
            mine[b, label] += 1
    for b in range(problems):
        for l in range(alike.size):
            mine[b, l] += alike[l]
    return mine


@kernel
def unload_labels(labels, order, out, start, stop):
    """Write labels (V, B), or (V, 1) of all problems, at ``order`` into out (B, N)."""
    last = labels.shape[1] - 1
    for i in range(start, stop):
        for b in range(len(out)):
            out[b, order[i]] = labels[i, min(b, last)]


@kernel
def narrow_rows(source, chosen, target, first, start, stop):
    """Copy some problems' values (N, L − 1, B) to rows of these alone, voxels from ``first`` on.

    Both may share memory, where no voxel is written over before it is copied.
    """
    for i in range(first + start, first + stop):
        for l in range(source.shape[1]):
            for k in range(chosen.size):
                target[i, l, k] = source[i, l, chosen[k]]


@kernel
def narrow_tiles(source, problems, chosen, target, first, start, stop):
    """Copy some problems' energies to tiles of these alone, from ``first`` on, with more voxels.

    Both may share memory, where no other tile is written over before it is copied.
    """
    tile, new_tile = source.shape[2] // problems, target.shape[2] // chosen.size
    copied = np.empty(target.shape[1:], source.dtype)
    for block in range(first + start, first + stop):
        copied[:] = 0
        for t in range(new_tile):
            i = block * new_tile + t
            if i // tile < source.shape[0]:
                k0 = (i % tile) * problems
                for l in range(source.shape[1]):
                    for k in range(chosen.size):
                        copied[l, t * chosen.size + k] = source[i // tile, l, k0 + chosen[k]]
        for l in range(target.shape[1]):
            for k in range(target.shape[2]):
                target[block, l, k] = copied[l, k]
