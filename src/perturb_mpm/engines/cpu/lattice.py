"""The permutohedral lattice of a kernel (Adams, Baek & Davis 2010): vertices and their blur."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numba import int64, uint64
from numpy.typing import NDArray

from perturb_mpm.engines.cpu.compile import kernel
from perturb_mpm.engines.cpu.threads import Threads

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


# Room in the keys for the neighbours of the outermost vertices.
MARGIN = 8
# Where a vertex has fewer corners than this, blurring takes longer than splatting, and vertices are
# better kept near their neighbours than near the voxels that touch them.
CROWDED = 64


@dataclass(frozen=True)
class Blur:
    """How the lattice is blurred: the same taps along every direction, directions fused or not.

    ``taps`` are the weights at 0, ±1, ±2 … steps; ``fused`` directions are blurred in one pass
    whose taps are found by their keys, so that a missing vertex between two present ones does not
    cut them apart. A missing vertex is added when at least the share ``dilation`` of its neighbours
    is there (0: never). ``scale`` multiplies the features: more than 1 makes the kernel narrower.
    """

    taps: tuple[float, ...] = (1.0, 0.5)
    fused: int = 1
    dilation: float = 0.0
    scale: float = 1.0

    @property
    def variance(self) -> float:
        """The variance of the splat, the blur and the slice of the published lattice is 2/3."""
        spread = sum(2 * k * k * w for k, w in enumerate(self.taps))
        return 1 / 6 + spread / (self.taps[0] + 2 * sum(self.taps[1:]))

    def tap(self, step: int) -> float:
        """Return the weight of a tap, 0 beyond the last."""
        return self.taps[abs(step)] if abs(step) < len(self.taps) else 0.0


@dataclass(frozen=True)
class Lattice:
    """N feature vectors on a lattice of V vertices."""

    blur: Blur
    columns: NDArray[np.int32]  # (N, d+1): the vertices of each voxel's simplex
    weights: NDArray[np.float32]  # (N, d+1): its barycentric coordinates
    passes: tuple[NDArray[np.int32], ...]  # (V, taps) each: the vertices at the taps, -1 if absent
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
    scale = _elevation_scale(d, blur)
    code = _key_code(features, scale)
    keys = np.empty((n, d + 1), dtype=np.int64)
    weights = np.empty((n, d + 1), dtype=np.float32)
    threads.run(embed, n, features, scale, code.strides, keys, weights)
    table, numbers = _Table.of(keys.reshape(-1))
    columns = numbers.reshape(n, d + 1)
    del keys
    touched = table.count
    directions = np.append(code.strides, -code.strides.sum())  # (d+1,): each direction's key step
    if blur.dilation:
        table = _dilated(table, directions, math.ceil(2 * (d + 1) * blur.dilation))
    place = np.arange(table.count, dtype=np.int32)
    if table.count * CROWDED > columns.size:
        place = table.sort(code.locality(table.vertices))
        columns = place[columns]
    steps = [_pass_steps(directions[k : k + blur.fused], blur) for k in range(0, d + 1, blur.fused)]
    passes = tuple(_look_up(table, offsets, threads) for offsets, _ in steps)
    # Nothing reads the vertices that no voxel touches after the last pass.
    passes[-1][place[touched:]] = EMPTY
    return Lattice(blur, columns, weights, passes, tuple(w for _, w in steps))


def _elevation_scale(d: int, blur: Blur) -> NDArray[np.float32]:
    """Return what each feature is multiplied by, so that the whole filter has unit variance."""
    # Rounded where the published algorithm rounds, to find the very same vertices.
    wanted = float(np.float32(math.sqrt(blur.variance) * (d + 1) * blur.scale))
    return np.array([wanted / math.sqrt((j + 2) * (j + 1)) for j in range(d)], dtype=np.float32)


@dataclass(frozen=True)
class _KeyCode:
    """How vertex coordinates c (d,) become a 64-bit key, strides·c.

    The key is a mixed-radix number where the lattice's box fits in 62 bits, so that different
    vertices always have different keys. For a larger box (many channels) ``sizes`` is None, the
    strides are random odd numbers, and two of a million vertices collide with a probability
    below 1e-7.
    """

    strides: NDArray[np.int64]  # (d,)
    lowest: int  # the smallest key
    sizes: tuple[int, ...] | None

    def locality(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the place of each vertex on a Morton curve through the lattice, (V,)."""
        curve = np.zeros(len(keys), dtype=np.int64)
        if self.sizes is None:
            return curve
        d = len(self.sizes)
        for axis, (stride, size) in enumerate(zip(self.strides, self.sizes, strict=True)):
            coordinate = (keys - self.lowest) // stride % size
            for bit in range(min(size.bit_length(), 63 // d)):
                curve |= ((coordinate >> bit) & 1) << (bit * d + axis)
        return curve


def _key_code(features: NDArray[np.float32], scale: NDArray[np.float32]) -> _KeyCode:
    d = features.shape[1]
    low, high = features.min(axis=0).astype(float), features.max(axis=0).astype(float)
    elevation = np.zeros((d + 1, d))  # x = elevation @ f
    for j in range(1, d + 1):
        elevation[:j, j - 1] = scale[j - 1]
        elevation[j, j - 1] = -j * scale[j - 1]
    coordinates = (elevation[d] - elevation[:d]) / (d + 1)  # c = coordinates @ f
    extremes = np.stack([coordinates * low, coordinates * high])
    least = np.floor(extremes.min(axis=0).sum(axis=1)) - MARGIN
    most = np.ceil(extremes.max(axis=0).sum(axis=1)) + MARGIN
    sizes = tuple(int(s) for s in most - least + 1)
    if math.prod(sizes) >= 2**62:
        rng = np.random.default_rng(20170615)
        odd = 2 * np.asarray(rng.integers(-(2**61), 2**61, size=(d,))) + 1
        return _KeyCode(odd, 0, None)
    strides = [math.prod(sizes[:j]) for j in range(d)]
    lowest = sum(int(c) * stride for c, stride in zip(least, strides, strict=True))
    return _KeyCode(np.array(strides, dtype=np.int64), lowest, sizes)


def _pass_steps(
    directions: NDArray[np.int64], blur: Blur
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the key steps of the taps of one pass over some directions, and their weights."""
    reach = range(-len(blur.taps) + 1, len(blur.taps))
    offsets, weights = np.zeros(1, dtype=np.int64), np.ones(1)
    for direction in directions:
        offsets = np.concatenate([offsets + k * direction for k in reach])
        weights = np.concatenate([weights * blur.tap(k) for k in reach])
    return offsets, weights


@dataclass
class _Table:
    """A hash table from keys to vertex numbers."""

    slots: NDArray[np.int64]
    ids: NDArray[np.int32]
    vertices: NDArray[np.int64]  # the key of each vertex

    @classmethod
    def of(cls, keys: NDArray[np.int64], size: int = 1 << 16) -> tuple[_Table, NDArray[np.int32]]:
        """Give numbers by first touch; return the table and the number of each key, (M,)."""
        numbers = np.empty(keys.size, dtype=np.int32)
        while True:
            slots, vertices = np.empty(size, dtype=np.int64), np.empty(size // 2, dtype=np.int64)
            ids = np.full(size, EMPTY, dtype=np.int32)
            count = number(keys, slots, ids, vertices, numbers)
            if count != EMPTY:
                return cls(slots, ids, vertices[:count].copy()), numbers
            size *= 4

    def sort(self, curve: NDArray[np.int64]) -> NDArray[np.int32]:
        """Renumber the vertices along a curve; return the new number of each old one."""
        order = np.argsort(curve, kind="stable")
        place = np.empty(len(order), dtype=np.int32)
        place[order] = np.arange(len(order), dtype=np.int32)
        self.vertices = self.vertices[order]
        present = self.ids != EMPTY
        self.ids[present] = place[self.ids[present]]
        return place

    @property
    def count(self) -> int:
        """The number of vertices."""
        return len(self.vertices)


def _dilated(table: _Table, directions: NDArray[np.int64], least: int) -> _Table:
    """Add the missing vertices that have at least so many neighbours, after the others."""
    steps = np.concatenate([directions, -directions])
    wanted = np.empty(table.count * len(steps), dtype=np.int64)
    found = missing_neighbours(table.vertices, table.slots, table.ids, steps, wanted)
    wanted = wanted[:found]
    wanted.sort()
    starts = np.flatnonzero(np.diff(wanted, prepend=~wanted[:1]))
    added = wanted[starts[np.diff(starts, append=found) >= least]]
    everything = np.concatenate([table.vertices, added])
    return _Table.of(everything, size=4 << len(everything).bit_length())[0]


def _look_up(table: _Table, steps: NDArray[np.int64], threads: Threads) -> NDArray[np.int32]:
    found = np.empty((table.count, len(steps)), dtype=np.int32)
    threads.run(neighbours, table.count, table.vertices, table.slots, table.ids, steps, found)
    return found
