"""Volumes far beyond one brain: sampling only the voxels that could be otherwise.

Given the message it gets, a voxel has another label with the probability that softmax gives it, and
messages are about as strong as the weights of the kernels at most: their rows sum to about 1. Where
even such a message leaves other labels less than ε, the voxel is settled at its unary marginals.
What settled voxels send to the others is computed once, in walks through the image, and the others
are a CRF of their own: its lattices, its samples and its memory are as large as the doubt.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm import checks
from perturb_mpm.engines import FRACTION_BITS, softmax
from perturb_mpm.model import DenseCRF, Grid
from perturb_mpm.posterior import Posterior

_AT_ONCE = 1 << 20  # voxels
_IN_DOUBT = 255  # no label: there are at most 255


@dataclass(frozen=True, eq=False)
class Doubtful:
    """The voxels of a CRF that could be otherwise, as a CRF of their own; see ``doubtful``.

    Examples
    --------
    >>> p = [[1e-9, 0.5, 1.0], [1.0, 0.5, 1e-9]]
    >>> part = pm.doubtful(pm.DenseCRF(pm.unary_from_probabilities(p, clip=1e-9)))
    >>> part.settled, round(part.share, 2)
    (array([  1, 255,   0], dtype=uint8), 0.33)
    """

    crf: DenseCRF
    """The doubtful voxels, with what the settled ones send to them."""
    grid: Grid
    """The grid of all voxels."""
    settled: NDArray[np.uint8]
    """The label of each settled voxel inside the mask, (N,); 255 where it is in doubt."""
    missed: float
    """How many settled voxels a sample would give another label, on average, at such messages."""

    @property
    def share(self) -> float:
        """The share of the voxels inside the mask that are in doubt."""
        return self.crf.grid.voxels / self.grid.voxels

    def complete(self, posterior: Posterior) -> Posterior:
        """Return the posterior of all voxels from that of ``crf``: settled ones have one label."""
        mine = self.crf.grid
        if posterior.grid.shape != mine.shape or not np.array_equal(
            posterior.grid.index, mine.index
        ):
            raise ValueError("`posterior` must be of the doubtful voxels, got one of another grid")
        doubt = self.settled == _IN_DOUBT
        labels = posterior.n_labels
        sizes = np.bincount(self.settled[~doubt], minlength=labels)  # (L,)
        whole: dict[str, NDArray[Any] | None] = {
            "counts": self._all(posterior.voxel_counts, posterior.samples),
            "conditional": self._all(
                posterior.voxel_conditional, posterior.samples << FRACTION_BITS
            ),
            "mean_field": self._all(posterior.voxel_mean_field, 1),
        }
        return Posterior(
            grid=self.grid,
            sample_index=posterior.sample_index,
            volumes=posterior.volumes + sizes * float(np.prod(self.grid.spacing)),
            problem=posterior.problem,
            parameters={**posterior.parameters, "doubtful": {"share": self.share}},
            estimator=posterior.estimator,
            label_changes=None
            if posterior.label_changes is None
            else posterior.label_changes * self.share,
            **whole,  # type: ignore[arg-type]
        )

    def _all(self, values: NDArray[Any] | None, certain: int) -> NDArray[Any] | None:
        """Return (L, D) values of the doubtful voxels among those of all, (L, N)."""
        if values is None:
            return None
        out = np.zeros((len(values), len(self.settled)), dtype=values.dtype)
        doubt = self.settled == _IN_DOUBT
        for l, row in enumerate(out):
            row[self.settled == l] = certain
            row[doubt] = values[l]
        return out


def doubtful(crf: DenseCRF, epsilon: float = 1e-4, threads: int | None = None) -> Doubtful:
    """Return the voxels that have another label with a probability above ``epsilon``.

    What is left out is left out of every sample: the votes of a settled voxel are all for one
    label, which a full sample would give another one with a probability of at most ε. Mean field
    starts with the messages of settled voxels, and so may take fewer iterations to the same end.

    Parameters
    ----------
    crf
        Its kernels must be normalised "symmetric" or "after": then the rows of a kernel sum to
        about 1, and a message is about as strong as its weight at most.
    epsilon
        Above 0, below 0.1.
    threads
        At most so many; all cores where it is None.

    Examples
    --------
    >>> p = np.full((2, 30), 1e-7)
    >>> p[1, :12] = p[0, 18:] = 1 - 1e-7
    >>> p[:, 12:18] = 0.5
    >>> kernels = [pm.SpatialKernel(sigma=2.0, weight=1.0)]
    >>> part = pm.doubtful(pm.DenseCRF(pm.unary_from_probabilities(p, clip=1e-7), kernels))
    >>> part.crf.grid.voxels, part.share
    (6, 0.2)
    >>> posterior = part.complete(pm.sample(part.crf, samples=20))
    >>> posterior.grid.voxels, posterior.samples
    (30, 20)
    """
    epsilon = checks.number(epsilon, "epsilon", positive=True, below=0.1)
    for term in crf.terms:
        if term.normalization not in ("symmetric", "after"):
            raise ValueError(
                '`normalization` of every kernel must be "symmetric" or "after" to leave voxels '
                f'out, got "{term.normalization}"'
            )
    settled, missed = _settle(crf, epsilon)
    voxels = np.flatnonzero(settled == _IN_DOUBT)
    sent = np.zeros((crf.n_labels, len(voxels)))
    outside = []
    from perturb_mpm.engines.cpu import surroundings_of

    def marginals(some: slice | NDArray[np.int64]) -> NDArray[np.float32]:
        return softmax(-np.asarray(crf.energies[:, some], dtype=np.float32), axis=0)

    owned = copy.copy(crf)  # what standardises an image is computed once
    owned.terms = tuple(
        replace(term, kernel=term.kernel.in_own_units(crf.grid)) for term in crf.terms
    )
    for term in owned.terms:
        added = surroundings_of(
            term, settled != _IN_DOUBT, marginals, threads, sends=crf.centring < 1
        )
        outside.append(added.outside)
        sent += (1 - crf.centring) * (term.compatibility @ added.sent)
    return Doubtful(owned.among(voxels, sent, outside), crf.grid, settled, missed)


def _settle(crf: DenseCRF, epsilon: float) -> tuple[NDArray[np.uint8], float]:
    """Return the labels of settled voxels, (N,), and how many a sample would change on average."""
    # Rows of a normalised kernel sum to about 1; centred messages are differences of two.
    strongest = (1 + crf.centring) * sum(float(np.ptp(term.compatibility)) for term in crf.terms)
    settled = np.full(crf.grid.voxels, _IN_DOUBT, dtype=np.uint8)
    missed, least_certain, most_doubt = 0.0, 0, -1.0
    for first in range(0, len(settled), _AT_ONCE):
        part = slice(first, first + _AT_ONCE)
        energies = np.asarray(crf.energies[:, part], dtype=np.float64)
        energies = energies - energies.min(axis=0)
        odds = (np.exp(-energies).sum(axis=0) - 1) * np.exp(strongest)  # against the lowest
        dissent = odds / (1 + odds)
        certain = dissent <= epsilon
        settled[part][certain] = energies.argmin(axis=0)[certain]
        missed += float(dissent[certain].sum())
        if dissent.max() > most_doubt:
            most_doubt, least_certain = float(dissent.max()), first + int(dissent.argmax())
    settled[least_certain] = _IN_DOUBT  # a CRF has a voxel
    return settled, missed
