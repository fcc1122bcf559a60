"""A CRF in which only neighbours on the grid are coupled, as graph cuts can solve."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perturb_mpm import checks
from perturb_mpm.grid import Grid
from perturb_mpm.kernels import BilateralKernel

Neighbours = Literal["faces", "all"]


class Edges(NamedTuple):
    """Pairs of neighbours, each once, by their place among the N voxels of the mask."""

    first: NDArray[np.int64]  # (E,)
    second: NDArray[np.int64]  # (E,)
    weight: NDArray[np.float64]  # (E,)

    def matrix(self, voxels: int) -> NDArray[np.float64]:
        """Return the weights as a symmetric (N, N) matrix."""
        dense = np.zeros((voxels, voxels))
        dense[self.first, self.second] = dense[self.second, self.first] = self.weight
        return dense


class GridCRF:
    """E(x) = Σ_i U_i(x_i) + Σ_{neighbours i, j} w_ij [x_i ≠ x_j], P ∝ exp(−E).

    The contrast-sensitive weights are those of Boykov & Jolly (ICCV 2001):
    w_ij = weight · exp(−|I_i − I_j|² / 2σ²) / distance, the distance in mm.

    Parameters
    ----------
    unary
        Energies (L, *spatial), 2 to 255 labels, 1 to 4 axes.
    weight
        What a pair of unlike labels costs 1 mm apart where the intensities are equal.
    images
        Intensities (C, *spatial), z-scored inside the mask; without them only distance counts.
    sigma_intensity
        σ in standard deviations inside the mask, one number or one for each channel.
    neighbours
        "faces": 4 in 2-D, 6 in 3-D. "all": corners and edges too, 8 in 2-D, 26 in 3-D.
    spacing
        The voxel size in mm, one number or one for each axis; 1 mm where it is None.
    mask
        The voxels in play, (*spatial), where not zero; all of them where it is None.
    """

    grid: Grid
    energies: NDArray[Any]
    """The unary energies inside the mask, (L, N), read-only."""
    edges: Edges

    def __init__(
        self,
        unary: ArrayLike,
        weight: float,
        images: ArrayLike | None = None,
        sigma_intensity: float | Sequence[float] = 1.0,
        neighbours: Neighbours = "faces",
        spacing: float | Sequence[float] | None = None,
        mask: ArrayLike | None = None,
    ) -> None:
        full = checks.floats(unary, "unary")
        checks.labels_first(full, "unary")
        weight = checks.number(weight, "weight", minimum=0)
        checks.choice(neighbours, "neighbours", get_args(Neighbours))
        self.grid = Grid(full.shape[1:], spacing, mask)
        self.energies = checks.read_only(self.grid.gather(full))
        first, second, distance = _pairs(self.grid, neighbours)
        strength = weight / distance  # (E,)
        if images is not None:
            kernel = BilateralKernel(images, sigma_space=1.0, sigma_intensity=sigma_intensity)
            scaled = kernel.features_on(self.grid)[:, self.grid.ndim :]  # (N, C)
            strength *= np.exp(-((scaled[first] - scaled[second]) ** 2).sum(axis=1) / 2)
        self.edges = Edges(first, second, strength)

    def __repr__(self) -> str:
        return (
            f"GridCRF(labels={self.n_labels}, shape={self.grid.shape}, "
            f"spacing={self.grid.spacing}, voxels={self.grid.voxels}, "
            f"edges={len(self.edges.weight)})"
        )

    @property
    def n_labels(self) -> int:
        """L, the number of labels."""
        return int(self.energies.shape[0])

    def energy(self, labels: ArrayLike) -> float:
        """Return E(x) of a labelling (*spatial); what it says outside the mask does not count."""
        whole = checks.whole(labels, "labels")
        if whole.shape != self.grid.shape:
            raise ValueError(
                f"labels must have the image's shape {self.grid.shape}, got {whole.shape}"
            )
        x = self.grid.gather(whole)  # (N,)
        checks.in_range(x, "labels", self.n_labels)
        return self.energy_inside(x, self.energies)

    def energy_inside(self, x: NDArray[Any], energies: NDArray[Any]) -> float:
        """Return E of the labels (N,) inside the mask under other unary energies (L, N)."""
        unary = np.take_along_axis(energies, x[np.newaxis].astype(np.int64), axis=0)
        cut = x[self.edges.first] != x[self.edges.second]
        return float(unary.sum(dtype=np.float64) + self.edges.weight[cut].sum())


def _pairs(
    grid: Grid, neighbours: Neighbours
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Return the places of both voxels of every pair of neighbours, and their distance in mm."""
    place = grid.scatter(np.arange(grid.voxels), -1)  # (*shape)
    first, second, distance = [], [], []
    for offset in itertools.product((-1, 0, 1), repeat=grid.ndim):
        forward = offset > (0,) * grid.ndim  # one of each pair of opposite directions
        if not forward or (neighbours == "faces" and np.abs(offset).sum() > 1):
            continue
        here = place[tuple(slice(max(0, -o), min(n, n - o)) for o, n in zip(offset, grid.shape))]
        there = place[tuple(slice(max(0, o), min(n, n + o)) for o, n in zip(offset, grid.shape))]
        inside = (here >= 0) & (there >= 0)
        first.append(here[inside])
        second.append(there[inside])
        length = float(np.linalg.norm(np.multiply(offset, grid.spacing)))
        distance.append(np.full(len(first[-1]), length))
    return np.concatenate(first), np.concatenate(second), np.concatenate(distance)
