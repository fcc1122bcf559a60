"""The label maps that samplers draw, of which posteriors only keep the votes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np

import perturb_mpm as pm
from perturb_mpm.posterior.votes import Tally


def mpm_maps(crf: pm.DenseCRF, samples: int, seed: int, **options: Any) -> np.ndarray:
    """Return the labellings that ``pm.sample`` draws, (S, N)."""
    batches: list[np.ndarray] = []

    store = mock.Mock()  # in memory, in the place of the one on disk
    store.write.side_effect = lambda _part, labels: batches.append(labels.copy())
    with mock.patch("perturb_mpm.sampling.sampler.SampleStore", return_value=store):
        posterior = pm.sample(crf, samples, seed, store="nowhere", **options)
    return checked(batches, posterior)


def comparator_maps(
    comparator: Callable[[Any, int, int], pm.Posterior], crf: Any, samples: int, seed: int
) -> np.ndarray:
    """Return the labellings that a comparator draws, (S, N)."""
    batches: list[np.ndarray] = []

    class Listening(Tally):
        def add(self, labels: np.ndarray, switched: np.ndarray) -> None:
            batches.append(labels.copy())
            super().add(labels, switched)

    with mock.patch("lab.comparators.common.Tally", Listening):
        posterior = comparator(crf, samples, seed)
    return checked(batches, posterior)


def checked(batches: list[np.ndarray], posterior: pm.Posterior) -> np.ndarray:
    """Return all label maps after checking that they are what the posterior has counted."""
    maps = np.concatenate(batches)
    assert len(maps) == posterior.samples
    votes = np.stack([(maps == l).sum(axis=0) for l in range(posterior.n_labels)])
    np.testing.assert_array_equal(posterior.voxel_counts, votes)
    return maps
