"""Sparse matrix times rows of values: the outer splat and every blur pass.

Row ``targets[r]`` becomes Σ_e coefficients[e]·source[columns[e]] for starts[r] ≤ e < stops[r],
summed in float32 in the order of the list, whatever the width of the rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from perturb_mpm.engines.gpu.device import is_interpreted

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
    source,
    target,
    targets,
    starts,
    stops,
    columns,
    coefficients,
    count,
    stride,
    width,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    UNROLL: tl.constexpr,
):
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
            source,
            target,
            matrix.targets,
            matrix.starts,
            matrix.stops,
            matrix.columns,
            matrix.coefficients,
            rows,
            source.stride(0),
            width,
            ROWS=at_once,
            COLUMNS=columns,
            UNROLL=UNROLL,
            num_warps=warps,
        )
