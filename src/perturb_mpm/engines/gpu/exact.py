"""Exact filters: all pairs of voxels, and for kernels of space alone axis by axis."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import torch

from perturb_mpm.engines.gpu.filters import normalizers
from perturb_mpm.engines.gpu.pairs_kernel import NARROW_LANES, SOURCES, all_pairs, widened
from perturb_mpm.grid import Grid
from perturb_mpm.kernels import Normalization

CHANNELS = 32  # filtered along the axes at once: always as many, so that results never differ


class Gaussian(Protocol):
    """K of one kernel, not normalised."""

    device: torch.device
    nbytes: int

    def apply(self, values: torch.Tensor, width: int) -> torch.Tensor:
        """Return K·values, (N, width) float32, for values (rows, ·), zero beyond N."""

    def row_sums(self, values: torch.Tensor) -> torch.Tensor:
        """Return K·values, (N,) float32, for values (N,)."""


class AllPairs:
    """K over all pairs of (N, d) features."""

    def __init__(self, features: torch.Tensor, dtype: torch.dtype) -> None:
        self._count = len(features)
        self._queries, self._sources = widened(features, dtype)
        self.device = features.device
        self.nbytes = self._queries.nbytes + self._sources.nbytes

    def apply(self, values: torch.Tensor, width: int) -> torch.Tensor:
        """Return K·values, (N, width) float32, for values (rows, ·), zero beyond N."""
        own = values.to(self._queries.dtype)
        return all_pairs(self._queries, self._sources, own, width, self._count)

    def row_sums(self, values: torch.Tensor) -> torch.Tensor:
        """Return K·values, (N,) float32, for values (N,)."""
        column = values.new_zeros((len(self._sources), NARROW_LANES), dtype=self._queries.dtype)
        column[: self._count, 0] = values.to(column.dtype)
        out = all_pairs(self._queries, self._sources, column, 1, self._count)
        return out[:, 0]


class AlongAxes:
    """K of positions alone, a product over the axes of the grid, in float32."""

    def __init__(self, grid: Grid, sigma: np.ndarray, index: torch.Tensor) -> None:
        self._matrices = []
        place = torch.zeros_like(index)
        shape = []
        for k, (size, spacing) in enumerate(zip(grid.shape, grid.spacing)):
            along = index // int(np.prod(grid.shape[k + 1 :], dtype=np.int64)) % size
            low, high = int(along.min()), int(along.max())
            x = torch.arange(high - low + 1, dtype=torch.float64, device=index.device)
            squares = ((x[:, None] - x) * (spacing / float(sigma[k]))) ** 2
            self._matrices.append(torch.exp(-squares / 2).float())
            place = place * (high - low + 1) + along - low
            shape.append(high - low + 1)
        self._shape, self._place = shape, place
        self.device = index.device
        self.nbytes = place.nbytes

    def apply(self, values: torch.Tensor, width: int) -> torch.Tensor:
        """Return K·values, (N, width) float32, for values (rows, ·), zero beyond N."""
        out = torch.empty((len(self._place), width), dtype=torch.float32, device=values.device)
        for first in range(0, width, CHANNELS):
            part = values[: len(self._place), first : min(first + CHANNELS, width)].float()
            out[:, first : first + CHANNELS] = self._filtered(part)
        return out

    def row_sums(self, values: torch.Tensor) -> torch.Tensor:
        """Return K·values, (N,) float32, for values (N,)."""
        return self.apply(values[:, None], 1)[:, 0]

    def _filtered(self, values: torch.Tensor) -> torch.Tensor:
        box = values.new_zeros((CHANNELS, math.prod(self._shape)))
        box[: values.shape[1], self._place] = values.T
        after = math.prod(self._shape)
        for size, matrix in zip(self._shape, self._matrices):
            after //= size
            if after > 1:
                box = torch.matmul(matrix, box.reshape(-1, size, after))
            else:
                box = torch.matmul(box.reshape(-1, size), matrix)  # symmetric
        return box.reshape(CHANNELS, -1)[: values.shape[1], self._place].T


class ExactFilter:
    """K̂ = diag(after) K diag(before)."""

    def __init__(self, gaussian: Gaussian, voxels: int, normalization: Normalization) -> None:
        self._gaussian = gaussian
        self.nbytes = gaussian.nbytes
        ones = torch.ones(voxels, dtype=torch.float32, device=gaussian.device)
        sums = gaussian.row_sums(ones).double()
        before, after = normalizers(sums, normalization)
        self._largest = float(before.max())
        self._before = (before / self._largest).float()  # (N,), so that halves hold it
        if normalization in ("symmetric", "before"):
            sums = self._largest * gaussian.row_sums(self._before).double()
        self._after = after.float()
        self.total = (after * sums).float()
        self.diagonal = (before * after).float()

    def apply(self, marginals: torch.Tensor, width: int) -> torch.Tensor:
        """Return K̂·marginals, (N, width) float32, for marginals (rows, stride)."""
        n = len(self._before)
        rows = -(-n // SOURCES) * SOURCES
        values = marginals.new_zeros((rows, marginals.shape[1]))
        values[:n] = (marginals[:n] * self._before[:, None]).to(marginals.dtype)
        out = self._gaussian.apply(values, width)
        return out.mul_((self._largest * self._after)[:, None])
