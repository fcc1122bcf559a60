"""Gibbs sampling of a grid CRF of any size: voxels that are no neighbours are drawn at once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from lab.comparators.common import Collector, GridCRF, Samples, generator, problem
from perturb_mpm import checks
from perturb_mpm.posterior import Posterior


def gibbs_grid(
    crf: GridCRF, samples: Samples, seed: int, *, burn_in: int = 100, thin: int = 5
) -> Posterior:
    """Draw samples of a grid CRF by one Gibbs chain that starts at the best unary labels.

    A sweep draws the voxels in as many groups as it takes that no two of a group are neighbours:
    two with "faces". The first ``burn_in`` sweeps are dropped, then every ``thin``-th is kept.
    Samples of a chain depend on each other, and nothing here says whether it has mixed:
    ``run_chains`` does, up to 5,000 voxels. Any size: some 60 bytes a voxel and label.
    """
    if not isinstance(crf, GridCRF):
        raise TypeError(f"crf must be a GridCRF, got {type(crf).__name__}: it needs neighbours")
    burn_in = checks.integer(burn_in, "burn_in", minimum=0)
    thin = checks.integer(thin, "thin", minimum=1)
    run = Collector("gibbs_grid", samples, seed, burn_in=burn_in, thin=thin)
    draws = _draw(crf, run.samples, run.seed, burn_in, thin)
    return run.collect(crf.grid, crf.n_labels, draws, problem(crf))


def _draw(
    crf: GridCRF, samples: range, seed: int, burn_in: int, thin: int
) -> Iterator[NDArray[np.uint8]]:
    random = generator("gibbs", seed, 0)
    groups = [np.flatnonzero(_parity(crf) == number) for number in range(2**crf.grid.ndim)]
    groups = _merge_faces(crf, groups)
    labels = crf.energies.argmin(axis=0).astype(np.uint8)  # (N,)
    for sweep in range(burn_in + thin * samples.stop):
        for group in groups:
            _redraw(crf, labels, group, random)
        kept, rest = divmod(sweep - burn_in + 1, thin)
        if sweep >= burn_in and rest == 0 and kept - 1 in samples:
            yield labels.copy()[np.newaxis]


def _parity(crf: GridCRF) -> NDArray[np.int64]:
    """Return for each voxel which of the 2^ndim corners of a cell of two voxels it is, (N,)."""
    place = np.unravel_index(crf.grid.index, crf.grid.shape)  # ndim × (N,)
    return np.asarray(sum((axis % 2) << number for number, axis in enumerate(place)))


def _merge_faces(crf: GridCRF, groups: list[NDArray[np.intp]]) -> list[NDArray[np.intp]]:
    """Return two groups where only faces are neighbours, as on a chessboard."""
    place = np.unravel_index(crf.grid.index, crf.grid.shape)
    colour = np.sum(place, axis=0) % 2  # (N,)
    if (colour[crf.edges.first] == colour[crf.edges.second]).any():
        return groups
    return [np.flatnonzero(colour == number) for number in (0, 1)]


def _redraw(
    crf: GridCRF, labels: NDArray[np.uint8], group: NDArray[np.intp], random: np.random.Generator
) -> None:
    """Draw the labels of a group anew given all others, in place."""
    first, second, weight = crf.edges
    size = crf.grid.voxels
    logits = np.empty((crf.n_labels, len(group)))
    for label in range(crf.n_labels):  # a neighbour with the same label saves its weight
        same = np.bincount(first, weight * (labels[second] == label), size)
        same += np.bincount(second, weight * (labels[first] == label), size)
        logits[label] = same[group] - crf.energies[label, group]
    noise = -np.log(random.standard_exponential(logits.shape))  # Gumbel
    labels[group] = (logits + noise).argmax(axis=0)
