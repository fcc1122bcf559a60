"""One kernel as a chain of sparse matrices, and what the tiles need of it.

With K̂ = diag(after) K diag(before) the normalised kernel, K̂Q is computed from values that lie
between 0 and 1 at every stage: each stage's rows are convex combinations of the previous stage's,
because they are divided by the mass that K̂'s own chain carries there. So 16-bit floats will do, and
the labels of a voxel always sum to the row sum of K̂.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from perturb_mpm.engines.gpu.combine_kernel import Sparse
from perturb_mpm.engines.gpu.lattice import Lattice
from perturb_mpm.model import Normalization


@dataclass
class LatticeFilter:
    """K̂ on a lattice: the blur passes, and what splat and slice are made of."""

    lattice: Lattice
    passes: tuple[Sparse, ...]
    splats: torch.Tensor  # (N, p) float32: weights times before
    mass: torch.Tensor  # (V,) float64: what all splats bring to each vertex
    slices: torch.Tensor  # (N, p) float32: rows sum to ``total``
    total: torch.Tensor  # (N,) float32: K̂·1
    diagonal: torch.Tensor  # (N,) float32

    @property
    def vertices(self) -> int:
        """V, the number of vertices."""
        return self.lattice.vertices

    @property
    def nbytes(self) -> int:
        """The memory that a slim filter takes, its passes aside."""
        return sum(
            each.nbytes for each in (self.columns, self.splats, self.slices, self.mass, self.total)
        )

    def slim(self) -> LatticeFilter:
        """Return the filter without what only its making needs."""
        none = self.total[:0]
        corners = none.long()
        lattice = replace(
            self.lattice, weights=none, corners=corners, touched=corners, counts=corners, passes=()
        )
        return replace(self, lattice=lattice)

    @property
    def columns(self) -> torch.Tensor:
        """The vertices of each voxel, (N, p)."""
        return self.lattice.columns


def factorize(
    lattice: Lattice,
    normalization: Normalization,
    gain: float,
    outside: torch.Tensor | None = None,
) -> LatticeFilter:
    """Make the normalised filter of a lattice; ``gain`` multiplies the raw lattice's output.

    ``outside`` (N,) is added to the row sums that normalise it.
    """
    ones = torch.ones(len(lattice.columns), dtype=torch.float64, device=lattice.weights.device)
    masses = _masses(lattice, ones)
    raw = gain * _sliced(lattice, masses[-1])  # (N,): K·1
    before, after = normalizers(raw if outside is None else raw + outside, normalization)
    if normalization in ("symmetric", "before"):
        masses = _masses(lattice, before)
    slices = lattice.weights * masses[-1][lattice.columns.long()]  # (N, p) float64
    slices *= (gain * after)[:, None]
    own = torch.minimum(gain * _own_response(lattice), raw)
    needed = torch.zeros(lattice.vertices, dtype=torch.bool, device=ones.device)
    needed[lattice.touched] = True
    passes = []
    for found, weights, mass in reversed(
        list(zip(lattice.passes, lattice.pass_weights, masses[:-1], strict=True))
    ):
        taps, needed = _taps(found, weights, mass, needed)
        passes.append(taps)
    return LatticeFilter(
        lattice=lattice,
        passes=tuple(reversed(passes)),
        splats=(lattice.weights * before[:, None]).float(),
        mass=masses[0],
        slices=slices.float(),
        total=slices.sum(1).float(),
        diagonal=(own * before * after).float(),
    )


def row_sums(lattice: Lattice) -> torch.Tensor:
    """Return K·1 of the raw lattice, (N,)."""
    ones = torch.ones(len(lattice.columns), dtype=torch.float64, device=lattice.weights.device)
    return _sliced(lattice, _masses(lattice, ones)[-1])


def splat_matrix(lattice_filter: LatticeFilter) -> Sparse:
    """Return the whole splat as one matrix, its rows the touched vertices."""
    lattice = lattice_filter.lattice
    pointers = torch.zeros(len(lattice.counts) + 1, dtype=torch.int32, device=lattice.counts.device)
    pointers[1:] = lattice.counts.cumsum(0)
    shares = lattice_filter.splats.reshape(-1)[lattice.corners]
    shares = shares / lattice_filter.mass[lattice.touched].repeat_interleave(lattice.counts)
    corners = lattice.corners // lattice.columns.shape[1]
    return Sparse(
        lattice.touched.int(), pointers, corners.int(), shares.nan_to_num_(posinf=0.0).float()
    )


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


def _masses(lattice: Lattice, values: torch.Tensor) -> list[torch.Tensor]:
    """Return what the stages make of one value a voxel: after the splat, after each pass."""
    brought = (lattice.weights * values[:, None]).reshape(-1)[lattice.corners]
    mass = torch.zeros(lattice.vertices, dtype=torch.float64, device=values.device)
    # Never an atomic sum: its order, and with it the last bits, would change from run to run.
    mass[lattice.touched] = torch.segment_reduce(brought, "sum", lengths=lattice.counts)
    masses = [mass]
    for found, weights in zip(lattice.passes, lattice.pass_weights, strict=True):
        masses.append(_blurred(masses[-1], found, weights))
    return masses


def _blurred(mass: torch.Tensor, found: torch.Tensor, weights: tuple[float, ...]) -> torch.Tensor:
    padded = torch.cat([mass, mass.new_zeros(1)])  # what is absent, −1, has no mass
    return padded[found.long()] @ torch.tensor(weights, dtype=mass.dtype, device=mass.device)


def _sliced(lattice: Lattice, mass: torch.Tensor) -> torch.Tensor:
    return (lattice.weights * mass[lattice.columns.long()]).sum(1)


def _own_response(lattice: Lattice) -> torch.Tensor:
    """Return what a voxel gets back of its own value on a lattice without holes, (N,)."""
    d = lattice.dimensions
    w = lattice.weights.double()
    own = torch.zeros_like(w[:, 0])
    for distance, response in enumerate(lattice.blur.responses(d).tolist()):
        both_ways = response * (1 if distance == 0 else 2)
        own += both_ways * (w[:, : d + 1 - distance] * w[:, distance:]).sum(1)
    return own


def _taps(
    found: torch.Tensor, weights: tuple[float, ...], mass: torch.Tensor, needed: torch.Tensor
) -> tuple[Sparse, torch.Tensor]:
    """Return the rows of a pass that are needed, as shares of mass, and what they need in turn."""
    padded = torch.cat([mass, mass.new_zeros(1)])
    targets = torch.nonzero(needed)[:, 0]
    taken = found[targets].long()  # (R, taps)
    share = padded[taken] * torch.tensor(weights, dtype=mass.dtype, device=mass.device)
    present = share > 0
    total = share.sum(1, keepdim=True)
    share = share / torch.where(total > 0, total, 1.0)
    columns = taken[present]
    pointers = torch.zeros(len(targets) + 1, dtype=torch.int32, device=mass.device)
    pointers[1:] = present.sum(1).cumsum(0)
    matrix = Sparse(targets.int(), pointers, columns.int(), share[present].float())
    sources = torch.zeros_like(needed)
    sources[columns] = True
    return matrix, sources
