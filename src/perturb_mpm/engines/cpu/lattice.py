"""The permutohedral lattice of a kernel (Adams, Baek & Davis 2010): vertices and their blur.

Features (N, d) are elevated to the plane of d + 1 coordinates that sum to 0. Each lies in a simplex
of d + 1 lattice vertices, to which it gives its barycentric weights (N, d + 1); a blur pass mixes
each of V vertices with its neighbours along one or two of the d + 1 directions.

Vertices are found by hashing their keys (``engines/lattice.py``). The compiled kernels come
first, then the lattice that they build.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import int32, int64, uint64
from numpy.typing import NDArray

from perturb_mpm.engines.cpu.compile import kernel
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
def number(keys, width, table, ids, vertices, count, numbers):
    """Give the vertices of (M,) keys numbers by first touch, after the ``count`` there are.

    Keys are those of rows of ``width``: where a voxel has the key of the one before, nothing is
    looked up. Returns how many vertices there are now, and of how many keys: of all, unless
    ``vertices`` became full.
    """
    last = table.size - 1
    for m in range(keys.size):
        later = m + AHEAD
        if later < keys.size and (later < width or keys[later] != keys[later - width]):
            _fetch(table, ids, keys[later])
        key = keys[m]
        if m >= width and keys[m - width] == key:
            numbers[m] = numbers[m - width]
            continue
        slot = _slot(key, last)
        while ids[slot] != EMPTY and table[slot] != key:
            slot = (slot + 1) & last
        if ids[slot] == EMPTY:
            if count == vertices.size:
                return count, m
            table[slot] = key
            ids[slot] = count
            vertices[count] = key
            count += 1
        numbers[m] = ids[slot]
    return count, keys.size


@kernel
def missing_neighbours(vertices, table, ids, steps, wanted, start, stop):
    """List the keys of absent vertices next to present ones; return how many were written.

    A key stands there once for each present neighbour. ``steps`` are the key steps of all 2(d+1)
    directions; those next to vertex v stand in ``wanted`` from v·2(d+1) on at the latest.
    """
    first = start * steps.size
    count = 0
    for v in range(start, stop):
        _fetch_near(vertices, v + NEXT, stop, table, ids, steps)
        for step in steps:
            key = vertices[v] + step
            if find(table, ids, key) == EMPTY:
                wanted[first + count] = key
                count += 1
    return first, count


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
def neighbours(vertices, table, ids, steps, found, start, stop):
    """Find the vertices at the given key steps from each vertex: (V, steps), which comes EMPTY.

    Steps lie around a 0 in their middle, the last minus the first: who finds a neighbour is found.
    """
    last = steps.size - 1
    half = steps[: last // 2]
    ahead = max(1, AHEAD // max(1, half.size))
    for v in range(start, stop):
        _fetch_near(vertices, v + ahead, stop, table, ids, half)
        found[v, half.size] = v
        for s in range(half.size):
            u = find(table, ids, vertices[v] + half[s]) if half[s] else v
            if u != EMPTY:
                found[v, s] = u
                found[u, last - s] = v


@kernel
def _fetch_near(vertices, v, stop, table, ids, steps):
    """Ask for what looking up the vertices near vertex v will read first."""
    if v < stop:
        for step in steps:
            _fetch(table, ids, vertices[v] + step)


@kernel
def _fetch(table, ids, key):
    slot = _slot(key, table.size - 1)
    fetch_value(table, slot)
    fetch_value(ids, slot)


@dataclass(frozen=True)
class Lattice:
    """N feature vectors on a lattice of V vertices."""

    blur: Blur
    columns: NDArray[np.int32]  # (N, d+1): the vertices of each voxel's simplex
    weights: NDArray[np.float32]  # (N, d+1): its barycentric coordinates
    passes: list[NDArray[np.int32]]  # (V, taps) each: the vertices at the taps, -1 if absent
    pass_weights: tuple[NDArray[np.float64], ...]

    @property
    def vertices(self) -> int:
        """V, the number of vertices."""
        return len(self.passes[0])

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
    keys = np.empty((n, d + 1), dtype=np.int64)
    weights = np.empty((n, d + 1), dtype=np.float32)
    threads.run(find_simplices, n, features, scale, code.strides, keys, weights)
    # As many slots as most lattices end with: a table that grows is filled anew each time.
    slots = 2 << n.bit_length()
    table, numbers = VertexTable.of(keys.reshape(-1), slots, np.int64(d + 1))
    columns = numbers.reshape(n, d + 1)
    del keys
    touched = table.count
    directions = code.directions  # (d+1,): each direction's key step
    if blur.dilation:
        add_missing_vertices(table, directions, blur.fewest_neighbours(d), threads)
    renumbered = np.arange(table.count, dtype=np.int32)
    if table.count * CROWDED > columns.size:
        some = np.array_split(table.vertices, max(PARTS, table.count // AT_ONCE))
        renumbered = table.sort(np.concatenate(threads.each(code.curve, some)))
        columns = renumbered[columns]
    steps = blur.passes(directions)
    passes = [_look_up(table, offsets, threads) for offsets, _ in steps]
    # Nothing reads the vertices that no voxel touches after the last pass.
    passes[-1][renumbered[touched:]] = EMPTY
    return Lattice(blur, columns, weights, passes, tuple(w for _, w in steps))


@dataclass
class VertexTable:
    """A hash table from keys to vertex numbers."""

    slots: NDArray[np.int64]
    ids: NDArray[np.int32]
    vertices: NDArray[np.int64]  # the key of each vertex

    @classmethod
    def of(
        cls, keys: NDArray[np.int64], size: int, width: np.int64 = NO_ROW
    ) -> tuple[VertexTable, Numbers]:
        """Give numbers by first touch; return the table and the number of each key, (M,).

        ``size`` is how many slots there are at first, a power of 2; half of them may be taken.
        """
        table = cls(np.empty(size, np.int64), np.full(size, EMPTY, np.int32), keys[:0])
        return table, table.add(keys, width)

    def add(self, keys: NDArray[np.int64], width: np.int64 = NO_ROW) -> Numbers:
        """Return the numbers of (M,) keys, new ones by first touch; grow where it must."""
        numbers, done = np.empty(keys.size, dtype=np.int32), 0
        while True:
            buffer = np.empty(len(self.slots) // 2, dtype=np.int64)
            buffer[: self.count] = self.vertices
            table = (self.slots, self.ids, buffer, np.int64(self.count))
            count, more = number(keys[done:], width, *table, numbers[done:])
            self.vertices = buffer[:count].copy()
            done += more
            if done == len(keys):
                return numbers
            larger = VertexTable.of(self.vertices, 4 * len(self.slots))[0]  # with the same numbers
            self.slots, self.ids = larger.slots, larger.ids

    def sort(self, curve: NDArray[np.int64]) -> Numbers:
        """Renumber the vertices along a curve; return the new number of each old one."""
        order = np.argsort(curve)
        if (np.diff(curve[order]) == 0).any():  # of equals the first one comes first
            order = np.argsort(curve, kind="stable")
        renumbered = np.full(len(order) + 1, EMPTY, dtype=np.int32)
        renumbered[order] = np.arange(len(order), dtype=np.int32)
        self.vertices = self.vertices[order]
        self.ids = renumbered[self.ids]  # EMPTY finds itself at the end
        return renumbered[:-1]

    @property
    def count(self) -> int:
        """The number of vertices."""
        return len(self.vertices)


def add_missing_vertices(
    table: VertexTable, directions: NDArray[np.int64], least: int, threads: Threads
) -> None:
    """Add the missing vertices that have at least so many neighbours, after the others."""
    steps = np.concatenate([directions, -directions])
    buffer = np.empty(table.count * len(steps), dtype=np.int64)
    arguments = (table.vertices, table.slots, table.ids, steps, buffer)
    found = 0
    for first, count in threads.run(missing_neighbours, table.count, *arguments):
        buffer[found : found + count] = buffer[first : first + count]
        found += count
    wanted = buffer[:found]
    threads.sort(wanted)
    table.add(wanted[: keep_frequent(wanted, least)])


def _look_up(table: VertexTable, steps: NDArray[np.int64], threads: Threads) -> NDArray[np.int32]:
    found = np.empty((table.count, len(steps)), dtype=np.int32)
    threads.each(lambda part: part.fill(EMPTY), np.array_split(found, PARTS))
    threads.run(neighbours, table.count, table.vertices, table.slots, table.ids, steps, found)
    return found
