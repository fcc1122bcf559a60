"""How the vertices of a lattice are named: whole coordinates packed into 63-bit keys."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from perturb_mpm.engines.cpu.lattice import Blur

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
