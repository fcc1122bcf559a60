"""What is evaluated: labels, marginals and volumes of one case, whichever method they come from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perturb_mpm import checks
from perturb_mpm.model import Grid
from perturb_mpm.posterior import MarginalKind, Posterior, marginal_entropy


@dataclass(frozen=True, eq=False)
class Prediction:
    """Labels and marginals of the N voxels inside a mask.

    Examples
    --------
    >>> from perturb_mpm.evaluation import from_marginals
    >>> prediction = from_marginals([[0.8, 0.4], [0.2, 0.6]], spacing=[1.0])
    >>> prediction.labels, prediction.entropy_bits.round(2)
    (array([0, 1]), array([0.72, 0.97]))
    """

    grid: Grid
    labels: NDArray[np.int64]  # (N,)
    marginals: NDArray[np.float32]  # (L, N)
    entropy_bits: NDArray[np.float64]  # (N,)
    samples: int | None
    """How many samples the marginals were counted from; None where they were not counted."""
    volumes_mm3: NDArray[np.float64] | None  # (S, L)
    name: str = "votes"

    @property
    def n_labels(self) -> int:
        """L, the number of labels."""
        return len(self.marginals)

    def share(self, region: Sequence[int]) -> NDArray[np.float64]:
        """Return the probability that a voxel belongs to a set of labels, (N,).

        It is exactly 1 where no other label has any: votes are summed as whole numbers.
        """
        inside = self.marginals[list(region)]
        if self.samples is not None:
            votes = np.rint(inside * np.float64(self.samples)).sum(axis=0)
            return np.asarray(votes / self.samples)
        others = np.delete(self.marginals, list(region), axis=0)
        p = np.clip(inside.sum(axis=0, dtype=np.float64), 0.0, 1.0)
        return np.where(others.any(axis=0), p, 1.0)

    def region_volumes_ml(self, region: Sequence[int]) -> NDArray[np.float64] | None:
        """Return the sampled volumes of a set of labels, (S,)."""
        if self.volumes_mm3 is None:
            return None
        return self.volumes_mm3[:, list(region)].sum(axis=1) / 1000.0


def from_posterior(
    posterior: Posterior,
    source: MarginalKind | None = None,
    labels_from: MarginalKind | None = None,
) -> Prediction:
    """Take marginals from a posterior: "votes", "conditional" or "mean_field".

    ``labels_from`` names the marginals whose most probable labels count as the prediction, the same
    by default: fix it to compare uncertainties of one segmentation.

    Examples
    --------
    >>> from perturb_mpm.evaluation import from_posterior
    >>> crf = pm.DenseCRF(pm.unary_from_logits([[1.0, 0.0], [0.0, 0.0]]))
    >>> posterior = pm.sample(crf, samples=10, engine="reference")
    >>> from_posterior(posterior, "mean_field").name
    'mean_field'
    """
    chosen = source or posterior.estimator
    marginals = posterior.voxel_marginals(chosen)
    samples = posterior.samples if chosen == "votes" else None
    volumes = None if chosen == "mean_field" else posterior.volumes
    prediction = _build_prediction(posterior.grid, marginals, samples, volumes, chosen)
    if labels_from is None:
        return prediction
    return replace(prediction, labels=posterior.voxel_marginals(labels_from).argmax(axis=0))


def from_samples(
    label_maps: ArrayLike,
    n_labels: int,
    spacing: Sequence[float],
    mask: ArrayLike | None = None,
) -> Prediction:
    """Take sampled label maps (S, *spatial) from elsewhere: an ensemble, Monte Carlo dropout.

    Examples
    --------
    >>> from perturb_mpm.evaluation import from_samples
    >>> from_samples([[0, 1], [1, 1]], n_labels=2, spacing=[1.0]).marginals
    array([[0.5, 0. ],
           [0.5, 1. ]], dtype=float32)
    """
    n_labels = checks.integer(n_labels, "n_labels", minimum=2, maximum=checks.MOST_LABELS)
    maps = np.asarray(label_maps)
    if maps.ndim < 2 or len(maps) == 0:
        raise ValueError(f"label_maps must be (samples, *spatial), got shape {maps.shape}")
    grid = Grid(maps.shape[1:], spacing, mask)
    votes = np.zeros((n_labels, grid.voxels))
    volumes = np.empty((len(maps), n_labels))
    for row, each in enumerate(maps):
        labels = checks.whole(grid.gather(each), "label_maps")
        checks.in_range(labels, "label_maps", n_labels)
        votes[labels, np.arange(len(labels))] += 1
        volumes[row] = np.bincount(labels, minlength=n_labels) * math.prod(grid.spacing)
    return _build_prediction(grid, votes / len(maps), len(maps), volumes, "samples")


def from_marginals(
    marginals: ArrayLike,
    spacing: Sequence[float],
    mask: ArrayLike | None = None,
    name: str = "marginals",
) -> Prediction:
    """Take marginals (L, *spatial) alone: a network's softmax, say.

    Examples
    --------
    >>> from perturb_mpm.evaluation import from_marginals
    >>> from_marginals([[0.8, 0.4], [0.2, 0.6]], spacing=[1.0]).labels
    array([0, 1])
    """
    p = checks.floats(marginals, "marginals")
    checks.labels_first(p, "marginals")
    grid = Grid(p.shape[1:], spacing, mask)
    inside = grid.gather(p).astype(np.float64)
    if inside.min() < 0 or np.abs(inside.sum(axis=0) - 1).max() > 1e-3:
        raise ValueError("marginals must be probabilities that sum to 1 over the labels")
    return _build_prediction(grid, inside, None, None, name)


def _build_prediction(
    grid: Grid,
    marginals: NDArray[np.float64],  # (L, N)
    samples: int | None,
    volumes: NDArray[np.float64] | None,
    name: str,
) -> Prediction:
    return Prediction(
        grid,
        marginals.argmax(axis=0),
        marginals.astype(np.float32),
        marginal_entropy(marginals),
        samples,
        volumes,
        name,
    )
