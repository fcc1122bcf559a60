"""Compiled building blocks of a filter: sparse matrices and the mass that flows through them."""

from __future__ import annotations

import numpy as np

from perturb_mpm.engines.cpu.compile import kernel


@kernel
def transpose(columns, weights, pointers, rows, transposed):
    """Turn (N, p) entries by row into lists by column, rows rising: a matrix into its transpose.

    ``pointers`` (V+1,) comes with zeros and is filled with where each list starts.
    """
    n, p = columns.shape
    count = pointers.size - 1
    for i in range(n):
        for r in range(p):
            pointers[columns[i, r] + 1] += 1
    for v in range(count):
        pointers[v + 1] += pointers[v]
    for i in range(n):
        for r in range(p):
            place = pointers[columns[i, r]]
            rows[place] = i
            transposed[place] = weights[i, r]
            pointers[columns[i, r]] += 1
    for v in range(count, 0, -1):
        pointers[v] = pointers[v - 1]
    pointers[0] = 0


@kernel
def parts_of(columns, size, marks, parts, owners):
    """Give numbers to the pairs of a block of ``size`` rows and a column that meet.

    ``parts`` (N, p) takes the number of each entry's pair, ``owners`` the column of each pair, and
    ``marks`` comes with −1 for every column. Returns how many there are, or −1 where ``owners``
    has no room for them.
    """
    n, p = columns.shape
    count = 0
    first = 0  # the first pair of the present block
    for i in range(n):
        if i % size == 0:
            first = count
        for r in range(p):
            v = columns[i, r]
            if marks[v] < first:
                if count == owners.size:
                    return -1
                marks[v] = count
                owners[count] = v
                count += 1
            parts[i, r] = marks[v]
    return count


@kernel
def splat_mass(pointers, rows, weights, values, mass, start, stop):
    """Add up what one value a voxel, (N,), brings to each vertex."""
    for v in range(start, stop):
        total = np.float64(0)
        for e in range(pointers[v], pointers[v + 1]):
            total += weights[e] * values[rows[e]]
        mass[v] = total


@kernel
def splat_shares(pointers, rows, weights, values, mass, start, stop):
    """Turn weights into shares of each vertex's mass; a vertex without mass has none to share."""
    for v in range(start, stop):
        inverse = 1 / mass[v] if mass[v] > 0 else 0.0
        for e in range(pointers[v], pointers[v + 1]):
            weights[e] = weights[e] * values[rows[e]] * inverse


@kernel
def slice_mass(columns, weights, mass, out, start, stop):
    """Read the mass of the vertices at each voxel."""
    for i in range(start, stop):
        total = np.float64(0)
        for r in range(columns.shape[1]):
            total += weights[i, r] * mass[columns[i, r]]
        out[i] = total


@kernel
def slice_shares(columns, weights, mass, factor, start, stop):
    """Multiply the weights of each voxel by its vertices' mass and its own factor."""
    for i in range(start, stop):
        for r in range(columns.shape[1]):
            weights[i, r] = weights[i, r] * mass[columns[i, r]] * factor[i]


@kernel
def own_response(weights, table, out, start, stop):
    """Compute Σ_rs w_r w_s table[|r − s|] for each voxel."""
    p = weights.shape[1]
    for i in range(start, stop):
        total = np.float64(0)
        for r in range(p):
            for s in range(p):
                total += table[abs(r - s)] * weights[i, r] * weights[i, s]
        out[i] = total


@kernel
def count_taps(found, weights, mass, counts, new_mass, start, stop):
    """Count the taps of each vertex that carry mass, and add that mass up."""
    for v in range(start, stop):
        total = np.float64(0)
        taps = 0
        for s in range(weights.size):
            u = found[v, s]
            if u >= 0 and mass[u] > 0:
                total += weights[s] * mass[u]
                taps += 1
        counts[v] = taps
        new_mass[v] = total


@kernel
def fill_taps(found, weights, mass, new_mass, pointers, columns, coefficients, start, stop):
    """Write the taps of each vertex as shares of its mass."""
    for v in range(start, stop):
        e = pointers[v]
        for s in range(weights.size):
            u = found[v, s]
            if u >= 0 and mass[u] > 0:
                columns[e] = u
                coefficients[e] = weights[s] * mass[u] / new_mass[v]
                e += 1
