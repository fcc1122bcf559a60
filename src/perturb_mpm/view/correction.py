"""A run's maps with some voxels held at the labels that a person gave them.

The run's samples are drawn again with the same noise, the edited voxels held. Voxels that this
moves within reach of an edit take their new marginals; all others keep what the run gave them, to
the last bit. Where fewer samples are drawn than the run had, its marginals move by what the edits
change in those. The result depends on the run and the edits, not on the order of these.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perturb_mpm import checks
from perturb_mpm.engines import Compute
from perturb_mpm.model import BilateralKernel, DenseCRF, Grid, Kernel, SpatialKernel
from perturb_mpm.posterior import Regions, decided_labels, entropy_of_marginals
from perturb_mpm.progress import Progress, Silent
from perturb_mpm.sampling import Sampler, Sampling

# Beyond so many sigmas of the widest kernel, where it is below 0.04 % of its height, voxels keep
# what the run gave them.
REACH_SIGMAS = 4.0


def reach_mm(kernels: Sequence[Kernel]) -> float:
    """Return how far from an edit maps may change, in mm; infinite where that is not known."""
    return REACH_SIGMAS * max((_widest_mm(kernel) for kernel in kernels), default=0.0)


def within_reach(edited: NDArray[np.bool_], grid: Grid, reach: float) -> NDArray[np.bool_]:
    """Return which voxels of the mask lie within ``reach`` mm of an edited one; all (N,)."""
    from scipy.ndimage import distance_transform_edt

    if not edited.any():
        return edited
    far = ~grid.scatter(edited, ~np.True_)  # (*spatial)
    near: NDArray[np.bool_] = distance_transform_edt(far, sampling=grid.spacing) <= reach
    return grid.gather(near)


def _widest_mm(kernel: Kernel) -> float:
    if isinstance(kernel, SpatialKernel):
        return float(np.max(kernel.sigma))
    if isinstance(kernel, BilateralKernel):
        return float(np.max(kernel.sigma_space))
    return math.inf


# No noise and no message comes near it; engines cut it to what they can hold.
FORBIDDEN_NATS = 1e4
FREE = -1
"""Stands for a label where a voxel is not held."""


def with_held(crf: DenseCRF, held: NDArray[np.int16]) -> DenseCRF:
    """Return the CRF in which voxels can have their held label alone.

    ``held`` is (N,) in the order of the mask: a label, or FREE.
    """
    fixed = held != FREE
    energies = crf.energies.copy()  # (L, N)
    for label, row in enumerate(energies):
        row[fixed] = np.where(held[fixed] == label, 0.0, FORBIDDEN_NATS)
    other = copy.copy(crf)
    other.energies = checks.read_only(energies)
    return other


def draw(
    crf: DenseCRF, sampling: Sampling, compute: Compute, progress: Progress
) -> NDArray[np.float64]:
    """Sample a CRF as the run did; return its marginals inside the mask, (L, N)."""
    posterior = Sampler(crf, sampling, compute).draw(progress=progress)
    return posterior.voxel_marginals(posterior.estimator)


def solve(
    crf: DenseCRF, sampling: Sampling, compute: Compute, progress: Progress
) -> NDArray[np.float64]:
    """Return the mean field of a CRF as the run solved it, inside the mask, (L, N)."""
    marginals: NDArray[np.float64] = Sampler(crf, sampling, compute).mean_field().astype(np.float64)
    progress(sampling.samples, sampling.samples)
    return marginals


Edits = Mapping[int, int]
"""The label of each edited voxel, by its C-order index in the whole image."""

# Differences of marginals below this are rounding.
_NOTHING = 1e-9


@dataclass(frozen=True)
class Correction:
    """The marginals of the voxels that edits have set or moved; all others are the run's own."""

    index: NDArray[np.int64]  # (M,) C-order indices in the whole image, increasing
    marginals: NDArray[np.float64]  # (L, M)

    def labels(
        self, of_run: NDArray[np.uint8], regions: Regions | None = None
    ) -> NDArray[np.uint8]:
        """Return the corrected labels (*spatial) from those of the run, decided as it does."""
        labels = of_run.copy()
        labels.flat[self.index] = decided_labels(self.marginals, regions)
        return labels

    def entropy(self, of_run: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the corrected entropy in bits (*spatial) from that of the run."""
        entropy = of_run.copy()
        entropy.flat[self.index] = entropy_of_marginals(self.marginals)
        return entropy


def no_correction(n_labels: int) -> Correction:
    """Return a correction that leaves everything as it is."""
    return Correction(np.empty(0, dtype=np.int64), np.empty((n_labels, 0)))


class Corrector:
    """Solves the CRF of a run again with edits.

    ``marginals`` are the run's own, (L, N) in the order of the mask, from ``run_samples`` samples;
    ``sampling`` may take fewer of them. Where ``by_samples`` is False they are its mean field, and
    one problem is solved in place of all samples.
    """

    def __init__(
        self,
        crf: DenseCRF,
        sampling: Sampling,
        compute: Compute,
        marginals: NDArray[np.floating],
        run_samples: int,
        *,
        by_samples: bool = True,
    ) -> None:
        self._crf, self._sampling, self._compute = crf, sampling, compute
        self._marginals = marginals.astype(np.float64)
        # What the drawn samples give without edits; with all samples that is the run itself.
        whole = sampling.samples == run_samples or not by_samples
        self._free = self._marginals if whole else None
        self._solved = draw if by_samples else solve

    def correct(self, edits: Edits, progress: Progress | None = None) -> Correction:
        """Return what the edits set and move."""
        grid, n_labels = self._crf.grid, self._crf.n_labels
        inside = np.isin(grid.index, list(edits))
        held = np.full(grid.voxels, FREE, dtype=np.int16)  # (N,)
        held[inside] = [edits[voxel] for voxel in grid.index[inside].tolist()]
        near = within_reach(inside, grid, reach_mm(self._crf.kernels))
        marginals = self._marginals
        if inside.any():
            marginals = self._solve(held, progress or Silent())
        fixed = held != FREE
        marginals = marginals.copy()
        marginals[:, fixed] = np.arange(n_labels)[:, np.newaxis] == held[fixed]
        moved = np.abs(marginals - self._marginals).max(axis=0) > _NOTHING
        changed = (moved & near) | fixed
        inside_mask = Correction(grid.index[changed], marginals[:, changed])
        return _together(inside_mask, self._outside_mask(edits))

    def _solve(self, held: NDArray[np.int16], progress: Progress) -> NDArray[np.float64]:
        """Return the marginals with these voxels held, (L, N)."""
        before = self._sampling.samples if self._free is None else 0
        both = before + self._sampling.samples

        def show_free(done: float, _total: float) -> None:
            progress(done, both)

        def show_held(done: float, _total: float) -> None:
            progress(before + done, both)

        if self._free is None:
            self._free = self._solved(self._crf, self._sampling, self._compute, show_free)
        again = with_held(self._crf, held)
        after = self._solved(again, self._sampling, self._compute, show_held)
        if self._free is self._marginals:
            return after
        marginals: NDArray[np.float64] = np.maximum(self._marginals + after - self._free, 0.0)
        marginals /= marginals.sum(axis=0)
        return marginals

    def _outside_mask(self, edits: Edits) -> Correction:
        """Return the edits that the CRF knows nothing of: they are taken as they are."""
        index = np.setdiff1d(np.array(list(edits), dtype=np.int64), self._crf.grid.index)
        labels = np.array([edits[voxel] for voxel in index.tolist()], dtype=np.int64)
        own = np.arange(self._crf.n_labels)[:, np.newaxis] == labels  # (L, M)
        return Correction(index, own.astype(np.float64))


def _together(one: Correction, other: Correction) -> Correction:
    """Return both as one, in the order of the image."""
    index = np.concatenate([one.index, other.index])
    marginals = np.concatenate([one.marginals, other.marginals], axis=1)
    order = np.argsort(index)
    return Correction(index[order], marginals[:, order])
