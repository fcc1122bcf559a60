"""The permutohedral lattice of one kernel, built on the device by sorting keys.

The vertices, their weights and their neighbours are those of the CPU engine: the same keys
(``engines/lattice/keys.py``), the same arithmetic in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from perturb_mpm.engines.gpu.device import on_device
from perturb_mpm.engines.lattice import Blur, KeyCode, key_code


@dataclass(frozen=True)
class Lattice:
    """M feature vectors on a lattice of V vertices, which lie along a Morton curve."""

    blur: Blur
    columns: torch.Tensor  # (M, d+1) int32: the vertices of each vector's simplex
    weights: torch.Tensor  # (M, d+1) float32: its barycentric coordinates
    corners: torch.Tensor  # (M·(d+1),) int64: all corners, those of a vertex side by side
    touched: torch.Tensor  # (U,) int64: the vertices with corners, in the order of ``corners``
    counts: torch.Tensor  # (U,) int64: how many corners each has
    vertices: int  # V
    passes: tuple[torch.Tensor, ...]  # (V, taps) int32 each: the vertices at the taps, -1 if absent
    pass_weights: tuple[tuple[float, ...], ...]

    @property
    def dimensions(self) -> int:
        """d, the number of features."""
        return int(self.columns.shape[1]) - 1


def build(features: torch.Tensor, blur: Blur, scales: Sequence[float] | None = None) -> Lattice:
    """Build the lattice of (N, d) float32 features in units of sigma.

    With S ``scales``, which then stand for the blur's own, it holds S copies of all vectors, one
    after the other, each on a lattice of its own.
    """
    n, d = features.shape
    blurs = [blur] if scales is None else [replace(blur, scale=scale) for scale in scales]
    table = np.stack([b.feature_scales(d) for b in blurs])  # (S, d)
    low, high = (bound.double().cpu().numpy() for bound in (features.amin(0), features.amax(0)))
    code = key_code(low, high, table)
    each = on_device(table, features.device).repeat_interleave(n, 0)
    keys, weights = embed(features.repeat(len(blurs), 1), each, code)
    if len(blurs) > 1:
        copy = torch.arange(len(blurs), device=keys.device).repeat_interleave(n)
        keys += (copy * code.copy_stride)[:, None]
    return _connect(keys, weights, blur, code)


def embed(
    features: torch.Tensor, scale: torch.Tensor, code: KeyCode
) -> tuple[torch.Tensor, torch.Tensor]:
    """Find the simplex around each feature vector: keys (M, d+1) of its vertices, and weights.

    Everything is in float32, in the order of the published algorithm, so that ties fall the same
    way and the vertices are the same.
    """
    m, d = features.shape
    size, inverse = float(d + 1), float(torch.tensor(1.0) / (d + 1))
    terms = features * scale
    elevated = torch.empty((m, d + 1), dtype=torch.float32, device=features.device)
    tail = torch.zeros_like(terms[:, 0])
    for j in range(d, 0, -1):
        scaled = terms[:, j - 1] * j
        elevated[:, j] = tail - scaled
        tail = tail + terms[:, j - 1]
    elevated[:, 0] = tail
    cell = torch.round(elevated * inverse)
    rest = cell * size
    rest = elevated - rest
    rank = _descending_rank(rest) + cell.sum(1, keepdim=True).long()
    under, over = rank < 0, rank > d
    rank += (under.long() - over.long()) * (d + 1)
    cell += under.float() - over.float()
    rest = cell * size
    share = (elevated - rest) * inverse
    by_rank = torch.empty_like(share).scatter_(1, rank, share)
    holder = torch.empty_like(rank).scatter_(
        1, rank, torch.arange(d + 1, device=rank.device).expand(m, -1)
    )
    weights = torch.empty_like(share)
    weights[:, 1:] = by_rank[:, :-1].flip(1) - by_rank[:, 1:].flip(1)
    weights[:, 0] = by_rank[:, d] + (1 - by_rank[:, 0])
    keys = torch.empty_like(rank)
    whole = cell.long()
    strides = on_device(code.strides, keys.device)
    keys[:, 0] = ((whole[:, d:] - whole[:, :d]) * strides).sum(1)
    steps = on_device(code.directions, keys.device)[holder]
    for r in range(1, d + 1):
        keys[:, r] = keys[:, r - 1] + steps[:, d - r + 1]
    return keys, weights.clamp_(min=0)


def _descending_rank(values: torch.Tensor) -> torch.Tensor:
    """Return each value's place in its row, the largest first, the first of equals first."""
    count = values.shape[1]
    rank = torch.zeros(values.shape, dtype=torch.int64, device=values.device)
    for j in range(count - 1):
        smaller = values[:, j : j + 1] < values[:, j + 1 :]
        rank[:, j] += smaller.sum(1)
        rank[:, j + 1 :] += ~smaller
    return rank


def _connect(keys: torch.Tensor, weights: torch.Tensor, blur: Blur, code: KeyCode) -> Lattice:
    """Lay the vertices of (M, d+1) keys along a Morton curve and find their neighbours."""
    d = keys.shape[1] - 1
    ordered, corners = torch.sort(keys.reshape(-1), stable=True)
    first = torch.ones_like(ordered, dtype=torch.bool)
    first[1:] = ordered[1:] != ordered[:-1]
    touched = ordered[first]
    number = torch.empty_like(corners)
    number[corners] = first.cumsum(0) - 1  # among the touched vertices, by key
    starts = torch.nonzero(first)[:, 0]
    counts = torch.diff(starts, append=starts.new_tensor([len(ordered)]))
    vertices, directions = touched, code.directions
    if blur.dilation:
        steps = on_device(np.concatenate([directions, -directions]), keys.device)
        added = _dilation(touched, steps, blur.fewest_neighbours(d))
        vertices = torch.sort(torch.cat([touched, added]))[0]
    curve = torch.argsort(code.curve(vertices), stable=True)
    place = torch.empty_like(curve)  # on the curve, of each vertex by key
    place[curve] = torch.arange(len(curve), device=curve.device)
    touched_places = place[torch.searchsorted(vertices, touched)]
    passes, pass_weights = [], []
    for offsets, taps in blur.passes(directions):
        passes.append(_look_up(vertices, place, on_device(offsets, keys.device))[curve])
        pass_weights.append(tuple(taps.tolist()))
    return Lattice(
        blur=blur,
        columns=touched_places[number].reshape(keys.shape).int(),
        weights=weights,
        corners=corners,
        touched=touched_places,
        counts=counts,
        vertices=len(vertices),
        passes=tuple(passes),
        pass_weights=tuple(pass_weights),
    )


def _dilation(vertices: torch.Tensor, steps: torch.Tensor, least: int) -> torch.Tensor:
    """Return the keys of missing vertices that have at least so many neighbours."""
    wanted = (vertices + steps[:, None]).reshape(-1)
    wanted = wanted[_find(vertices, wanted) < 0]
    added, neighbours = torch.unique(wanted, return_counts=True)
    return added[neighbours >= least]


def _find(vertices: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Return where each key is among the sorted keys of the vertices, −1 where it is not."""
    at = torch.searchsorted(vertices, keys).clamp_(max=len(vertices) - 1)
    return torch.where(vertices[at] == keys, at, -1)


def _look_up(vertices: torch.Tensor, place: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
    """Return the places of the vertices at the given key steps, (V, steps), by key."""
    at = _find(vertices, vertices[:, None] + steps)
    return torch.where(at >= 0, place[at], -1).int()
