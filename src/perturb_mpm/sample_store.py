"""Keeping the label maps of all samples on disk, in Zarr: one chunk a sample."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.grid import Grid
from perturb_mpm.optional import optional_package


class SampleStore:
    """An array (S, *spatial) of uint8 in a new folder, 0 outside the mask.

    The first sample's number is in its attribute ``first_sample``.
    """

    def __init__(self, folder: Path, numbers: range, grid: Grid) -> None:
        zarr = optional_package("zarr", "storing samples")
        if folder.exists():
            raise FileExistsError(f"store must be a new folder, got {folder}, which exists")
        self._grid = grid
        self._first = numbers.start
        self._array = zarr.create_array(
            store=str(folder),
            shape=(len(numbers), *grid.shape),
            chunks=(1, *grid.shape),
            dtype="uint8",
            attributes={"first_sample": numbers.start, "spacing_mm": list(grid.spacing)},
        )

    def write(self, part: range, labels: NDArray[np.uint8]) -> None:
        """Write the samples of a batch, (B, N)."""
        first = part.start - self._first
        self._array[first : first + len(part)] = self._grid.scatter(labels, 0)
