"""The permutohedral lattice of a kernel (Adams, Baek & Davis 2010): vertices and their blur.

Features (N, d) are elevated to the plane of d + 1 coordinates that sum to 0. Each lies in a simplex
of d + 1 lattice vertices, to which it gives its barycentric weights (N, d + 1); a blur pass mixes
each of V vertices with its neighbours along one or two of the d + 1 directions.

Vertices are found by hashing their keys (``engines/lattice.py``). The compiled kernels come
first, then the lattice that they build.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from numba import int32, int64, uint64
from numpy.typing import NDArray

from perturb_mpm.engines.cpu.compile import kernel, kernel_part
from perturb_mpm.engines.cpu.layout import Taps
from perturb_mpm.engines.cpu.threads import Threads
from perturb_mpm.engines.cpu.vectors import fetch_value
from perturb_mpm.engines.lattice import Blur, key_code

# Knuth's multiplicative hash: 2^64 over the golden ratio.
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
EMPTY = -1
ZERO, ONE = np.float32(0), np.float32(1)
BLOCK = 128  # voxels that are worked on side by side, in vector instructions
AHEAD = 16  # keys, and
NEXT = 2  # vertices with all their neighbours: time enough to fetch what they hash to
NO_ROW = np.int64(1 << 62)  # where no key stands in a row below another
Numbers = NDArray[np.int32]
# Where a vertex has fewer corners than this, blurring takes longer than splatting, and vertices are
# better stored near their neighbours than near the voxels that touch them.
CROWDED = 64
PARTS = 16  # in which a large array is filled: the system finds memory for it as it is written
MOST_COUNTED = 63  # neighbours, by each of ``MOST_PIECES``: together they fit into 8 bits
TOGETHER = 1 << 15  # voxels whose keys are in memory at once
AT_ONCE = 1 << 14  # vertices whose place along a curve is computed at once, in the cache


@kernel
def find_simplices(features, scale, strides, keys, weights, start, stop):
    """Find the simplex around each feature vector: keys (N, d+1) of its vertices, and weights.

    Everything up to the weights is in float32, in the order of the published algorithm, so that
    ties fall the same way and the vertices are the same.
    """
    d = features.shape[1]
    elevated = np.empty((d + 1, BLOCK), np.float32)
    cell, share = np.empty_like(elevated), np.empty_like(elevated)
    rank = np.empty((d + 1, BLOCK), np.int32)
    tail, excess = np.empty(BLOCK, np.float32), np.empty(BLOCK, np.int32)
    origin = np.empty(BLOCK, np.int64)
    ranked_share, ranked_step = np.empty(d + 1, np.float32), np.empty(d + 1, np.int64)
    size, turn = np.float32(d + 1), int32(d + 1)
    inverse = np.float32(1) / size
    steps = np.zeros(d + 1, np.int64)
    for j in range(d):
        steps[j] = strides[j]
        steps[d] -= strides[j]
    for i0 in range(start, stop, BLOCK):
        count = min(BLOCK, stop - i0)
        tail[:] = 0
        excess[:] = 0
        origin[:] = 0
        rank[:] = 0
        for j in range(d, 0, -1):
            for t in range(count):
                term = features[i0 + t, j - 1] * scale[j - 1]
                elevated[j, t] = tail[t] - np.float32(j) * term
                tail[t] += term
        for t in range(count):
            elevated[0, t] = tail[t]
        for j in range(d + 1):
            for t in range(count):
                cell[j, t] = np.rint(inverse * elevated[j, t])
                excess[t] += int32(cell[j, t])
                share[j, t] = elevated[j, t] - cell[j, t] * size
        for j in range(d):
            for k in range(j + 1, d + 1):
                for t in range(count):
                    less = int32(1) if share[j, t] < share[k, t] else int32(0)
                    rank[j, t] += less
                    rank[k, t] += int32(1) - less
        for j in range(d + 1):
            for t in range(count):
                shifted = rank[j, t] + excess[t]
                up, down = int32(1 if shifted < 0 else 0), int32(1 if shifted > d else 0)
                rank[j, t] = shifted + (up - down) * turn
                cell[j, t] += np.float32(up - down)
                share[j, t] = (elevated[j, t] - cell[j, t] * size) * inverse
        for j in range(d):
            for t in range(count):
                origin[t] += (int64(cell[d, t]) - int64(cell[j, t])) * strides[j]
        for t in range(count):
            i, key = i0 + t, origin[t]
            for j in range(d + 1):
                ranked_share[rank[j, t]] = share[j, t]
                ranked_step[rank[j, t]] = steps[j]
            keys[i, 0] = key
            weights[i, 0] = max(ranked_share[d] + (ONE - ranked_share[0]), ZERO)
            for r in range(1, d + 1):
                key += ranked_step[d - r + 1]
                keys[i, r] = key
                weights[i, r] = max(ranked_share[d - r] - ranked_share[d - r + 1], ZERO)


@kernel
def find(slots, vertices, key):
    """Return the number of the vertex with this key, or EMPTY."""
    last = slots.size - 1
    slot, tag = _slot(key, last)
    while slots[slot] != EMPTY:
        u = slots[slot] ^ tag
        if u <= last >> 1 and vertices[u] == key:
            return u
        slot = (slot + 1) & last
    return EMPTY


@kernel_part
def _slot(key, last):
    """Return where a key is looked for first, and what its number is stored with: upper bits.

    Half of the slots may be taken, so that numbers need a bit less than slots do.
    """
    mixed = uint64(key) * GOLDEN
    upper = mixed >> uint64(32)
    slot = (mixed ^ upper) & uint64(last)
    return int64(slot), int32(upper >> uint64(1)) & ~int32(last >> 1)


@kernel
def number(keys, width, slots, vertices, count, numbers):
    """Give the vertices of (M,) keys numbers by first touch, after the ``count`` there are.

    Keys are those of rows of ``width``: where a voxel has the key of the one before, nothing is
    looked up. Returns how many vertices there are now, and of how many keys: of all, unless
    ``vertices`` became full.
    """
    last = slots.size - 1
    for m in range(keys.size):
        later = m + AHEAD
        if later < keys.size and (later < width or keys[later] != keys[later - width]):
            fetch_value(slots, _slot(keys[later], last)[0])
        key = keys[m]
        if m >= width and keys[m - width] == key:
            numbers[m] = numbers[m - width]
            continue
        slot, tag = _slot(key, last)
        found = int32(EMPTY)
        while slots[slot] != EMPTY:
            u = slots[slot] ^ tag
            if u <= last >> 1 and vertices[u] == key:
                found = u
                break
            slot = (slot + 1) & last
        if found == EMPTY:
            if count == vertices.size:
                return count, m
            found = int32(count)
            slots[slot] = tag ^ found
            vertices[count] = key
            count += 1
        numbers[m] = found
    return count, keys.size


@kernel
def mark_neighbours(vertices, slots, steps, near, start, stop):
    """Mark which neighbours each vertex has: (V, 2·steps) at these key steps, then against them."""
    half = steps.size
    for v in range(start, stop):
        _fetch_near(vertices, v + NEXT, stop, slots, steps)
        for s in range(half):
            u = find(slots, vertices, vertices[v] + steps[s])
            if u != EMPTY:
                near[v, s] = True
                near[u, half + s] = True


@kernel
def count_missing(vertices, steps, near, counts, start, stop):
    """Count the present neighbours of absent vertices, of all together that hash to one count."""
    half, last = steps.size, counts.size - 1
    for v in range(start, stop):
        for s in range(2 * half):
            if not near[v, s]:
                k = _slot(vertices[v] + (steps[s] if s < half else -steps[s - half]), last)[0]
                counts[k] += np.uint8(1) if counts[k] < MOST_COUNTED else np.uint8(0)


@kernel
def list_missing(vertices, steps, near, counts, least, wanted, start, stop):
    """List the keys of absent vertices whose count is large enough; return how many were written.

    A key stands there once for each present neighbour. Those next to vertex v stand in ``wanted``
    from v times as many as it may have on at the latest.
    """
    half, last = steps.size, counts.size - 1
    first = start * near.shape[1]
    written = 0
    for v in range(start, stop):
        for s in range(2 * half):
            key = vertices[v] + (steps[s] if s < half else -steps[s - half])
            enough = counts[_slot(key, last)[0]] >= least
            wanted[first + written] = key  # and the next one over it, where it is not wanted
            written += int64(enough & (not near[v, s]))
    return first, written


@kernel
def keep_frequent(keys, least):
    """Move rising keys that are there ``least`` times or more, each once, to the front.

    Returns how many there are.
    """
    count, first = 0, 0
    for m in range(1, keys.size + 1):
        if m == keys.size or keys[m] != keys[first]:
            if m - first >= least:
                keys[count] = keys[first]
                count += 1
            first = m
    return count


@kernel
def renumber_corners(columns, weights, renumbered, carries, start, stop):
    """Give the vertices of rows (N, p) their new numbers, and mark those that have some weight."""
    for i in range(start, stop):
        for r in range(columns.shape[1]):
            v = renumbered[columns[i, r]]
            columns[i, r] = v
            if weights[i, r] > 0:
                carries[v] = True


@kernel
def neighbours(vertices, slots, steps, found, start, stop):
    """Find the vertices at the given key steps from each vertex: (V, steps), which comes EMPTY.

    Steps lie around a 0 in their middle, the last minus the first: who finds a neighbour is found.
    """
    last = steps.size - 1
    half = steps[: last // 2]
    ahead = max(1, AHEAD // max(1, half.size))
    for v in range(start, stop):
        _fetch_near(vertices, v + ahead, stop, slots, half)
        found[v, half.size] = v
        for s in range(half.size):
            u = find(slots, vertices, vertices[v] + half[s]) if half[s] else v
            if u != EMPTY:
                found[v, s] = u
                found[u, last - s] = v


@kernel
def _fetch_near(vertices, v, stop, slots, steps):
    """Ask for what looking up the vertices near vertex v will read first."""
    if v < stop:
        last = slots.size - 1
        for step in steps:
            fetch_value(slots, _slot(vertices[v] + step, last)[0])


@kernel
def count_taps(found, carries, counts, start, stop):
    """Count the taps of each vertex at vertices that carry something."""
    for v in range(start, stop):
        taps = 0
        for s in range(found.shape[1]):
            u = found[v, s]
            if u >= 0 and carries[u]:
                taps += 1
        counts[v] = taps


@kernel
def fill_taps(found, weights, carries, taps, start, stop):
    """Write these taps of each vertex, with their weights."""
    pointers, columns, coefficients = taps
    for v in range(start, stop):
        e = pointers[v]
        for s in range(weights.size):
            u = found[v, s]
            if u >= 0 and carries[u]:
                columns[e] = u
                coefficients[e] = weights[s]
                e += 1


@dataclass(frozen=True)
class Lattice:
    """N feature vectors on a lattice of V vertices."""

    blur: Blur
    columns: NDArray[np.int32]  # (N, d+1): the vertices of each voxel's simplex
    weights: NDArray[np.float32]  # (N, d+1): its barycentric coordinates
    passes: list[Taps]  # the weights of the blur at vertices that voxels reach

    @property
    def vertices(self) -> int:
        """V, the number of vertices."""
        return self.passes[0].rows

    @property
    def dimensions(self) -> int:
        """d, the number of features."""
        return int(self.columns.shape[1]) - 1


def build(features: NDArray[np.float32], blur: Blur, threads: Threads) -> Lattice:
    """Build the lattice of (N, d) features in units of sigma."""
    n, d = features.shape
    scale = blur.feature_scales(d)
    low, high = (np.array([end(x) for x in features.T], dtype=float) for end in (np.min, np.max))
    code = key_code(low, high, scale[np.newaxis])
    # As many slots as most lattices end with: a table that grows is filled anew each time.
    table = VertexTable(2 << n.bit_length())
    columns, weights = _find_corners(table, features, scale, code.strides, threads)
    touched = table.count
    if blur.dilation:
        add_missing_vertices(table, code.directions, blur.fewest_neighbours(d), threads)
    renumbered = np.arange(table.count, dtype=np.int32)
    if table.count * CROWDED > columns.size:
        some = np.array_split(table.vertices, max(PARTS, table.count // AT_ONCE))
        renumbered = table.sort(np.concatenate(threads.each(code.curve, some)), threads)
    carries = np.zeros(table.count, dtype=np.bool_)
    threads.run(renumber_corners, n, columns, weights, renumbered, carries)
    passes, steps = [], blur.passes(code.directions)
    memory = np.empty(table.count * max(len(offsets) for offsets, _ in steps), dtype=np.int32)
    for k, (offsets, shares) in enumerate(steps):
        found = _look_up(table, offsets, memory, threads)
        if k == len(steps) - 1:  # nothing reads vertices that no voxel touches any more
            found[renumbered[touched:]] = EMPTY
        passes.append(_taps(found, shares, carries, threads))
        carries = np.diff(passes[-1].pointers) > 0
    return Lattice(blur, columns, weights, passes)


def _find_corners(
    table: VertexTable,
    features: NDArray[np.float32],
    scale: NDArray[np.float32],
    strides: NDArray[np.int64],
    threads: Threads,
) -> tuple[Numbers, NDArray[np.float32]]:
    """Put the vertices of all simplices in a table; return their numbers and weights, (N, d+1).

    One thread gives numbers while another finds the next keys: there is no array of all.
    """
    n, d = features.shape
    weights = np.empty((n, d + 1), dtype=np.float32)
    columns = np.empty((n, d + 1), dtype=np.int32)
    keys = np.empty((2, min(n, TOGETHER), d + 1), dtype=np.int64)

    def find_keys(first: int) -> None:
        part = slice(first, first + TOGETHER)
        size = len(features[part])
        here = keys[first // TOGETHER % 2]
        find_simplices(features[part], scale, strides, here, weights[part], 0, size)

    def give_numbers(first: int) -> None:
        part = slice(first, first + TOGETHER)
        here = columns[part].reshape(-1)
        table.add(keys[first // TOGETHER % 2].reshape(-1)[: here.size], here, np.int64(d + 1))

    find_keys(0)
    for first in range(0, n, TOGETHER):
        tasks = [partial(give_numbers, first), partial(find_keys, first + TOGETHER)]
        threads.each(lambda task: task(), tasks if first + TOGETHER < n else tasks[:1])
    return columns, weights


class VertexTable:
    """A hash table from keys to vertex numbers, of a power of 2 of slots.

    A slot has a part of the key's hash and the number; half of the slots may be taken.
    """

    def __init__(self, slots: int) -> None:
        self._empty(slots)

    def _empty(self, slots: int) -> None:
        self.slots = np.full(slots, EMPTY, dtype=np.int32)
        self._vertices = np.empty(slots // 2, dtype=np.int64)
        self.count = 0

    @property
    def vertices(self) -> NDArray[np.int64]:
        """The key of each vertex."""
        return self._vertices[: self.count]

    def add(self, keys: NDArray[np.int64], numbers: Numbers, width: np.int64 = NO_ROW) -> None:
        """Write the numbers of (M,) keys, new ones by first touch; grow where it must."""
        done = 0
        while True:
            table = (self.slots, self._vertices, np.int64(self.count))
            self.count, more = number(keys[done:], width, *table, numbers[done:])
            done += more
            if done == len(keys):
                return
            known = self.vertices
            self._empty(4 * len(self.slots))
            self.add(known, np.empty(len(known), dtype=np.int32))  # with the same numbers

    def sort(self, curve: NDArray[np.int64], threads: Threads) -> Numbers:
        """Renumber the vertices along a curve; return the new number of each old one."""
        order = np.argsort(curve)
        if (np.diff(curve[order]) == 0).any():  # of equals the first one comes first
            order = np.argsort(curve, kind="stable")
        renumbered = np.empty(len(order), dtype=np.int32)
        renumbered[order] = np.arange(len(order), dtype=np.int32)
        self.vertices[:] = self.vertices[order]
        lower = np.int32(len(self.slots) // 2 - 1)

        def renumber(slots: NDArray[np.int32]) -> None:
            taken = np.flatnonzero(slots != EMPTY)
            numbers = slots[taken] & lower
            slots[taken] += renumbered[numbers] - numbers

        threads.each(renumber, np.array_split(self.slots, PARTS))
        return renumbered


def add_missing_vertices(
    table: VertexTable, directions: NDArray[np.int64], least: int, threads: Threads
) -> None:
    """Add the missing vertices that have at least so many neighbours, after the others."""
    vertices = table.vertices
    near = np.zeros((len(vertices), 2 * len(directions)), dtype=np.bool_)
    threads.run(mark_neighbours, len(vertices), vertices, table.slots, directions, near)
    # Most absent vertices have few neighbours: only the keys of the others are sorted.
    pieces = threads.split(len(vertices), near.size)
    counts = np.zeros((len(pieces), 4 << len(vertices).bit_length()), dtype=np.uint8)
    given = (vertices, directions, near)
    threads.each(lambda k: count_missing(*given, counts[k], *pieces[k]), range(len(pieces)))
    for each in counts[1:]:
        counts[0] += each
    wanted = np.empty(near.size, dtype=np.int64)
    enough = np.uint8(min(least, MOST_COUNTED))
    found = threads.run(list_missing, len(vertices), *given, counts[0], enough, wanted)
    keys = np.concatenate([wanted[first : first + count] for first, count in found])
    threads.sort(keys)
    new = keys[: keep_frequent(keys, least)]
    table.add(new, np.empty(len(new), dtype=np.int32))


def _look_up(
    table: VertexTable, steps: NDArray[np.int64], memory: NDArray[np.int32], threads: Threads
) -> NDArray[np.int32]:
    """Return the vertices at the given key steps from each vertex, (V, steps), in some memory."""
    found = memory[: table.count * len(steps)].reshape(table.count, len(steps))
    threads.each(lambda part: part.fill(EMPTY), np.array_split(found, PARTS))
    threads.run(neighbours, table.count, table.vertices, table.slots, steps, found)
    return found


def _taps(
    found: NDArray[np.int32],
    weights: NDArray[np.float64],
    carries: NDArray[np.bool_],
    threads: Threads,
) -> Taps:
    """Return the taps that each vertex has at vertices that carry something."""
    rows = len(found)
    pointers = np.zeros(rows + 1, dtype=np.int64)
    threads.run(count_taps, rows, found, carries, pointers[1:])
    np.cumsum(pointers, out=pointers)
    columns = np.empty(pointers[-1], dtype=np.int32)
    taps = Taps(pointers, columns, np.empty(len(columns), dtype=np.float32))
    threads.run(fill_taps, rows, found, weights, carries, taps)
    return taps
