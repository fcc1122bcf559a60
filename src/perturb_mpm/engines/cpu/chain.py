"""One kernel as a chain of sparse matrices: splat, blur passes, slice.

With K̂ = diag(after) K diag(before) the normalised kernel, K̂Q is computed from values that lie
between 0 and 1 at every stage: each stage's rows are convex combinations of the previous stage's,
because they are divided by the mass that K̂'s own chain carries there. So they fit into 16
bits, and the labels of a voxel always sum to the row sum of K̂.

The compiled kernels come first, then ``Filter``, the chain, and ``factorize``, which makes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.engines.cpu.compile import kernel
from perturb_mpm.engines.cpu.lattice import BLOCK, Lattice
from perturb_mpm.engines.cpu.layout import Taps
from perturb_mpm.engines.cpu.row_kernels import combine, combine_narrow
from perturb_mpm.engines.cpu.threads import Threads
from perturb_mpm.engines.cpu.vectors import NARROW
from perturb_mpm.model import Normalization

# Voxels of a splat block, whose values should fit into a core's own cache.
SPLAT_BLOCK = 2048
# A splat in two stages is worth it where a block's vertex has this many of its voxels on average.
WORTH_A_STAGE = 8
# A float32 sum of more entries loses digits: these are summed first, then their sums.
LONGEST_SUM = 256


@kernel
def number_parts(columns, size, marks, parts, owners, start, stop):
    """Give numbers to the pairs of a block of ``size`` rows and a column that meet.

    ``parts`` (N, p) takes the number of each entry's pair, ``owners`` the column of each pair, and
    ``marks`` comes with −1 for every column. Blocks begin at ``start``, and numbers at 0. Returns
    how many there are, or −1 where ``owners`` is too short.
    """
    count = 0
    first = 0  # the first pair of the present block
    for i in range(start, stop):
        if (i - start) % size == 0:
            first = count
        for r in range(columns.shape[1]):
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
def count_columns(matrix, counts, start, stop):
    """Count the entries of each column in some rows."""
    pointers, columns, _ = matrix
    for e in range(pointers[start], pointers[stop]):
        counts[columns[e]] += 1


@kernel
def turn_entries(matrix, starts, rows, coefficients, start, stop):
    """Write the entries of some rows into the transpose, each column's from its place on."""
    pointers, columns, given = matrix
    for i in range(start, stop):
        for e in range(pointers[i], pointers[i + 1]):
            k = starts[columns[e]]
            rows[k] = i
            coefficients[k] = given[e]
            starts[columns[e]] = k + 1


@kernel
def stage_mass(stage, values, mass, start, stop):
    """Add up what one value a column brings to each row."""
    pointers, rows, weights = stage
    for v in range(start, stop):
        total = np.float64(0)
        for e in range(pointers[v], pointers[v + 1]):
            total += weights[e] * values[rows[e]]
        mass[v] = total


@kernel
def splat_shares(splat, values, mass, start, stop):
    """Turn weights into shares of each vertex's mass; a vertex without mass has none to share."""
    pointers, rows, weights = splat
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
    own, total = np.zeros((p, BLOCK)), np.empty(BLOCK)
    for i0 in range(start, stop, BLOCK):
        count = min(BLOCK, stop - i0)
        for t in range(count):
            for r in range(p):
                own[r, t] = weights[i0 + t, r]
        total[:] = 0
        for r in range(p):
            for s in range(p):
                answer = table[abs(r - s)]
                for t in range(BLOCK):
                    total[t] += answer * own[r, t] * own[s, t]
        for t in range(count):
            out[i0 + t] = total[t]


@kernel
def blur_shares(taps, mass, new_mass, start, stop):
    """Turn the weights of each vertex's taps into shares of its mass."""
    pointers, columns, coefficients = taps
    for v in range(start, stop):
        for e in range(pointers[v], pointers[v + 1]):
            coefficients[e] = coefficients[e] * mass[columns[e]] / new_mass[v]


@dataclass
class Filter:
    """K̂ in factors, with its row sums and its diagonal."""

    stages: tuple[Taps, ...]  # the splat in one or two, then the blur passes; rows sum to one
    vertices: int
    columns: NDArray[np.int32]  # (N, p): the slice
    coefficients: NDArray[np.float32]  # (N, p)
    total: NDArray[np.float32]  # (N,): K̂·1
    diagonal: NDArray[np.float32]  # (N,)

    @property
    def rows(self) -> int:
        """The most rows of any stage."""
        return max(stage.rows for stage in self.stages)

    def apply(
        self, values: NDArray[Any], target: NDArray[Any], spare: NDArray[Any], threads: Threads
    ) -> None:
        """Run (N, C) values through all stages into ``target``; both targets have ``rows`` rows.

        Values are float32, or 16-bit whole numbers, which are rounded to the nearest.
        """
        signed = values.dtype == np.int16
        rounding = np.float32(0.5 if values.dtype == np.uint16 else 0.0)
        multiply = combine_narrow if values.shape[1] <= NARROW and not signed else combine
        source, targets = values, [target, spare]
        for number, stage in enumerate(self.stages):
            into = targets[(len(self.stages) - 1 - number) % 2]
            threads.run(multiply, stage.rows, stage, source, into, rounding)
            source = into


def factorize(
    lattice: Lattice,
    normalization: Normalization,
    gain: float,
    threads: Threads,
    *,
    wide_rows: bool = False,
) -> Filter:
    """Make the normalised filter of a lattice, which is used up.

    ``gain`` multiplies the raw lattice's output. For ``wide_rows``, those of a batch, the splat
    may be in two stages.
    """
    n, vertices = len(lattice.columns), lattice.vertices
    splats = _splats(lattice, threads, wide_rows=wide_rows)
    stages = (*splats, *lattice.passes)
    masses = [np.empty(stage.rows) for stage in stages]  # after each stage
    _fill_masses(masses, stages, np.ones(n), threads)
    raw = _read_mass(lattice, masses[-1], threads)
    raw *= gain  # (N,): K·1
    before, after = normalizers(raw, normalization)
    if normalization in ("symmetric", "before"):
        _fill_masses(masses, stages, before, threads)
    read = gain * after  # what multiplies a voxel's slice
    filtered = _read_mass(lattice, masses[-1], threads)
    filtered *= read
    total = filtered.astype(np.float32)
    own = _own_response(lattice, threads)
    own *= gain
    for limit, combined in ((raw, np.minimum), (before, np.multiply), (after, np.multiply)):
        combined(own, limit, out=own)
    diagonal = own.astype(np.float32)
    del own, raw, filtered
    for splat, values, mass in zip(splats, [before, *masses], masses, strict=False):
        threads.run(splat_shares, splat.rows, splat, values, mass)
    del before
    carried = masses[len(splats) - 1 :]  # into the first pass, and out of each
    for taps, mass, new_mass in zip(lattice.passes, carried[:-1], carried[1:], strict=True):
        threads.run(blur_shares, taps.rows, taps, mass, new_mass)
    threads.run(slice_shares, n, lattice.columns, lattice.weights, masses[-1], read)
    return Filter(
        stages=stages,
        vertices=vertices,
        columns=lattice.columns,
        coefficients=lattice.weights,
        total=total,
        diagonal=diagonal,
    )


def _splats(lattice: Lattice, threads: Threads, *, wide_rows: bool = False) -> tuple[Taps, ...]:
    """Return the splat as one matrix or two, with the lattice's own weights.

    A vertex with many voxels reads them from all over the memory. In a batch, their sums over
    blocks of voxels that fit into the cache are read once, where a block's voxels share their
    vertices. In float32, long sums are made of shorter ones.
    """
    found = _parts(lattice, threads) if wide_rows else None
    if found is None:
        splat = transpose(
            Taps.of_table(lattice.columns, lattice.weights), lattice.vertices, threads
        )
        return (splat,) if wide_rows else _shorten_sums(splat)
    parts, owners = found
    ones = np.ones((len(owners), 1), dtype=np.float32)
    return (
        transpose(Taps.of_table(parts, lattice.weights), len(owners), threads),
        transpose(Taps.of_table(owners[:, np.newaxis], ones), lattice.vertices, threads),
    )


def _shorten_sums(matrix: Taps) -> tuple[Taps, ...]:
    """Return the same product in two matrices where one has rows of too many entries."""
    entries = np.diff(matrix.pointers)
    if entries.max(initial=0) <= LONGEST_SUM:
        return (matrix,)
    pieces = -(-entries // LONGEST_SUM)  # of each row
    pointers = np.concatenate([[0], np.cumsum(pieces)])
    count = pointers[-1]
    within = np.arange(count) - np.repeat(pointers[:-1], pieces)
    starts = np.repeat(matrix.pointers[:-1], pieces) + within * LONGEST_SUM
    columns, ones = np.arange(count, dtype=np.int32), np.ones(count, dtype=np.float32)
    first = matrix._replace(pointers=np.append(starts, matrix.pointers[-1]))
    return first, Taps(pointers, columns, ones)


def _parts(
    lattice: Lattice, threads: Threads
) -> tuple[NDArray[np.int32], NDArray[np.int32]] | None:
    """Give numbers to pairs of a block of voxels and a vertex; None where there are too many.

    Returns the pair of each corner, (N, d+1), and the vertex of each pair.
    """
    columns = lattice.columns
    parts = np.empty(columns.shape, dtype=np.int32)
    most = columns.size // WORTH_A_STAGE
    pieces = threads.split(len(columns), columns.size, SPLAT_BLOCK)

    def number(k: int) -> NDArray[np.int32] | None:
        marks = np.full(lattice.vertices, -1, dtype=np.int32)
        owners = np.empty(most, dtype=np.int32)
        count = number_parts(columns, SPLAT_BLOCK, marks, parts, owners, *pieces[k])
        return None if count < 0 else owners[:count]

    found = [each for each in threads.each(number, range(len(pieces))) if each is not None]
    if len(found) < len(pieces) or sum(len(owners) for owners in found) > most:
        return None
    earlier = 0
    for owners, (first, stop) in zip(found, pieces, strict=True):
        parts[first:stop] += earlier
        earlier += len(owners)
    return parts, np.concatenate(found)


def row_sums(lattice: Lattice, threads: Threads) -> NDArray[np.float64]:
    """Return K·1 of the raw lattice, (N,)."""
    stages = (*_splats(lattice, threads), *lattice.passes)
    masses = [np.empty(stage.rows) for stage in stages]
    _fill_masses(masses, stages, np.ones(len(lattice.columns)), threads)
    return _read_mass(lattice, masses[-1], threads)


def normalizers(
    row_sum: NDArray[np.float64], normalization: Normalization
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return what multiplies the values before and after K, both (N,), given K·1."""
    if normalization == "symmetric":
        root = np.sqrt(row_sum)
        np.divide(1, root, out=root)
        return root, root
    ones = np.ones_like(row_sum)
    if normalization == "before":
        return 1 / row_sum, ones
    if normalization == "after":
        return ones, 1 / row_sum
    return ones, ones


def transpose(matrix: Taps, columns: int, threads: Threads) -> Taps:
    """Return the transpose of a matrix of so many columns, the entries of each row rising."""
    pieces = threads.split(matrix.rows, len(matrix.columns))
    starts = np.zeros((len(pieces), columns), dtype=np.int64)

    def count(k: int) -> None:
        count_columns(matrix, starts[k], *pieces[k])

    turned = Taps(
        np.zeros(columns + 1, dtype=np.int64),
        np.empty(len(matrix.columns), dtype=np.int32),
        np.empty(len(matrix.columns), dtype=np.float32),
    )

    def turn(k: int) -> None:
        turn_entries(matrix, starts[k], turned.columns, turned.coefficients, *pieces[k])

    threads.each(count, range(len(pieces)))
    np.cumsum(starts.sum(axis=0), out=turned.pointers[1:])
    begin = turned.pointers[:-1]
    for each in starts:  # from counts to where each piece's entries of a column begin
        end = begin + each
        each[:] = begin
        begin = end
    threads.each(turn, range(len(pieces)))
    return turned


def _read_mass(
    lattice: Lattice, mass: NDArray[np.float64], threads: Threads
) -> NDArray[np.float64]:
    out = np.empty(len(lattice.columns))
    threads.run(slice_mass, len(out), lattice.columns, lattice.weights, mass, out)
    return out


def _fill_masses(
    masses: Sequence[NDArray[np.float64]],
    stages: Sequence[Taps],
    values: NDArray[np.float64],
    threads: Threads,
) -> None:
    """Set masses to what the stages make of one value a voxel, (N,), each after its stage."""
    for stage, before, mass in zip(stages, (values, *masses[:-1]), masses, strict=True):
        threads.run(stage_mass, stage.rows, stage, before, mass)


def _own_response(lattice: Lattice, threads: Threads) -> NDArray[np.float64]:
    """Return what a voxel gets back of its own value on a lattice without holes, (N,)."""
    table = lattice.blur.responses(lattice.dimensions)
    own = np.empty(len(lattice.weights))
    threads.run(own_response, len(own), lattice.weights, table, own)
    return own


def slice_rows(
    lattice_filter: Filter, rows: NDArray[np.float32], threads: Threads
) -> NDArray[np.float32]:
    """Return the filter's output at every voxel, (N, C), from its last stage."""
    out = np.empty((len(lattice_filter.columns), rows.shape[1]), dtype=np.float32)
    taps = Taps.of_table(lattice_filter.columns, lattice_filter.coefficients)
    threads.run(combine, len(out), taps, rows, out, np.float32(0))
    return out
