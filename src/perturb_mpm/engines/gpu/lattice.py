"""The permutohedral lattice of one kernel, built on the device by sorting keys.

The vertices, their weights and their neighbours are those of the CPU engine: the same keys
(``engines/lattice/keys.py``), the same arithmetic in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from perturb_mpm.engines.gpu.device import on_device
from perturb_mpm.engines.gpu.lattice_kernels import (
    NO_KEY,
    curve_codes,
    embed,
    look_up,
    missing_neighbours,
)
from perturb_mpm.engines.lattice import Blur, KeyCode, key_code


@dataclass(frozen=True)
class Lattice:
    """M feature vectors on a lattice of V vertices, which lie along a Morton curve, or by key."""

    blur: Blur
    columns: torch.Tensor  # (M, d+1) int32: the vertices of each vector's simplex
    weights: torch.Tensor  # (M, d+1) float32: its barycentric coordinates
    corners: torch.Tensor  # (M·(d+1),) int64: all corners, those of a vertex side by side
    touched: torch.Tensor  # (U,) int64: the vertices with corners, in the order of ``corners``
    pointers: torch.Tensor  # (U + 1,) int64: where the corners of each begin
    vertices: int  # V
    passes: tuple[torch.Tensor, ...]  # (V, taps) int32 each: the vertices at the taps, -1 if absent
    pass_weights: tuple[torch.Tensor, ...]  # (taps,) float64 each

    @property
    def dimensions(self) -> int:
        """d, the number of features."""
        return int(self.columns.shape[1]) - 1


def build(features: torch.Tensor, blur: Blur, scales: Sequence[float] | None = None) -> Lattice:
    """Build the lattice of (N, d) float32 features in units of sigma.

    With S ``scales``, which then stand for the blur's own, it holds S copies of all vectors, one
    after the other, each on a lattice of its own.
    """
    d = features.shape[1]
    blurs = [blur] if scales is None else [replace(blur, scale=scale) for scale in scales]
    table = np.stack([b.feature_scales(d) for b in blurs])  # (S, d)
    low, high = torch.stack(torch.aminmax(features, dim=0)).double().cpu().numpy()
    code = key_code(low, high, table)
    tables = _Tables.of(table, blur, code, features.device)
    stride = code.copy_stride if len(blurs) > 1 else 0
    keys, weights = embed(features, tables.scales, tables.neighbours[: d + 1], stride)
    # A curve through several lattices is not worth its sorting: they are used only once.
    return _connect(keys, weights, blur, code, tables, along_curve=scales is None)


@dataclass(frozen=True)
class _Tables:
    """What small arrays the device needs of a lattice, sent in two copies."""

    scales: torch.Tensor  # (S, d) float32
    neighbours: torch.Tensor  # (2(d + 1),) int64: the key steps to all neighbours
    steps: tuple[torch.Tensor, ...]  # (taps,) int64 a pass
    weights: tuple[torch.Tensor, ...]  # (taps,) float64 a pass

    @classmethod
    def of(
        cls, scales: NDArray[np.float32], blur: Blur, code: KeyCode, device: torch.device
    ) -> _Tables:
        directions = code.directions
        steps, weights = zip(*blur.passes(directions), strict=True)
        sizes = [len(each) for each in steps]
        keys = on_device(np.concatenate([directions, -directions, *steps]), device)
        values = on_device(np.concatenate([scales.reshape(-1), *weights]), device)
        neighbours, *steps_there = keys.split([2 * len(directions), *sizes])
        scales_there, *weights_there = values.split([scales.size, *sizes])
        return cls(
            scales_there.float().view(scales.shape),
            neighbours,
            tuple(steps_there),
            tuple(weights_there),
        )


def _connect(
    keys: torch.Tensor,
    weights: torch.Tensor,
    blur: Blur,
    code: KeyCode,
    tables: _Tables,
    *,
    along_curve: bool,
) -> Lattice:
    """Lay the vertices of (M, d+1) keys along a Morton curve and find their neighbours."""
    d = keys.shape[1] - 1
    ordered, corners = torch.sort(keys.reshape(-1), stable=True)
    first = torch.ones_like(ordered, dtype=torch.bool)
    torch.ne(ordered[1:], ordered[:-1], out=first[1:])
    starts = torch.nonzero(first)[:, 0]
    touched = ordered[starts]
    touched_places = torch.arange(len(touched), device=keys.device)
    vertices = touched
    if blur.dilation:
        added = _dilation(touched, tables.neighbours, blur.fewest_neighbours(d))
        vertices, touched_places = _merged(touched, added)
    place = torch.arange(len(vertices), device=keys.device)  # of each vertex by key
    if code.sizes is not None and along_curve:
        curve = torch.argsort(curve_codes(vertices, code.lowest, code.sizes), stable=True)
        place = torch.empty_like(curve).scatter_(0, curve, place)
        touched_places = place[touched_places]
    columns = torch.empty(len(corners), dtype=torch.int32, device=keys.device)
    columns[corners] = touched_places.int()[first.cumsum(0, dtype=torch.int32) - 1]
    return Lattice(
        blur=blur,
        columns=columns.view(keys.shape),
        weights=weights,
        corners=corners,
        touched=touched_places,
        pointers=torch.cat([starts, starts.new_full((1,), len(ordered))]),
        vertices=len(vertices),
        passes=tuple(look_up(vertices, place, steps) for steps in tables.steps),
        pass_weights=tables.weights,
    )


def _merged(one: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Merge sorted keys, none of which is in both; return where those of the first are, too."""
    places = torch.arange(len(one), device=one.device) + torch.searchsorted(other, one)
    rest = torch.arange(len(other), device=one.device) + torch.searchsorted(one, other)
    every = one.new_empty(len(one) + len(other))
    every[places], every[rest] = one, other
    return every, places


def _dilation(vertices: torch.Tensor, steps: torch.Tensor, least: int) -> torch.Tensor:
    """Return the keys of missing vertices that have at least so many neighbours."""
    wanted = torch.sort(missing_neighbours(vertices, steps))[0]
    # Equal keys lie side by side: a run is long enough where the key so many places on is the same.
    key = wanted[: len(wanted) - least + 1]
    enough = (key == wanted[least - 1 :]) & (key != NO_KEY)
    enough[1:] &= key[1:] != key[:-1]
    return key[enough]
