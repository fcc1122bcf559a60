"""Choosing the lattice's scale and gain by comparing it with rows of the exact kernel.

``engines/lattice/blur.py`` says why, and on which part of the image. Here all scales are tried at
once, on copies of the part side by side.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from perturb_mpm.engines.gpu.chain import filtered_masses, row_sums
from perturb_mpm.engines.gpu.device import on_device
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
    """Return the blur with the scale that filters (N, L) marginals of some voxels best.

    The error is that of K·Q / K·1 at random ones of them.
    """
    n = len(features)
    queries = _queries(n, features.device)
    ones = torch.ones((n, 1), dtype=marginals.dtype, device=marginals.device)
    values = torch.cat([marginals, ones], 1)
    exact = exact_rows(features, queries, values)
    copies = len(CALIBRATION_SCALES)
    lattice = build(features, blur, CALIBRATION_SCALES)
    filtered = filtered_masses(lattice, values)[-1]  # (V, L + 1)
    asked = (torch.arange(copies, device=queries.device)[:, None] * n + queries).reshape(-1)
    weights, columns = lattice.weights[asked], lattice.columns[asked].long()
    found = (weights[:, :, None] * filtered[columns]).sum(1).unflatten(0, (copies, -1))
    wrong = found[..., :-1] / found[..., -1:] - exact[:, :-1] / exact[:, -1:]
    errors = (wrong**2).mean((1, 2))
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
        for k in range(here.shape[1]):  # cdist takes ten times as long
            away = here[:, k, None] - there[:, k]
            squares.addcmul_(away, away)
        out += torch.exp(squares.div_(-2)).double() @ values[first:][: len(there)].double()
    return out


def calibration_part(foreground: torch.Tensor) -> slice:
    """Return the run of voxels, consecutive in the engine's order, with most foreground."""
    size = min(CALIBRATION_VOXELS, len(foreground))
    # Whole numbers: their sums are the same in any order, and the device adds in any.
    units = (foreground.double() * _FIXED_POINT).round().long()
    sums = torch.cat([units.new_zeros(1), units.cumsum(0)])
    start = int((sums[size:] - sums[: len(sums) - size]).argmax())
    return slice(start, start + size)


def _queries(count: int, device: torch.device) -> torch.Tensor:
    return on_device(calibration_rows(count), device)
