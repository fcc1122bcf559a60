"""Sparse matrix times rows of values: the outer splat and every blur pass.

Row ``targets[r]`` becomes Σ_e coefficients[e]·source[columns[e]] for pointers[r] ≤ e <
pointers[r + 1], summed in float32 in the order of the list, whatever the width of the rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from perturb_mpm.engines.gpu.device import interpreted

# Rows and channels of a program: of one problem, many rows.
WIDE = (256, 64) if interpreted() else (1, 1024)
NARROW = (256, 16) if interpreted() else (64, 16)
UNROLL = 2
WARPS = 4


@dataclass(frozen=True)
class Sparse:
    """Some rows of a sparse matrix."""

    targets: torch.Tensor  # (R,) int32: which row of the result each one is
    pointers: torch.Tensor  # (R + 1,) int32
    columns: torch.Tensor  # int32
    coefficients: torch.Tensor  # float32

    @property
    def nbytes(self) -> int:
        """The memory it takes."""
        return sum(part.nbytes for part in vars(self).values())


@triton.jit
def _combine(
    source,
    target,
    targets,
    pointers,
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
    start = tl.load(pointers + row, mask=real, other=0)
    stop = tl.load(pointers + row + 1, mask=real, other=0)
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
    place = tl.load(targets + row, mask=real, other=0).to(tl.int64)[:, None] * stride
    written = real[:, None] & inside[None, :]
    tl.store(target + place + lanes[None, :], total.to(target.dtype.element_ty), mask=written)


def combine(matrix: Sparse, source: torch.Tensor, target: torch.Tensor, width: int) -> None:
    """Write the matrix's rows of matrix·source; both have rows of the same stride."""
    rows = len(matrix.targets)
    at_once, columns = NARROW if width <= NARROW[1] else WIDE
    if rows:
        _combine[(triton.cdiv(rows, at_once), triton.cdiv(width, columns))](
            source,
            target,
            matrix.targets,
            matrix.pointers,
            matrix.columns,
            matrix.coefficients,
            rows,
            source.stride(0),
            width,
            ROWS=at_once,
            COLUMNS=columns,
            UNROLL=UNROLL,
            num_warps=WARPS,
        )


def combine_twin(matrix: Sparse, source: torch.Tensor, target: torch.Tensor, width: int) -> None:
    """Do what ``combine`` does in plain PyTorch."""
    lengths = matrix.pointers.diff().long()
    owner = torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths)
    values = matrix.coefficients[:, None] * source[matrix.columns.long(), :width].float()
    total = values.new_zeros((len(lengths), width)).index_add_(0, owner, values)
    target[matrix.targets.long(), :width] = total.to(target.dtype)
