"""Choosing the lattice's scale and gain by comparing it with rows of the exact kernel.

``engines/lattice/blur.py`` says why, and on which part of the image. Here all scales are tried at
once, on copies of the part side by side.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from perturb_mpm.engines.gpu.chain import LatticeFilter, factorize, row_sums, splat_matrix
from perturb_mpm.engines.gpu.combine_kernel import Sparse, combine
from perturb_mpm.engines.gpu.lattice import Lattice, build
from perturb_mpm.engines.lattice import (
    CALIBRATION_SCALES,
    CALIBRATION_VOXELS,
    Blur,
    calibration_rows,
)

_FIXED_POINT = 2**20
_SOURCES_AT_ONCE = 2**16


def calibrated_scale(features: torch.Tensor, marginals: torch.Tensor, blur: Blur) -> Blur:
    """Return the blur with the scale that filters (N, L) marginals best.

    The error is that of K·Q / K·1 at random voxels of the part.
    """
    part = _part(1 - marginals[:, 0])
    features, values = features[part], marginals[part]
    n = len(features)
    queries = _queries(n, features.device)
    ones = torch.ones((n, 1), dtype=values.dtype, device=values.device)
    exact = exact_rows(features, queries, torch.cat([values, ones], 1))
    wanted = exact[:, :-1] / exact[:, -1:]  # (M, L)
    lattice_filter = factorize(build(features, blur, CALIBRATION_SCALES), "after", 1.0)
    copies = len(CALIBRATION_SCALES)
    asked = (torch.arange(copies, device=queries.device)[:, None] * n + queries).reshape(-1)
    filtered = _filtered(lattice_filter, values.repeat(copies, 1), asked)
    filtered = filtered.reshape(copies, len(queries), -1).double()
    errors = ((filtered - wanted) ** 2).mean((1, 2))
    return replace(blur, scale=CALIBRATION_SCALES[int(errors.argmin())])


def calibrated_gain(features: torch.Tensor, lattice: Lattice) -> float:
    """Return the factor that makes the lattice's row sums those of the exact kernel on average."""
    queries = _queries(len(features), features.device)
    ones = torch.ones((len(features), 1), dtype=torch.float32, device=features.device)
    exact = exact_rows(features, queries, ones)
    return float(exact.sum() / row_sums(lattice)[queries].sum())


def exact_rows(features: torch.Tensor, queries: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return K·values (M, C) at the queried voxels (M,) for features (N, d), values (N, C)."""
    here = features[queries]  # (M, d)
    out = torch.zeros((len(queries), values.shape[1]), dtype=torch.float64, device=values.device)
    for first in range(0, len(features), _SOURCES_AT_ONCE):
        there = features[first : first + _SOURCES_AT_ONCE]
        squares = torch.zeros((len(here), len(there)), device=here.device)
        for k in range(here.shape[1]):
            squares += (here[:, k, None] - there[:, k]) ** 2
        out += torch.exp(-squares / 2).double() @ values[first : first + len(there)].double()
    return out


def _part(foreground: torch.Tensor) -> slice:
    """Return the run of voxels, consecutive in the engine's order, with most foreground."""
    size = min(CALIBRATION_VOXELS, len(foreground))
    # Whole numbers: their sums are the same in any order, and the device adds in any.
    units = (foreground.double() * _FIXED_POINT).round().long()
    sums = torch.cat([units.new_zeros(1), units.cumsum(0)])
    start = int((sums[size:] - sums[: len(sums) - size]).argmax())
    return slice(start, start + size)


def _queries(count: int, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(calibration_rows(count)).to(device)


def _filtered(
    lattice_filter: LatticeFilter, values: torch.Tensor, asked: torch.Tensor
) -> torch.Tensor:
    """Return K·values / K·1 of the lattice at some voxels, (M, L)."""
    width = values.shape[1]
    source = values.float().contiguous()
    for stage in (splat_matrix(lattice_filter), *lattice_filter.passes):
        target = torch.zeros((lattice_filter.vertices, width), device=values.device)
        combine(stage, source, target, width)
        source = target
    p = lattice_filter.columns.shape[1]
    last = Sparse(
        torch.arange(len(asked), dtype=torch.int32, device=asked.device),
        torch.arange(len(asked) + 1, dtype=torch.int32, device=asked.device) * p,
        lattice_filter.columns[asked].reshape(-1),
        lattice_filter.slices[asked].reshape(-1),
    )
    out = torch.empty((len(asked), width), device=values.device)
    combine(last, source, out, width)
    return out
