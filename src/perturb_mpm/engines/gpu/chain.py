"""One kernel as a chain of sparse matrices, and what the tiles need of it.

With K̂ = diag(after) K diag(before) the normalised kernel, K̂Q is computed from values that lie
between 0 and 1 at every stage: each stage's rows are convex combinations of the previous stage's,
because they are divided by the mass that K̂'s own chain carries there. So 16-bit floats will do, and
the labels of a voxel always sum to the row sum of K̂.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from perturb_mpm.engines.gpu.chain_kernels import blurred, mass_shares, received, splatted, weigh
from perturb_mpm.engines.gpu.combine_kernel import Sparse
from perturb_mpm.engines.gpu.lattice import Lattice
from perturb_mpm.model import Normalization


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
    raw, own = received(lattice, masses[-1])
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
    return received(lattice, filtered_masses(lattice, ones)[-1])[0]


def filtered_masses(lattice: Lattice, values: torch.Tensor) -> list[torch.Tensor]:
    """Return what the stages make of (N, C) values: after the splat and each pass, (V, C)."""
    masses = [splatted(lattice, values)]
    for found, weights in zip(lattice.passes, lattice.pass_weights, strict=True):
        masses.append(blurred(masses[-1], found, weights))
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
