"""One kernel as a chain of sparse matrices, and what the tiles need of it.

    K̂ = diag(after) · slice · blur_d … blur_0 · splat · diag(before)

is the normalised kernel on a lattice of V vertices, (N, N). K̂Q is computed from values that lie
between 0 and 1 at every stage: each stage's rows are convex combinations of the previous stage's,
because they are divided by the mass that K̂'s own chain carries there. So 16-bit floats will do, and
the labels of a voxel always sum to the row sum of K̂.

A stage is a sparse matrix times rows of values: row ``targets[r]`` becomes
Σ_e coefficients[e]·source[columns[e]] for starts[r] ≤ e < stops[r], summed in float32 in the order
of the list, whatever the width of the rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from perturb_mpm.engines.gpu.device import is_interpreted
from perturb_mpm.engines.gpu.lattice import Lattice
from perturb_mpm.model import Normalization

# Vertices of a program, and how many of a vertex's corners are summed up at once.
CORNERS = (2**12, 16) if is_interpreted() else (1, 128)
BLOCK = 2**14 if is_interpreted() else 2**8
ROWS = 2**12 if is_interpreted() else 64
# Rows and channels of a program: of one problem, many rows.
WIDE = (256, 64) if is_interpreted() else (1, 1024)
NARROW = 16  # channels
ELEMENTS = 2**12 if is_interpreted() else 2**9
UNROLL = 2
WARPS = 4
WIDE_WARPS = 2
SKIPPED = -1
"""Where a list stops that is not there: its row stays as it is."""


@dataclass(frozen=True)
class Sparse:
    """Some rows of a sparse matrix, each a list of entries."""

    targets: torch.Tensor  # (R,) int32: which row of the result each one is
    starts: torch.Tensor  # (R,) int32
    stops: torch.Tensor  # (R,) int32, or SKIPPED
    columns: torch.Tensor  # int32
    coefficients: torch.Tensor  # float32

    @classmethod
    def of_width(cls, rows: int, width: int, device: torch.device) -> Sparse:
        """Return an empty matrix of all rows, in order, with ``width`` entries for every list."""
        row = torch.arange(rows, dtype=torch.int32, device=device)
        columns = torch.empty(rows * width, dtype=torch.int32, device=device)
        coefficients = torch.empty(rows * width, dtype=torch.float32, device=device)
        return cls(row, row * width, torch.empty_like(row), columns, coefficients)

    @property
    def nbytes(self) -> int:
        """The memory it takes."""
        return sum(part.nbytes for part in vars(self).values() if isinstance(part, torch.Tensor))


@triton.jit
def _combine(
    source, target, targets, starts, stops, columns, coefficients, count, stride, width,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    lanes = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = lanes < width
    real = row < count
    start = tl.load(starts + row, mask=real, other=0)
    stop = tl.load(stops + row, mask=real, other=0)
    real = real & (stop >= 0)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(0, tl.max(stop - start, axis=0), UNROLL):
        for each in tl.static_range(UNROLL):
            entry = start + first + each
            present = entry < stop
            column = tl.load(columns + entry, mask=present, other=0).to(tl.int64)
            coefficient = tl.load(coefficients + entry, mask=present, other=0.0)
            values = tl.load(
                source + column[:, None] * stride + lanes[None, :],
                mask=present[:, None] & inside[None, :],
                other=0.0,
            )
            total += coefficient[:, None] * values.to(tl.float32)
    position = tl.load(targets + row, mask=real, other=0).to(tl.int64)[:, None] * stride
    written = real[:, None] & inside[None, :]
    tl.store(target + position + lanes[None, :], total.to(target.dtype.element_ty), mask=written)


def combine(matrix: Sparse, source: torch.Tensor, target: torch.Tensor, width: int) -> None:
    """Write the matrix's rows of matrix·source; both have rows of the same stride."""
    rows = len(matrix.targets)
    (at_once, columns), warps = WIDE, WIDE_WARPS
    if width <= NARROW:
        warps = WARPS
        columns = 1 << (width - 1).bit_length()
        at_once = ELEMENTS // columns
    if rows:
        # triton.cdiv takes microseconds, and a small problem is combined in a few.
        _combine[(-(-rows // at_once), -(-width // columns))](
            source, target, matrix.targets, matrix.starts, matrix.stops, matrix.columns,
            matrix.coefficients, rows, source.stride(0), width,
            ROWS=at_once, COLUMNS=columns, UNROLL=UNROLL, num_warps=warps,
        )  # fmt: skip


@triton.jit
def _splat(
    weights, values, corners, pointers, touched, out, count, n, channels,
    P: tl.constexpr, ROWS: tl.constexpr, CORNERS: tl.constexpr,
):  # fmt: skip
    vertex = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    channel = tl.program_id(1)
    real = vertex < count
    start = tl.load(pointers + vertex, mask=real, other=0)
    stop = tl.load(pointers + vertex + 1, mask=real, other=0)
    total = tl.zeros((ROWS,), tl.float64)
    for first in range(0, tl.max(stop - start, axis=0).to(tl.int32), CORNERS):
        at = start[:, None] + first + tl.arange(0, CORNERS)[None, :]
        inside = at < stop[:, None]
        corner = tl.load(corners + at, mask=inside, other=0)
        weight = tl.load(weights + corner, mask=inside, other=0.0).to(tl.float64)
        source = (corner // P) % n
        value = tl.load(values + source * channels + channel, mask=inside, other=0.0)
        total += tl.sum(weight * value.to(tl.float64), axis=1)
    row = tl.load(touched + vertex, mask=real, other=0)
    tl.store(out + row * channels + channel, total, mask=real)


def splat_values(lattice: Lattice, values: torch.Tensor) -> torch.Tensor:
    """Return what each vertex gets of (N, C) values, (V, C) float64.

    A lattice of several copies of the N vectors takes the same values for each. No sum is atomic:
    its order, and with it the last bits, would change from run to run.
    """
    n, channels = values.shape
    out = torch.zeros((lattice.vertices, channels), dtype=torch.float64, device=values.device)
    rows, corners = CORNERS
    _splat[(triton.cdiv(len(lattice.touched), rows), channels)](
        lattice.weights, values.contiguous(), lattice.corners, lattice.pointers, lattice.touched,
        out, len(lattice.touched), n, channels,
        P=lattice.dimensions + 1, ROWS=rows, CORNERS=corners, num_warps=1,
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["taps"])
def _blur(source, found, weights, out, count, channels, taps, BLOCK: tl.constexpr):
    vertex = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    channel = tl.program_id(1)
    real = vertex < count
    total = tl.zeros((BLOCK,), tl.float64)
    for k in range(taps):
        there = tl.load(found + vertex * taps + k, mask=real, other=-1).to(tl.int64)
        value = tl.load(source + there * channels + channel, mask=there >= 0, other=0.0)
        total += tl.load(weights + k) * value
    tl.store(out + vertex * channels + channel, total, mask=real)


def blur_rows(source: torch.Tensor, found: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return one pass of the blur on (V, C) float64 values; what is absent, −1, counts as 0."""
    count, channels = source.shape
    out = torch.empty_like(source)
    _blur[(triton.cdiv(count, BLOCK), channels)](
        source, found, weights, out, count, channels, found.shape[1], BLOCK=BLOCK, num_warps=4
    )
    return out


@triton.jit
def _receive(
    weights, columns, mass, responses, raw, own, count, P: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    real = row < count
    total = tl.zeros((BLOCK,), tl.float64)
    back = tl.zeros((BLOCK,), tl.float64)
    for j in range(P):
        weight = tl.load(weights + row * P + j, mask=real, other=0.0).to(tl.float64)
        column = tl.load(columns + row * P + j, mask=real, other=0)
        total += weight * tl.load(mass + column, mask=real, other=0.0)
        for i in range(j + 1):
            other = tl.load(weights + row * P + i, mask=real, other=0.0).to(tl.float64)
            back += tl.load(responses + j - i) * weight * other
    tl.store(raw + row, total, mask=real)
    tl.store(own + row, back, mask=real)


def receive_mass(lattice: Lattice, mass: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what each vector gets of the vertices' mass (V, 1), and what it would get of itself.

    Both are (M,) float64; the latter is what a lattice without holes gives.
    """
    count, p = lattice.columns.shape
    raw, own = (torch.empty(count, dtype=torch.float64, device=mass.device) for _ in range(2))
    responses = lattice.blur.responses(p - 1)
    responses[1:] *= 2  # there and back
    _receive[(triton.cdiv(count, BLOCK),)](
        lattice.weights, lattice.columns, mass, torch.from_numpy(responses).to(mass.device), raw,
        own, count,
        P=p, BLOCK=BLOCK, num_warps=4,
    )  # fmt: skip
    return raw, own


@triton.jit
def _weigh(
    weights, columns, mass, before, after, slices, splats, total, count,
    P: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    real = row < count
    factor = tl.load(after + row, mask=real, other=0.0)
    sent = tl.load(before + row, mask=real, other=0.0)
    every = tl.zeros((BLOCK,), tl.float64)
    for j in range(P):
        at = row * P + j
        weight = tl.load(weights + at, mask=real, other=0.0).to(tl.float64)
        column = tl.load(columns + at, mask=real, other=0)
        share = weight * tl.load(mass + column, mask=real, other=0.0) * factor
        tl.store(slices + at, share.to(tl.float32), mask=real)
        tl.store(splats + at, (weight * sent).to(tl.float32), mask=real)
        every += share
    tl.store(total + row, every.to(tl.float32), mask=real)


@dataclass(frozen=True)
class Weighed:
    """What splat and slice are made of."""

    splats: torch.Tensor  # (N, p) float32
    slices: torch.Tensor  # (N, p) float32
    total: torch.Tensor  # (N,) float32


def weigh(
    lattice: Lattice, mass: torch.Tensor, before: torch.Tensor, after: torch.Tensor
) -> Weighed:
    """Return splats, weights times ``before``, and slices, weights times mass times ``after``."""
    count, p = lattice.columns.shape
    weighed = Weighed(
        torch.empty_like(lattice.weights),
        torch.empty_like(lattice.weights),
        torch.empty(count, dtype=torch.float32, device=mass.device),
    )
    _weigh[(triton.cdiv(count, BLOCK),)](
        lattice.weights, lattice.columns, mass, before, after, weighed.slices, weighed.splats,
        weighed.total, count,
        P=p, BLOCK=BLOCK, num_warps=4,
    )  # fmt: skip
    return weighed


@triton.jit(do_not_specialize=["taps"])
def _shares(
    found, weights, mass, needed, sources, stops, columns, coefficients, count, taps,
    SKIPPED: tl.constexpr, ROWS: tl.constexpr, TAPS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    tap = tl.arange(0, TAPS)[None, :]
    wanted = tl.load(needed + row, mask=row < count, other=0) != 0
    there = tl.load(
        found + row[:, None] * taps + tap, mask=wanted[:, None] & (tap < taps), other=-1
    ).to(tl.int64)
    present = there >= 0
    share = tl.load(mass + there, mask=present, other=0.0)
    share *= tl.load(weights + tap, mask=tap < taps, other=0.0)
    present = present & (share > 0)
    total = tl.sum(share, axis=1)
    share = share / tl.where(total > 0, total, 1.0)[:, None]
    position = tl.cumsum(present.to(tl.int32), axis=1) - 1
    at = row[:, None] * taps + position
    tl.store(columns + at, there.to(tl.int32), mask=present)
    tl.store(coefficients + at, share.to(tl.float32), mask=present)
    tl.store(sources + there, tl.full((ROWS, TAPS), 1, tl.uint8), mask=present)
    length = tl.sum(present.to(tl.int32), axis=1)
    stop = tl.where(wanted, (row * taps).to(tl.int32) + length, SKIPPED)
    tl.store(stops + row, stop, mask=row < count)


def mass_shares(
    found: torch.Tensor, weights: torch.Tensor, mass: torch.Tensor, needed: torch.Tensor
) -> tuple[Sparse, torch.Tensor]:
    """Return a pass as shares of mass (V, 1), and which vertices its rows read, (V,) uint8.

    Rows that are not ``needed`` (V,) are skipped.
    """
    count, taps = found.shape
    sources = torch.zeros_like(needed)
    matrix = Sparse.of_width(count, taps, found.device)
    _shares[(triton.cdiv(count, ROWS),)](
        found, weights, mass, needed, sources, matrix.stops, matrix.columns, matrix.coefficients,
        count, taps,
        SKIPPED=SKIPPED, ROWS=ROWS, TAPS=triton.next_power_of_2(taps), num_warps=4,
    )  # fmt: skip
    return matrix, sources


@dataclass(frozen=True)
class LatticeFilter:
    """K̂ on a lattice: the blur passes, and what splat and slice are made of."""

    columns: torch.Tensor  # (N, p) int32: the vertices of each voxel
    vertices: int  # V
    passes: tuple[Sparse, ...]
    splats: torch.Tensor  # (N, p) float32: weights times before
    mass: torch.Tensor  # (V,) float64: what all splats bring to each vertex
    slices: torch.Tensor  # (N, p) float32: rows sum to ``total``
    total: torch.Tensor  # (N,) float32: K̂·1
    diagonal: torch.Tensor  # (N,) float32


def factorize(
    lattice: Lattice,
    normalization: Normalization,
    gain: float,
) -> LatticeFilter:
    """Make the normalised filter of a lattice; ``gain`` multiplies the raw lattice's output."""
    ones = torch.ones((len(lattice.columns), 1), dtype=torch.float64, device=lattice.weights.device)
    masses = filtered_masses(lattice, ones)
    raw, own = receive_mass(lattice, masses[-1])
    raw *= gain  # (N,): K·1
    before, after = normalizers(raw, normalization)
    if normalization in ("symmetric", "before"):
        masses = filtered_masses(lattice, before[:, None])
    weighed = weigh(lattice, masses[-1], before, gain * after)
    needed = torch.zeros(lattice.vertices, dtype=torch.uint8, device=ones.device)
    needed[lattice.touched] = 1
    passes = []
    for found, weights, mass in reversed(
        list(zip(lattice.passes, lattice.pass_weights, masses[:-1], strict=True))
    ):
        taps, needed = mass_shares(found, weights, mass, needed)
        passes.append(taps)
    return LatticeFilter(
        columns=lattice.columns,
        vertices=lattice.vertices,
        passes=tuple(reversed(passes)),
        splats=weighed.splats,
        mass=masses[0][:, 0],
        slices=weighed.slices,
        total=weighed.total,
        diagonal=(torch.minimum(gain * own, raw) * before * after).float(),
    )


def row_sums(lattice: Lattice) -> torch.Tensor:
    """Return K·1 of the raw lattice, (N,)."""
    ones = torch.ones((len(lattice.columns), 1), dtype=torch.float64, device=lattice.weights.device)
    return receive_mass(lattice, filtered_masses(lattice, ones)[-1])[0]


def filtered_masses(lattice: Lattice, values: torch.Tensor) -> list[torch.Tensor]:
    """Return what the stages make of (N, C) values: after the splat and each pass, (V, C)."""
    masses = [splat_values(lattice, values)]
    for found, weights in zip(lattice.passes, lattice.pass_weights, strict=True):
        masses.append(blur_rows(masses[-1], found, weights))
    return masses


def normalizers(
    row_sum: torch.Tensor, normalization: Normalization
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what multiplies the values before and after K, both (N,), given K·1."""
    ones = torch.ones_like(row_sum)
    if normalization == "symmetric":
        return (root := 1 / torch.sqrt(row_sum)), root
    if normalization == "before":
        return 1 / row_sum, ones
    if normalization == "after":
        return ones, 1 / row_sum
    return ones, ones
