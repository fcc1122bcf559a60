"""The maps of a finished run on the whole image, made once and used by every output."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.pipeline.drawing import Drawn
from perturb_mpm.posterior import Posterior


@dataclass(frozen=True)
class Maps:
    """What was found at every voxel; outside the mask label 0, for certain."""

    posterior: Posterior
    labels: NDArray[np.uint8]  # (X, Y, Z) label indices
    marginals: NDArray[np.float32]  # (L, X, Y, Z)
    entropy: NDArray[np.float32]  # (X, Y, Z) bits
    uncertainty: NDArray[np.uint8]  # (X, Y, Z) 0 certain, 1 undecided, 2 uncertain
    sampled_labels: NDArray[np.uint8]  # (K, X, Y, Z) label indices
    snapshots: dict[int, NDArray[np.float32]]  # samples -> (X, Y, Z) bits


def maps_of(drawn: Drawn) -> Maps:
    """Return the maps of all samples, and those on the way there."""
    posterior = drawn.posterior
    if posterior is None:
        raise ValueError("drawn must hold samples, got none")
    scatter = posterior.grid.scatter
    return Maps(
        posterior=posterior,
        labels=posterior.labels,
        marginals=posterior.marginals.astype(np.float32),
        entropy=posterior.entropy.astype(np.float32),
        uncertainty=posterior.uncertainty_map(),
        sampled_labels=scatter(np.stack(drawn.labels), 0),
        snapshots={n: scatter(bits, 0) for n, bits in sorted(drawn.snapshots.items())},
    )
