"""Which voxels of a case the forest is shown: all of every label, up to a limit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perturb_mpm import checks


@dataclass(frozen=True)
class DrawSettings:
    """How many voxels of a case are shown, of each label and of background."""

    of_each_label: int = 700
    of_background: int = 3500

    def __post_init__(self) -> None:
        checks.integer(self.of_each_label, "of_each_label", minimum=1)
        checks.integer(self.of_background, "of_background", minimum=1)


def draw_voxels(
    labels: NDArray[np.uint8], n_labels: int, settings: DrawSettings, rng: np.random.Generator
) -> NDArray[np.intp]:
    """Return the indices of the drawn voxels in ``labels`` (N,), in ascending order.

    A label that the case does not have adds none, and one with few voxels adds all of them.
    """
    drawn = []
    for label in range(n_labels):
        there = np.flatnonzero(labels == label)
        wanted = settings.of_each_label if label else settings.of_background
        drawn.append(rng.choice(there, min(wanted, len(there)), replace=False))
    return np.sort(np.concatenate(drawn))


def label_shares(labels: NDArray[np.uint8], n_labels: int) -> NDArray[np.float64]:
    """Return each label's share of the voxels, (L,)."""
    return np.bincount(labels, minlength=n_labels) / labels.size
