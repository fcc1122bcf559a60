"""Compiled kernels that carry problems into the engine's layout and results out of it.

The layout of tiles and rows is described in ``row_kernels.py``. The engine walks through the voxels
in an order of its own; outside, arrays are in the order of the mask.
"""

from __future__ import annotations

import numpy as np

from perturb_mpm.engines.cpu.compile import kernel, narrowed, widened

ZERO = np.float32(0)
ONE = np.float32(1)


@kernel
def load_problem(source, order, energies, problem, problems, ceiling, start, stop):
    """Copy one problem's energies (L, N), against label 0's, to its place in the tiles.

    An energy more than ``ceiling`` above the voxel's lowest counts as that: a forbidden label must
    not use up the digits that tell the others apart.
    """
    tile = energies.shape[2] // problems
    for i in range(start, stop):
        lowest = source[0, order[i]]
        for l in range(1, source.shape[0]):
            lowest = min(lowest, source[l, order[i]])
        base = min(source[0, order[i]] - lowest, ceiling)
        lane = (i % tile) * problems + problem
        for l in range(energies.shape[1]):
            away = min(source[l + 1, order[i]] - lowest, ceiling) - base
            energies[i // tile, l, lane] = narrowed(away, energies[i // tile, l, lane])


@kernel
def shift_energies(energies, centre, order, problems, start, stop):
    """Take ``centre`` (L − 1, N) off the energies of every problem in some tiles."""
    tile = energies.shape[2] // problems
    for block in range(start, stop):
        i0 = block * tile
        for l in range(energies.shape[1]):
            for t in range(min(tile, order.size - i0)):
                taken = centre[l, order[i0 + t]]
                for k in range(t * problems, (t + 1) * problems):
                    left = widened(energies[block, l, k]) - taken
                    energies[block, l, k] = narrowed(left, energies[block, l, k])


@kernel
def load_marginals(source, order, marginals, labels, problem, unit, rounding, start, stop):
    """Copy one problem's marginals (L, N) to its place in every row."""
    for i in range(start, stop):
        best = 0
        for l in range(source.shape[0]):
            if source[l, order[i]] > source[best, order[i]]:
                best = l
            if l:
                marginals[i, l - 1, problem] = source[l, order[i]] * unit + rounding
        labels[i, problem] = best


@kernel
def unload_marginals(marginals, order, unit, out, start, stop):
    """Write marginals as (B, L, N) in the order of the voxels outside the engine."""
    inverse = ONE / unit
    for i in range(start, stop):
        for b in range(marginals.shape[2]):
            rest = ONE
            for l in range(marginals.shape[1]):
                share = np.float32(marginals[i, l, b]) * inverse
                out[b, l + 1, order[i]] = share
                rest -= share
            out[b, 0, order[i]] = max(rest, ZERO)


@kernel
def count_votes(labels, order, chosen, counts, start, stop):
    """Add the chosen problems' labels (N, B) to counts (L, N); return all label sizes, (B, L)."""
    problems = labels.shape[1]
    mine = np.zeros((problems, counts.shape[0]), np.int64)
    for i in range(start, stop):
        for b in range(problems):
            label = labels[i, b]
            counts[label, order[i]] += 1 if chosen[b] else 0
            mine[b, label] += 1
    return mine
