"""Compiled parts of the permutohedral lattice (Adams, Baek & Davis 2010).

The lattice lives in the d-dimensional plane of R^(d+1) whose coordinates sum to zero. A vertex x
has coordinates that are all congruent modulo d + 1, so c_j = (x_d − x_j) / (d + 1), j < d, are
whole numbers that name it. A step along direction a < d adds one to c_a, and a step along direction
d takes one from every c_j. Keys are linear in c: a neighbour's key is the vertex's plus a constant.
"""

from __future__ import annotations

import numpy as np
from numba import int64, uint64

from perturb_mpm.engines.cpu.compile import kernel

# Knuth's multiplicative hash: 2^64 over the golden ratio.
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
EMPTY = -1


@kernel
def embed(features, scale, strides, keys, weights, start, stop):
    """Find the simplex around each feature vector: keys (N, d+1) of its vertices, and weights.

    Everything up to the weights is in float32, in the order of the published algorithm, so that
    ties fall the same way and the vertices are the same.
    """
    d = features.shape[1]
    elevated = np.empty(d + 1, np.float32)
    cell = np.empty(d + 1, np.float32)
    rank = np.empty(d + 1, np.int64)
    holder = np.empty(d + 1, np.int64)
    barycentric = np.empty(d + 2, np.float32)
    size = np.float32(d + 1)
    inverse = np.float32(1) / size
    whole = int64(0)
    for j in range(d):
        whole += strides[j]
    for i in range(start, stop):
        tail = np.float32(0)
        for j in range(d, 0, -1):
            term = features[i, j - 1] * scale[j - 1]
            elevated[j] = tail - np.float32(j) * term
            tail += term
        elevated[0] = tail
        excess = 0
        for j in range(d + 1):
            cell[j] = np.rint(inverse * elevated[j])
            excess += int64(cell[j])
            rank[j] = 0
        for j in range(d):
            here = elevated[j] - cell[j] * size
            for k in range(j + 1, d + 1):
                if here < elevated[k] - cell[k] * size:
                    rank[j] += 1
                else:
                    rank[k] += 1
        for j in range(d + 1):
            rank[j] += excess
            if rank[j] < 0:
                rank[j] += d + 1
                cell[j] += 1
            elif rank[j] > d:
                rank[j] -= d + 1
                cell[j] -= 1
            holder[rank[j]] = j
        for j in range(d + 2):
            barycentric[j] = 0
        key = int64(0)
        for j in range(d + 1):
            share = (elevated[j] - cell[j] * size) * inverse
            barycentric[d - rank[j]] += share
            barycentric[d - rank[j] + 1] -= share
            if j < d:
                key += (int64(cell[d]) - int64(cell[j])) * strides[j]
        barycentric[0] += np.float32(1) + barycentric[d + 1]
        keys[i, 0] = key
        weights[i, 0] = max(barycentric[0], np.float32(0))
        for r in range(1, d + 1):
            direction = holder[d - r + 1]
            key += strides[direction] if direction < d else -whole
            keys[i, r] = key
            weights[i, r] = max(barycentric[r], np.float32(0))


@kernel
def find(table, ids, key):
    """Return the number of the vertex with this key, or EMPTY."""
    last = table.size - 1
    slot = _slot(key, last)
    while ids[slot] != EMPTY:
        if table[slot] == key:
            return ids[slot]
        slot = (slot + 1) & last
    return EMPTY


@kernel
def _slot(key, last):
    mixed = uint64(key) * GOLDEN
    return int64((mixed ^ (mixed >> uint64(32))) & uint64(last))


@kernel
def number(keys, table, ids, vertices, numbers):
    """Give the vertices of (M,) keys numbers by first touch; return how many there are.

    EMPTY is returned when ``vertices`` is too small.
    """
    last = table.size - 1
    count = 0
    for m in range(keys.size):
        key = keys[m]
        slot = _slot(key, last)
        while ids[slot] != EMPTY and table[slot] != key:
            slot = (slot + 1) & last
        if ids[slot] == EMPTY:
            if count == vertices.size:
                return EMPTY
            table[slot] = key
            ids[slot] = count
            vertices[count] = key
            count += 1
        numbers[m] = ids[slot]
    return count


@kernel
def missing_neighbours(vertices, table, ids, steps, wanted):
    """List the keys of absent vertices next to present ones; return how many were written.

    A key stands there once for each present neighbour. ``steps`` are the key steps of all 2(d+1)
    directions.
    """
    count = 0
    for v in range(vertices.size):
        for step in steps:
            key = vertices[v] + step
            if find(table, ids, key) == EMPTY:
                wanted[count] = key
                count += 1
    return count


@kernel
def neighbours(vertices, table, ids, steps, found, start, stop):
    """Find the vertices at the given key steps from each vertex, EMPTY where absent: (V, steps)."""
    for v in range(start, stop):
        for s in range(steps.size):
            found[v, s] = find(table, ids, vertices[v] + steps[s])
