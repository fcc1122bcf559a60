"""How much memory a problem takes, known before it is taken."""

from __future__ import annotations

from perturb_mpm.crf import DenseCRF
from perturb_mpm.engines.memory import require

DEFAULT_BATCH = 32
REMEDY = "use a larger memory_budget, a tighter mask, or larger sigmas"


def require_for_build(crf: DenseCRF, features: int, budget: int, *, exact: bool) -> None:
    """Raise MemoryError where the kernel with most features could not even be built."""
    n = crf.grid.voxels
    # Features in float64 and float32; of each corner in a lattice key, weight, number and splat.
    corner = 0 if exact else 8 + 4 + 4 + 4 + 4 + 4
    needed = n * (12 * features + corner * (features + 1)) + n * crf.n_labels * 8
    require(needed, budget, f"building a kernel of {features} features on {n} voxels", REMEDY)


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
    require(
        fixed + least * each,
        budget,
        f"batch {least} of {crf.n_labels} labels on {n} voxels and {rows} lattice rows",
        "use a smaller batch, " + REMEDY.removeprefix("use ") if least > 1 else REMEDY,
    )
    return int(wanted or min(DEFAULT_BATCH, fits))
