"""The features of labelled cases, cached on disk where wanted, and the voxels trees learn from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from perturb_mpm import checks
from perturb_mpm.segmenter.features import feature_names, features_in_slabs
from perturb_mpm.segmenter.scene import Scene
from perturb_mpm.storage import atomic_open

MOST_VOXELS = 10**7
_KEPT = 12  # cases in memory, some 60 MB each at 1 mm

ReadScene = Callable[[], Scene]
"""Reads a case with its truth. Cases are read one by one: a large cohort exceeds the memory."""


@dataclass(frozen=True)
class DrawSettings:
    """How many voxels of a case are shown, of each label and of background."""

    of_each_label: int = 700
    of_background: int = 3500

    def __post_init__(self) -> None:
        checks.integer(self.of_each_label, "of_each_label", minimum=1, maximum=MOST_VOXELS)
        checks.integer(self.of_background, "of_background", minimum=1, maximum=MOST_VOXELS)


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


def feature_table(scene: Scene) -> NDArray[np.float16]:
    """Return the features of all voxels inside the mask, (N, F).

    Half precision tells a thousand values apart in each power of two, more than trees use.
    """
    width = len(feature_names(scene.sequences))
    table = np.empty((np.count_nonzero(scene.mask), width), dtype=np.float16)
    row = 0
    for slab, features in features_in_slabs(scene):
        table[row : row + len(slab.voxels)] = features
        row += len(slab.voxels)
    scene.forget()
    return table


@dataclass(frozen=True, eq=False)
class FeatureStore:
    """The features of cases; with a ``folder`` they are computed once and read from there."""

    cases: Mapping[str, ReadScene]  # by name
    folder: Path | None = None
    _read: dict[str, Scene] = field(default_factory=dict, repr=False)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the cases, in order."""
        return tuple(self.cases)

    def without(self, name: str) -> FeatureStore:
        """Return the store of all other cases, which shares what was read."""
        others = {other: read for other, read in self.cases.items() if other != name}
        return FeatureStore(others, self.folder, self._read)

    def scene(self, name: str) -> Scene:
        """Return a case; the last ones read stay in memory."""
        if name not in self._read:
            found = self.cases[name]()
            if len(self._read) >= _KEPT:
                self._read.pop(next(iter(self._read)))
            self._read[name] = found
        return self._read[name]

    def truth(self, name: str) -> NDArray[np.uint8]:
        """Return the true labels (N,) of a case."""
        truth = self.scene(name).truth
        if truth is None:
            raise ValueError(f"cases must have a truth to learn from, got {name} without")
        return truth

    def features(self, name: str) -> NDArray[np.float16]:
        """Return the features (N, F) of a case."""
        if self.folder is None:
            return feature_table(self.scene(name))
        path = self.folder / f"{name}.npy"
        if not path.exists():
            table = feature_table(self.scene(name))
            with atomic_open(path) as file:
                np.save(file, table, allow_pickle=False)
        kept: NDArray[np.float16] = np.load(path, mmap_mode="r", allow_pickle=False)
        return kept
