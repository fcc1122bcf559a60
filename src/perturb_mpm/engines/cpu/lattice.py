"""The permutohedral lattice of one kernel: which vertices there are and which taps blur them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.engines.cpu import lattice_kernels as kernels
from perturb_mpm.engines.cpu.threads import Threads

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
    threads.run(kernels.embed, n, features, scale, code.strides, keys, weights)
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
    passes[-1][place[touched:]] = kernels.EMPTY
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
            ids = np.full(size, kernels.EMPTY, dtype=np.int32)
            count = kernels.number(keys, slots, ids, vertices, numbers)
            if count != kernels.EMPTY:
                return cls(slots, ids, vertices[:count].copy()), numbers
            size *= 4

    def sort(self, curve: NDArray[np.int64]) -> NDArray[np.int32]:
        """Renumber the vertices along a curve; return the new number of each old one."""
        order = np.argsort(curve, kind="stable")
        place = np.empty(len(order), dtype=np.int32)
        place[order] = np.arange(len(order), dtype=np.int32)
        self.vertices = self.vertices[order]
        present = self.ids != kernels.EMPTY
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
    found = kernels.missing_neighbours(table.vertices, table.slots, table.ids, steps, wanted)
    wanted = wanted[:found]
    wanted.sort()
    starts = np.flatnonzero(np.diff(wanted, prepend=~wanted[:1]))
    added = wanted[starts[np.diff(starts, append=found) >= least]]
    everything = np.concatenate([table.vertices, added])
    return _Table.of(everything, size=4 << len(everything).bit_length())[0]


def _look_up(table: _Table, steps: NDArray[np.int64], threads: Threads) -> NDArray[np.int32]:
    found = np.empty((table.count, len(steps)), dtype=np.int32)
    threads.run(
        kernels.neighbours, table.count, table.vertices, table.slots, table.ids, steps, found
    )
    return found
