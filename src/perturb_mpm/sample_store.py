"""Keeping the label maps of all samples on disk, in Zarr: one chunk a sample."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.grid import Grid
from perturb_mpm.optional import optional_package


class SampleStore:
    """An array (S, *spatial) of uint8 in a new folder, 0 outside the mask.

    The first sample's number is in its attribute ``first_sample``.
    """

    def __init__(self, folder: Path, numbers: range, grid: Grid) -> None:
        self._zarr = optional_package("zarr", "storing samples")
        if folder.exists():
            raise FileExistsError(f"store must be a new folder, got {folder}, which exists")
        self._folder, self._numbers, self._grid = folder, numbers, grid
        self._array: Any = None

    def write(self, part: range, labels: NDArray[np.uint8]) -> None:
        """Write the samples of a batch, (B, N); the folder is made with the first."""
        if self._array is None:
            self._array = self._create()
        first = part.start - self._numbers.start
        self._array[first : first + len(part)] = self._grid.scatter(labels, 0)

    def finish(self, samples: int) -> None:
        """Cut the array to the samples that were drawn."""
        self._array.resize((samples, *self._grid.shape))

    def _create(self) -> Any:  # noqa: ANN401
        return self._zarr.create_array(
            store=str(self._folder),
            shape=(len(self._numbers), *self._grid.shape),
            chunks=(1, *self._grid.shape),
            dtype="uint8",
            attributes={
                "first_sample": self._numbers.start,
                "spacing_mm": list(self._grid.spacing),
            },
        )
