"""The permutohedral lattice of one kernel, built on the device by sorting keys.

The vertices, their weights and their neighbours are those of the CPU engine (``cpu/lattice.py``,
``cpu/lattice_kernels.py``): the same arithmetic in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from perturb_mpm.engines.cpu import Blur

# Room in the keys for the neighbours of the outermost vertices.
MARGIN = 8
LARGEST_BOX = 2**62
HASHED_SEED = 20170615


def elevation_scale(dimensions: int, blur: Blur) -> list[float]:
    """Return what each feature is multiplied by, so that the whole filter has unit variance."""
    # Rounded where the published algorithm rounds, to find the very same vertices.
    wanted = float(np.float32(math.sqrt(blur.variance) * (dimensions + 1) * blur.scale))
    return [float(np.float32(wanted / math.sqrt((j + 2) * (j + 1)))) for j in range(dimensions)]


@dataclass(frozen=True)
class KeyCode:
    """How vertex coordinates c (d,) become a 64-bit key, strides·c, of one of several copies.

    The key is a mixed-radix number where the lattices' boxes fit in 62 bits, so that different
    vertices always have different keys. For larger boxes (many channels) ``sizes`` is None, the
    strides are random odd numbers, and two of a million vertices collide with a probability
    below 1e-7.
    """

    strides: torch.Tensor  # (d,) int64
    copy_stride: int
    lowest: int  # the smallest key of the first copy
    sizes: tuple[int, ...] | None

    @property
    def directions(self) -> torch.Tensor:
        """The key step along each of the d + 1 directions, (d + 1,)."""
        return torch.cat([self.strides, -self.strides.sum(0, keepdim=True)])

    def locality(self, keys: torch.Tensor) -> torch.Tensor:
        """Return the place of each vertex on a Morton curve through the lattice, (V,)."""
        if self.sizes is None:
            return torch.zeros_like(keys)
        rest, coordinates = keys - self.lowest, []
        for size in self.sizes:
            coordinates.append(rest % size)
            rest = rest // size
        return interleaved(torch.stack(coordinates, 1), max(self.sizes).bit_length())


def interleaved(coordinates: torch.Tensor, bits: int) -> torch.Tensor:
    """Return places on a Morton curve, (M,), of whole coordinates (M, d) of so many bits.

    Where there are more than 63 bits in all, the upper ones of every coordinate are left out.
    """
    d = coordinates.shape[1]
    bit = torch.arange(min(bits, 63 // d), device=coordinates.device)
    places = bit * d + torch.arange(d, device=coordinates.device)[:, None]  # (d, bits)
    return (((coordinates[:, :, None] >> bit) & 1) << places).sum((1, 2))


def key_code(features: torch.Tensor, scales: torch.Tensor) -> KeyCode:
    """Return the code for (N, d) features on copies of the lattice with scales (S, d)."""
    copies, d = scales.shape
    low, high = features.amin(0).double().cpu().numpy(), features.amax(0).double().cpu().numpy()
    least, most = np.full(d, np.inf), np.full(d, -np.inf)
    for scale in scales.double().cpu().numpy():
        elevation = np.zeros((d + 1, d))  # x = elevation @ f
        for j in range(1, d + 1):
            elevation[:j, j - 1] = scale[j - 1]
            elevation[j, j - 1] = -j * scale[j - 1]
        coordinates = (elevation[d] - elevation[:d]) / (d + 1)  # c = coordinates @ f
        extremes = np.stack([coordinates * low, coordinates * high])
        least = np.minimum(least, np.floor(extremes.min(axis=0).sum(axis=1)) - MARGIN)
        most = np.maximum(most, np.ceil(extremes.max(axis=0).sum(axis=1)) + MARGIN)
    sizes = tuple(int(s) for s in most - least + 1)
    if math.prod(sizes) * copies >= LARGEST_BOX:
        rng = np.random.default_rng(HASHED_SEED)
        odd = 2 * np.asarray(rng.integers(-(2**61), 2**61, size=(d + 1,))) + 1
        strides = torch.tensor(odd[:d], device=features.device)
        return KeyCode(strides, int(odd[d]), 0, None)
    strides = [math.prod(sizes[:j]) for j in range(d)]
    lowest = sum(int(c) * stride for c, stride in zip(least, strides, strict=True))
    return KeyCode(torch.tensor(strides, device=features.device), math.prod(sizes), lowest, sizes)


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
    table = torch.tensor([elevation_scale(d, b) for b in blurs], device=features.device)  # (S, d)
    code = key_code(features, table)
    keys, weights = embed(features.repeat(len(blurs), 1), table.repeat_interleave(n, 0), code)
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
    keys[:, 0] = ((whole[:, d:] - whole[:, :d]) * code.strides).sum(1)
    steps = code.directions[holder]
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
        least = math.ceil(2 * (d + 1) * blur.dilation)
        added = _dilation(touched, torch.cat([directions, -directions]), least)
        vertices = torch.sort(torch.cat([touched, added]))[0]
    curve = torch.argsort(code.locality(vertices), stable=True)
    place = torch.empty_like(curve)  # on the curve, of each vertex by key
    place[curve] = torch.arange(len(curve), device=curve.device)
    touched_places = place[torch.searchsorted(vertices, touched)]
    passes, pass_weights = [], []
    for k in range(0, d + 1, blur.fused):
        steps, taps = _pass_steps(directions[k : k + blur.fused].tolist(), blur)
        passes.append(_look_up(vertices, place, steps)[curve])
        pass_weights.append(taps)
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


def _look_up(vertices: torch.Tensor, place: torch.Tensor, steps: Sequence[int]) -> torch.Tensor:
    """Return the places of the vertices at the given key steps, (V, steps), by key."""
    keys = vertices[:, None] + torch.tensor(steps, device=vertices.device)
    at = _find(vertices, keys)
    return torch.where(at >= 0, place[at], -1).int()


def _pass_steps(directions: Sequence[int], blur: Blur) -> tuple[list[int], tuple[float, ...]]:
    """Return the key steps of the taps of one pass over some directions, and their weights."""
    reach = range(-len(blur.taps) + 1, len(blur.taps))
    steps, weights = [0], [1.0]
    for direction in directions:
        steps = [step + k * direction for k in reach for step in steps]
        weights = [weight * blur.tap(k) for k in reach for weight in weights]
    return [_wrapped(step) for step in steps], tuple(weights)


def _wrapped(number: int) -> int:
    """Return the number that 64 bits hold of this one: hashed keys may be longer."""
    return (number + 2**63) % 2**64 - 2**63
