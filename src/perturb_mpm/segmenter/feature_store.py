"""Labelled cases, features kept on disk where wanted, and the voxels that trees are shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from perturb_mpm import checks
from perturb_mpm.segmenter.features import feature_names, features_in_slabs
from perturb_mpm.segmenter.scene import Scene


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


_KEPT = 12  # cases in memory, some 60 MB each at 1 mm


@dataclass(frozen=True, eq=False)
class Labelled:
    """A scene and the labels 0 … L − 1 of its N voxels inside the mask."""

    scene: Scene
    labels: NDArray[np.uint8]  # (N,)


@dataclass(frozen=True, eq=False)
class TrainingCase:
    """A case by its name, and how to read it: a large cohort does not fit into memory."""

    name: str
    read: Callable[[], Labelled]


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

    cases: Sequence[TrainingCase]
    folder: Path | None = None
    _read: dict[str, Labelled] = field(default_factory=dict, repr=False)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the cases, in order."""
        return tuple(case.name for case in self.cases)

    def without(self, name: str) -> FeatureStore:
        """Return the store of all other cases, which shares what was read."""
        others = [case for case in self.cases if case.name != name]
        return FeatureStore(others, self.folder, self._read)

    def labelled(self, name: str) -> Labelled:
        """Return a case; the last ones read are kept."""
        if name not in self._read:
            found = next(case for case in self.cases if case.name == name).read()
            if len(self._read) >= _KEPT:
                self._read.pop(next(iter(self._read)))
            self._read[name] = found
        return self._read[name]

    def features(self, name: str) -> NDArray[np.float16]:
        """Return the features (N, F) of a case."""
        if self.folder is None:
            return feature_table(self.labelled(name).scene)
        path = self.folder / f"{name}.npy"
        if not path.exists():
            np.save(path, feature_table(self.labelled(name).scene))
        table: NDArray[np.float16] = np.load(path, mmap_mode="r", allow_pickle=False)
        return table
