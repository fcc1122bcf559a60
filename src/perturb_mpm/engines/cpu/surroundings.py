"""What settled voxels send to the others: one kernel of a CRF, in walks through the image.

A lattice keeps some 40 to 60 bytes for each voxel and kernel, which an image of 10⁸ voxels has no
room for. What settled voxels send never changes, so theirs are made part by part, added to the
vertices and forgotten; what stays are the vertices. The compiled kernels come first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.engines.cpu.chain import normalizers
from perturb_mpm.engines.cpu.compile import announced, kernel
from perturb_mpm.engines.cpu.exact import all_pairs
from perturb_mpm.engines.cpu.lattice import EMPTY, VertexTable, dilated, embed, find
from perturb_mpm.engines.cpu.scale import calibrated_scale
from perturb_mpm.engines.cpu.threads import Threads
from perturb_mpm.engines.lattice import BLURS, CALIBRATION_VOXELS, Blur, KeyCode, key_code
from perturb_mpm.model import Grid, Kernel, PairwiseTerm

PART = 1 << 20
"""Voxels whose lattice entries are in memory at once."""

FIRST_SLOTS = 1 << 16
"""Of the table of vertices, which grows as it must."""

GAIN_ROWS = 32
"""Voxels at which the lattice's row sums are compared with the exact kernel's."""

Marginals = Callable[[slice | NDArray[np.int64]], NDArray[np.float32]]
"""The marginals (L, V) of some voxels."""


@kernel
def add_at(numbers, weights, values, target):
    """Add values (n, C), weighted, to the vertices (V, C) of each voxel."""
    for i in range(numbers.shape[0]):
        for r in range(numbers.shape[1]):
            for c in range(values.shape[1]):
                target[numbers[i, r], c] += weights[i, r] * values[i, c]


@kernel
def look_up(keys, table, ids, numbers, start, stop):
    """Find the number of the vertex of each key, (n, d+1)."""
    for i in range(start, stop):
        for r in range(keys.shape[1]):
            numbers[i, r] = find(table, ids, keys[i, r])


@kernel
def blur_once(vertices, table, ids, steps, weights, values, out, start, stop):
    """Blur values (V, C) of the vertices along one pass: taps at these key steps."""
    for v in range(start, stop):
        for c in range(values.shape[1]):
            out[v, c] = 0
        for s in range(steps.size):
            u = find(table, ids, vertices[v] + steps[s])
            if u != EMPTY:
                for c in range(values.shape[1]):
                    out[v, c] += weights[s] * values[u, c]


@kernel
def read_at(numbers, weights, values, out, start, stop):
    """Read values (V, C) of the vertices at each voxel, (n, C)."""
    for i in range(start, stop):
        for c in range(values.shape[1]):
            total = 0.0
            for r in range(numbers.shape[1]):
                total += weights[i, r] * values[numbers[i, r], c]
            out[i, c] = total


@dataclass(frozen=True)
class Surroundings:
    """What settled voxels add to one kernel at each of the D others."""

    sent: NDArray[np.float64]  # (L, D): K̂ times the settled marginals
    outside: NDArray[np.float64]  # (D,): their part of the row sums of K


def surroundings_of(
    term: PairwiseTerm,
    settled: NDArray[np.bool_],
    marginals: Marginals,
    threads: int | None,
    *,
    sends: bool,
) -> Surroundings:
    """Return what ``settled`` voxels (N,) add; without ``sends`` only to the row sums."""
    lattice = _WalkedLattice(term, np.flatnonzero(~settled), marginals, Threads(threads))
    with announced():
        return lattice.surroundings(settled, marginals, sends=sends)


class _WalkedLattice:
    """The vertices of one kernel, without the voxels' entries."""

    def __init__(
        self,
        term: PairwiseTerm,
        others: NDArray[np.int64],
        marginals: Marginals,
        threads: Threads,
    ) -> None:
        self._term, self._others, self._threads = term, others, threads
        self._grid: Grid = term.grid
        self._kernel: Kernel = term.kernel.in_own_units(term.grid)
        block = block_around(term.grid, others)
        with announced():
            self._blur: Blur = calibrated_scale(
                self._features(block),
                np.ascontiguousarray(marginals(block).T),
                BLURS["calibrated"],
                threads,
            )
        low, high = self._reach()
        self._scale = self._blur.feature_scales(len(low))
        self._code: KeyCode = key_code(low, high, self._scale[np.newaxis])

    def surroundings(
        self, settled: NDArray[np.bool_], marginals: Marginals, *, sends: bool
    ) -> Surroundings:
        mass = self._number(settled)  # (V, 2): of settled voxels, of all
        mass = self._blurred(mass)
        gain = self._gain(mass[:, 1:])
        here = gain * self._read(mass, self._others)  # (D, 2)
        sent = np.zeros((marginals(slice(0, 1)).shape[0], len(self._others)))
        if sends:
            values = self._blurred(self._splat(mass[:, 1:], gain, settled, marginals))
            _, after = normalizers(here[:, 1], self._term.normalization)
            sent = gain * after * self._read(values, self._others).T
        return Surroundings(sent, here[:, 0])

    def _number(self, settled: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Give every vertex its number; return the mass that voxels bring to it, (V, 2)."""
        table, mass = VertexTable.of_size(FIRST_SLOTS), np.zeros((FIRST_SLOTS // 2, 2))
        for part in _parts(settled.size):
            keys, weights = self._embed(part)
            numbers = np.empty(keys.shape, dtype=np.int32)
            table.add(keys.reshape(-1), numbers.reshape(-1))
            if table.count > len(mass):
                mass = np.concatenate([mass, np.zeros((len(table.slots) // 2 - len(mass), 2))])
            values = np.stack([settled[part], np.ones(len(keys))], axis=1)
            add_at(numbers, weights, values, mass)
        touched = table.count
        if self._blur.dilation:
            least = self._blur.fewest_neighbours(len(self._scale))
            table = dilated(table, self._code.directions, least, self._threads)
        self._table = table
        whole = np.zeros((table.count, 2))
        whole[:touched] = mass[:touched]
        return whole

    def _splat(
        self,
        mass: NDArray[np.float64],
        gain: float,
        settled: NDArray[np.bool_],
        marginals: Marginals,
    ) -> NDArray[np.float64]:
        """Return what settled marginals bring to each vertex before the blur, (V, L)."""
        labels = marginals(slice(0, 1)).shape[0]
        target = np.zeros((self._table.count, labels))
        for part in _parts(settled.size):
            numbers, weights = self._entries(part)
            sums = np.empty((len(numbers), 1))
            self._threads.run(read_at, len(sums), numbers, weights, mass, sums)
            before, _ = normalizers(gain * sums[:, 0], self._term.normalization)
            values = (before * settled[part])[:, np.newaxis] * marginals(part).T
            add_at(numbers, weights, values, target)
        return target

    def _blurred(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        table = self._table
        for steps, weights in self._blur.passes(self._code.directions):
            out = np.empty_like(values)
            arguments = (table.vertices, table.slots, table.ids, steps, weights, values, out)
            self._threads.run(blur_once, len(values), *arguments)
            values = out
        return values

    def _read(self, values: NDArray[np.float64], voxels: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return values (V, C) of the vertices at some voxels, (n, C)."""
        out = np.empty((len(voxels), values.shape[1]))
        for part in _parts(len(voxels)):
            numbers, weights = self._entries(voxels[part])
            self._threads.run(read_at, len(numbers), numbers, weights, values, out[part])
        return out

    def _gain(self, mass: NDArray[np.float64]) -> float:
        """Return the factor that makes row sums those of the exact kernel, on average."""
        count = min(GAIN_ROWS, len(self._others))
        rows = np.random.default_rng(0).choice(self._others, size=count, replace=False)
        wanted = self._features(np.sort(rows))
        middle = wanted.mean(axis=0)  # float32 resolves differences best around the origin
        queries = np.ascontiguousarray((wanted - middle).T)
        exact = np.zeros((count, 1))
        for part in _parts(self._grid.voxels):
            sources = np.ascontiguousarray((self._features(part) - middle).T)  # (d, n)
            ones = np.ones(sources.shape[1], dtype=np.float32)
            found = np.empty_like(exact)
            arguments = (queries, sources, ones, ones[:, np.newaxis], found)
            self._threads.run(all_pairs, count, *arguments)
            exact += found
        return float(exact.sum() / self._read(mass, np.sort(rows)).sum())

    def _reach(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the lowest and the highest of each feature, (d,) both."""
        ends = [
            (f.min(axis=0), f.max(axis=0)) for f in map(self._features, _parts(self._grid.voxels))
        ]
        low, high = zip(*ends, strict=True)
        return np.min(low, axis=0).astype(float), np.max(high, axis=0).astype(float)

    def _features(self, voxels: slice | NDArray[np.int64]) -> NDArray[np.float32]:
        return self._kernel.features_on(self._grid, voxels).astype(np.float32)

    def _embed(
        self, voxels: slice | NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        features = self._features(voxels)
        n, d = features.shape
        keys = np.empty((n, d + 1), dtype=np.int64)
        weights = np.empty((n, d + 1), dtype=np.float32)
        self._threads.run(embed, n, features, self._scale, self._code.strides, keys, weights)
        return keys, weights

    def _entries(
        self, voxels: slice | NDArray[np.int64]
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        keys, weights = self._embed(voxels)
        numbers = np.empty(keys.shape, dtype=np.int32)
        table = self._table
        self._threads.run(look_up, len(keys), keys, table.slots, table.ids, numbers)
        return numbers, weights


def block_around(grid: Grid, voxels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the voxels of the block of the image that holds most of the given ones, (n,).

    Blocks are cubes of ``CALIBRATION_VOXELS`` voxels.
    """
    side = max(1, round(CALIBRATION_VOXELS ** (1 / grid.ndim)))
    blocks = tuple(-(-size // side) for size in grid.shape)
    at = np.unravel_index(grid.index[voxels], grid.shape)
    counts = np.bincount(np.ravel_multi_index(tuple(along // side for along in at), blocks))
    corner = np.unravel_index(int(counts.argmax()), blocks)
    axes = [
        np.arange(side * int(c), min(side * (int(c) + 1), size))
        for c, size in zip(corner, grid.shape, strict=True)
    ]
    flat = np.ravel_multi_index(np.meshgrid(*axes, indexing="ij"), grid.shape).reshape(-1)
    place = np.searchsorted(grid.index, flat)
    place[place == grid.voxels] = 0
    return place[grid.index[place] == flat]


def _parts(count: int) -> Iterator[slice]:
    return (slice(first, min(first + PART, count)) for first in range(0, count, PART))
