"""Forests on folds of the patients.

Patients are dealt into folds, and a forest is grown without each fold. So the model itself gives
honest probabilities of every patient it was trained on, by trees that never saw it: for
calibration, for CRF parameters, for the training report. A new patient is judged by all trees.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from perturb_mpm import checks
from perturb_mpm.files import InputError
from perturb_mpm.progress import Silent, StagedProgress
from perturb_mpm.segmenter.boosting import Boosting
from perturb_mpm.segmenter.feature_store import (
    DrawSettings,
    FeatureStore,
    draw_voxels,
    label_shares,
)
from perturb_mpm.segmenter.masked_filters import in_threads, threads_available

BLOCK = 16_384
"""Voxels that a thread predicts at once: what bounds the memory of a prediction."""

_TREES = 2  # which of the streams of a seed grows trees

MOST_FOLDS = 1000


class Forest(Protocol):
    """Grown trees."""

    @property
    def count(self) -> int:
        """How many trees there are."""

    @property
    def importances(self) -> NDArray[np.float64]:
        """How much each feature matters, (F,); the sum is 1."""

    def predict(self, features: NDArray[np.float32], n_labels: int) -> NDArray[np.float32]:
        """Return the labels' probabilities (n, L) of features (n, F); several threads ask."""


class Grower(Protocol):
    """How trees are grown: ``Boosting``, or another way that an experiment compares with it."""

    threads_each: ClassVar[int]  # that one call of ``grow`` uses

    def grow(
        self, features: NDArray[np.float32], labels: NDArray[np.integer[Any]], seed: int
    ) -> Forest:
        """Return trees grown on features (n, F) and labels (n,); the same seed, the same trees."""


@dataclass(frozen=True)
class EnsembleSettings:
    """Into how many folds patients are dealt, which voxels are shown, and how trees are grown."""

    folds: int = 10
    draw: DrawSettings = field(default_factory=DrawSettings)
    trees: Grower = field(default_factory=Boosting)

    def __post_init__(self) -> None:
        checks.integer(self.folds, "folds", minimum=3, maximum=MOST_FOLDS)


@dataclass(frozen=True, eq=False)
class Ensemble:
    """The forests, and which patients the folds are."""

    n_labels: int
    folds: tuple[tuple[str, ...], ...]
    forests: tuple[Forest, ...]  # each grown without the fold of its place
    shown: tuple[float, ...]  # (L,) each label's share of the voxels that were drawn

    def fold_of(self, name: str) -> int:
        """Return the fold of a patient."""
        return next(fold for fold, names in enumerate(self.folds) if name in names)

    def predict(self, table: NDArray[np.float16], fold: int | None = None) -> NDArray[np.float32]:
        """Return probabilities (N, L) of features (N, F), not calibrated; computed in blocks.

        With ``fold``, of the trees that were not shown that fold.
        """
        forests = self.forests if fold is None else self.forests[fold : fold + 1]
        result = np.empty((len(table), self.n_labels), dtype=np.float32)

        def predict(start: int) -> None:
            block = slice(start, start + BLOCK)
            features = table[block].astype(np.float32)
            each = [forest.predict(features, self.n_labels) for forest in forests]
            result[block] = np.mean(each, axis=0)

        in_threads(predict, range(0, len(table), BLOCK))
        return result


def deal_folds(names: Sequence[str], folds: int, seed: int) -> tuple[tuple[str, ...], ...]:
    """Return the names dealt at random into folds of nearly the same size."""
    if len(names) < 3:
        raise InputError(f"`data` must hold at least 3 cases to learn from, got {len(names)}")
    order = np.random.default_rng(seed).permutation(len(names))
    folds = min(folds, len(names))
    return tuple(tuple(sorted(names[i] for i in order[fold::folds])) for fold in range(folds))


def train_ensemble(
    store: FeatureStore,
    n_labels: int,
    seed: int,
    settings: EnsembleSettings,
    progress: StagedProgress | None = None,
) -> Ensemble:
    """Return the forests of all cases in a store; the same cases and seed give the same ones."""
    folds = deal_folds(store.names, settings.folds, seed)
    shown = show_voxels(store, n_labels, seed, settings, progress)
    progress = progress or Silent()
    progress.stage("growing trees")
    forests = []
    for forest in shown.forests_without(folds, [(fold,) for fold in range(len(folds))]):
        forests.append(forest)
        progress(len(forests), len(folds))
    return Ensemble(n_labels, folds, tuple(forests), shown.shares())


@dataclass(frozen=True, eq=False)
class ShownVoxels:
    """The voxels of every case that forests are shown."""

    n_labels: int
    seed: int
    settings: EnsembleSettings
    features: dict[str, NDArray[np.float32]]  # (n, F) by case
    labels: dict[str, NDArray[np.uint8]]  # (n,) by case

    def forests_without(
        self, left_out: Sequence[Sequence[str]], numbers: Sequence[Sequence[int]]
    ) -> Iterator[Forest]:
        """Yield forests, each of all cases but some; its numbers set its seed apart."""
        at_once = max(1, threads_available() // self.settings.trees.threads_each)
        with ThreadPoolExecutor(at_once) as pool:
            yield from pool.map(self._forest_without, left_out, numbers)

    def _forest_without(self, left_out: Sequence[str], numbers: Sequence[int]) -> Forest:
        names = [name for name in self.labels if name not in left_out]
        labels = np.concatenate([self.labels[name] for name in names])
        if np.all(labels == labels[0]):
            raise InputError(
                "`data` must hold cases with two labels or more to tell apart, got one label "
                f"without {', '.join(left_out)}"
            )
        features = np.concatenate([self.features[name] for name in names])
        # A stream of its own: those of the drawn voxels have no such number.
        stream = np.random.SeedSequence([self.seed, _TREES, *numbers])
        return self.settings.trees.grow(features, labels, int(stream.generate_state(1)[0]))

    def shares(self, left_out: Sequence[str] = ()) -> tuple[float, ...]:
        """Return each label's share of the voxels of all other cases, (L,)."""
        labels = [each for name, each in self.labels.items() if name not in left_out]
        return tuple(label_shares(np.concatenate(labels), self.n_labels).tolist())


def show_voxels(
    store: FeatureStore,
    n_labels: int,
    seed: int,
    settings: EnsembleSettings,
    progress: StagedProgress | None = None,
) -> ShownVoxels:
    """Draw the voxels of every case in a store."""
    progress = progress or Silent()
    progress.stage("computing features")
    shown = ShownVoxels(n_labels, seed, settings, {}, {})
    for number, name in enumerate(store.names):
        labels = store.truth(name)
        rng = np.random.default_rng([seed, number])
        voxels = draw_voxels(labels, n_labels, settings.draw, rng)
        shown.features[name] = store.features(name)[voxels].astype(np.float32)
        shown.labels[name] = labels[voxels]
        progress(number + 1, len(store.names))
    return shown
