"""Features of what a first forest answered all around a voxel (auto-context, Tu 2008).

The first forest is asked on a coarser grid only: what it says is smoothed anyway, and at 1 mm that
saves nearly all of its work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.segmentation.features.context import boxes, surroundings
from perturb_mpm.segmentation.features.local import Columns, intensities, smoothed
from perturb_mpm.segmentation.filters import voxels_of
from perturb_mpm.segmentation.scene import Scene, Slab

FAMILIES: tuple[Callable[[Slab], Columns], ...] = (intensities, smoothed, boxes, surroundings)
GRID_MM = 4.0


@dataclass(frozen=True, eq=False)
class CoarseGrid:
    """Every few voxels of a scene, about 4 mm apart."""

    scene: Scene

    @cached_property
    def stride(self) -> tuple[int, ...]:
        """How many voxels of the scene lie from one to the next, along each axis."""
        return voxels_of(GRID_MM, self.scene.spacing)

    @cached_property
    def mask(self) -> NDArray[np.bool_]:
        """Which of them are inside the scene's mask."""
        x, y, z = self.stride
        return np.ascontiguousarray(self.scene.mask[::x, ::y, ::z])

    @cached_property
    def rows(self) -> NDArray[np.intp]:
        """Where the M of them inside the mask stand among the scene's N voxels, (M,)."""
        x, y, z = self.stride
        order = np.cumsum(self.scene.mask.ravel()).reshape(self.scene.shape) - 1
        found: NDArray[np.intp] = order[::x, ::y, ::z][self.mask]
        return found

    def columns(self, answers: NDArray[np.float32]) -> Answers:
        """Return the features of a first forest's probabilities (M, L)."""
        names = answer_sequences(answers.shape[1])
        images = np.zeros((len(names), *self.mask.shape), dtype=np.float32)
        images[:, self.mask] = answers[:, 1:].T
        x, y, z = (edge * step for edge, step in zip(self.scene.spacing, self.stride))
        coarse = Scene(names, images, self.mask, (x, y, z), self.scene.plane)
        slab = Slab(coarse, 0, coarse.shape[0])
        values = [values for family in FAMILIES for _, values in family(slab)]
        return Answers(self, values, tumour_shares(answers))

    @cached_property
    def nearest_inside(self) -> tuple[NDArray[np.intp], ...]:
        """The indices of the nearest of them inside the mask, for all of them."""
        from scipy.ndimage import distance_transform_edt

        found = distance_transform_edt(~self.mask, return_distances=False, return_indices=True)
        return tuple(found)


@dataclass(frozen=True, eq=False)
class Answers:
    """Features on the coarse grid, to be looked up at the scene's voxels."""

    grid: CoarseGrid
    values: list[NDArray[np.float32]]  # each (M,)
    shares: NDArray[np.float32]  # (L − 1,), the same everywhere

    def at(self, voxels: NDArray[np.intp]) -> NDArray[np.float32]:
        """Return the features (n, A) at voxels (n, 3) of the scene, interpolated linearly."""
        from scipy.ndimage import map_coordinates

        places = (voxels / np.asarray(self.grid.stride)).T
        width = len(self.values) + len(self.shares)
        table = np.empty((len(voxels), width), dtype=np.float32)
        table[:, len(self.values) :] = self.shares
        volume = np.zeros(self.grid.mask.shape, dtype=np.float32)
        for column, values in enumerate(self.values):
            volume[self.grid.mask] = values
            filled = volume[self.grid.nearest_inside]
            table[:, column] = map_coordinates(filled, places, order=1, mode="nearest")
        return table


def answer_sequences(n_labels: int) -> tuple[str, ...]:
    """Return names of the first forest's probabilities but background's, as of sequences."""
    return tuple(f"answer{label}" for label in range(1, n_labels))


def tumour_shares(answers: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return each label's share of what a first forest takes for tumour, (L − 1,).

    It tells tumours that enhance from those that do not, whose solid core looks otherwise.
    """
    tumour = answers[answers[:, 0] < 0.5][:, 1:]
    total = tumour.sum(dtype=np.float64)
    shares = tumour.sum(axis=0, dtype=np.float64) / total if len(tumour) else 0 * answers[0, 1:]
    return np.asarray(shares, dtype=np.float32)


def answer_names(n_labels: int) -> tuple[str, ...]:
    """Return the names of the A columns."""
    local = tuple(name for _, names in answer_families(n_labels) for name in names)
    return (*local, *(f"{name}_share" for name in answer_sequences(n_labels)))


def answer_families(
    n_labels: int,
) -> list[tuple[Callable[[Slab], Columns], tuple[str, ...]]]:
    """Return each family with the names of its columns."""
    shape = (2, 2, 2)
    names = answer_sequences(n_labels)
    images = np.zeros((len(names), *shape), dtype=np.float32)
    scene = Scene(names, images, np.ones(shape, dtype=bool), (1.0, 1.0, 1.0))
    slab = Slab(scene, 0, shape[0])
    return [(family, tuple(name for name, _ in family(slab))) for family in FAMILIES]
