"""The memory of one batch of problems, known before it is taken."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.engines.cpu.row_updates import fits_registers
from perturb_mpm.engines.memory import REMEDY, require, require_batch
from perturb_mpm.model import DenseCRF

DEFAULT_BATCH = 32
# Lanes of a tile: long enough for vector instructions, small enough for a core's own caches.
LANES = 1024


def require_for_build(crf: DenseCRF, budget: int, *, exact: bool) -> None:
    """Raise MemoryError where a kernel could not even be built.

    Features are there in float64 and float32; of each corner in a lattice key, weight, number and
    splat.
    """
    n = crf.grid.voxels
    corner = 0 if exact else 8 + 4 + 4 + 4 + 4 + 4
    for term in crf.terms:
        d = term.kernel.dimensions_on(term.grid)
        needed = n * (12 * d + corner * (d + 1)) + n * crf.n_labels * 8
        require(needed, budget, f"building a kernel of {d} features on {n} voxels", REMEDY)


def choose_batch(
    crf: DenseCRF, wanted: int | None, rows: int, fixed: int, item: int, budget: int
) -> int:
    """Return how many problems to solve at once, and raise MemoryError where not one fits.

    ``rows`` counts the lattice rows that are held, ``fixed`` is the size in bytes of what all
    problems share, ``item`` that of a value in a row.
    """
    n, labels = crf.grid.voxels, crf.n_labels - 1
    # Of each voxel: energies, marginals, energies without noise, and a label; a row a vertex.
    each = n * (labels * (2 * item + 4) + 1) + rows * labels * item
    fits = (budget - fixed) // each
    least = 1 if wanted is None else wanted
    what = f"{crf.n_labels} labels on {n} voxels and {rows} lattice rows"
    require_batch(fixed + least * each, budget, least, what)
    return int(wanted or min(DEFAULT_BATCH, fits))


@dataclass(frozen=True)
class BufferPool:
    """Memory for up to so many problems, taken once; rooms for fewer lie in it too."""

    problems: int
    energies: NDArray[Any]  # flat, as the others are; see ``Buffers`` for what is in them
    marginals: NDArray[Any]
    labels: NDArray[np.uint8]
    rows: NDArray[Any]
    spare: NDArray[Any]

    @classmethod
    def take(
        cls,
        voxels: int,
        labels: int,
        problems: int,
        rows: int,
        most_rows: int,
        dtype: np.dtype[Any],
    ) -> BufferPool:
        """Take memory for so many problems of ``labels`` + 1 labels."""
        width = labels * problems
        return cls(
            problems,
            np.empty(labels * (voxels * problems + LANES), dtype=dtype),
            np.empty(voxels * width, dtype=dtype),
            np.empty(voxels * problems, dtype=np.uint8),
            np.empty(rows * width, dtype=dtype),
            np.empty(most_rows * width, dtype=dtype),
        )


@dataclass(frozen=True)
class Buffers:
    """Room for B problems; see ``row_kernels.py`` for the layout of tiles and rows."""

    tile: int
    energies: NDArray[Any]  # (tiles, L−1, T·B): float32, or the bits of half-precision floats
    marginals: NDArray[Any]  # (N, L−1, B): float32, or units of 1/65535
    labels: NDArray[np.uint8]  # (N, B)
    rows: NDArray[Any]  # (all vertices, (L−1)·B)
    spare: NDArray[Any]  # (most vertices of a kernel, (L−1)·B)

    @classmethod
    def within(
        cls,
        pool: BufferPool,
        voxels: int,
        labels: int,
        problems: int,
        rows: int,
        most_rows: int,
    ) -> Buffers:
        """Make room for so many problems of ``labels`` + 1 labels."""
        tile = max(1, LANES // max(1, problems))
        width = labels * problems
        return cls(
            tile,
            _shaped(pool.energies, -(-voxels // tile), labels, tile * problems),
            _shaped(pool.marginals, voxels, labels, problems),
            _shaped(pool.labels, voxels, problems),
            _shaped(pool.rows, rows, width),
            _shaped(pool.spare, most_rows, width),
        )

    @property
    def problems(self) -> int:
        """B, the number of problems."""
        return int(self.labels.shape[1])

    @property
    def each_label(self) -> tuple[int, ...]:
        """One number a label, L − 1 of them: what kernels that are made for so many take."""
        return (0,) * int(self.marginals.shape[1])

    @property
    def by_rows(self) -> bool:
        """Whether voxels are updated row by row, and not in tiles."""
        return fits_registers(self.problems, len(self.each_label))

    @property
    def tiles(self) -> int:
        """The number of tiles."""
        return len(self.energies)

    def energies_of(self, problem: int) -> NDArray[np.float64]:
        """Return one problem's energies against label 0's in the engine's order, (L−1, N)."""
        stored = (
            self.energies if self.energies.dtype != np.uint16 else self.energies.view(np.float16)
        )
        by_label = stored.transpose(1, 0, 2).reshape(stored.shape[1], -1)  # (L−1, tiles·T·B)
        one = by_label[:, problem :: self.problems]
        return one[:, : len(self.labels)].astype(np.float64)


def _shaped(flat: NDArray[Any], *shape: int) -> NDArray[Any]:
    return flat[: math.prod(shape)].reshape(shape)
