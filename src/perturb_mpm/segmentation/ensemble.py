"""Forests on folds of the patients.

Patients are dealt into folds, and a forest is grown without each fold. So the model itself gives
honest probabilities of every patient it was trained on, by trees that never saw it: for
calibration, for CRF parameters, for the training report. A new patient is judged by all trees.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from perturb_mpm import checks
from perturb_mpm.segmentation.boosting import BoostedTrees, Boosting
from perturb_mpm.segmentation.draw import DrawSettings, draw_voxels, label_shares
from perturb_mpm.segmentation.forest import RandomForest, RandomTrees
from perturb_mpm.segmentation.store import FeatureStore
from perturb_mpm.segmentation.threads import in_threads, threads_available

BLOCK = 16_384
"""Voxels that a thread predicts at once: what bounds the memory of a prediction."""

_TREES = 2  # which of the streams of a seed grows trees

Progress = Callable[[str, int, int], None]
Forest = BoostedTrees | RandomTrees


@dataclass(frozen=True)
class EnsembleSettings:
    """Into how many folds patients are dealt, which voxels are shown, and how trees are grown."""

    folds: int = 10
    draw: DrawSettings = field(default_factory=DrawSettings)
    trees: Boosting | RandomForest = field(default_factory=Boosting)

    def __post_init__(self) -> None:
        checks.integer(self.folds, "folds", minimum=3)


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
        raise ValueError(f"there must be at least 3 cases to learn from, got {len(names)}")
    order = np.random.default_rng(seed).permutation(len(names))
    folds = min(folds, len(names))
    return tuple(tuple(sorted(names[i] for i in order[fold::folds])) for fold in range(folds))


def train_ensemble(
    store: FeatureStore,
    n_labels: int,
    seed: int,
    settings: EnsembleSettings,
    progress: Progress | None = None,
) -> Ensemble:
    """Return the forests of all cases in a store; the same cases and seed give the same ones."""
    report = progress or (lambda _what, _done, _total: None)
    folds = deal_folds(store.names, settings.folds, seed)
    drawn: dict[str, _Drawn] = {}
    for number, name in enumerate(store.names):
        report("features", number, len(store.names))
        rng = np.random.default_rng([seed, number])
        drawn[name] = _draw(store, name, n_labels, rng, settings.draw)

    def grow(fold: int) -> Forest:
        shown = [each for name, each in drawn.items() if name not in folds[fold]]
        features = np.concatenate([each.features for each in shown])
        labels = np.concatenate([each.labels for each in shown])
        if np.all(labels == labels[0]):
            raise ValueError(
                "cases must have two labels or more to tell apart, got one label without "
                f"{', '.join(folds[fold])}"
            )
        return settings.trees.grow(features, labels, _seed(seed, fold))

    forests = []
    with ThreadPoolExecutor(threads_available()) as pool:
        for forest in pool.map(grow, range(len(folds))):
            forests.append(forest)
            report("forests", len(forests), len(folds))
    shares = label_shares(np.concatenate([each.labels for each in drawn.values()]), n_labels)
    return Ensemble(n_labels, folds, tuple(forests), tuple(shares.tolist()))


@dataclass(frozen=True, eq=False)
class _Drawn:
    """The voxels of a case that forests are shown."""

    features: NDArray[np.float32]  # (n, F)
    labels: NDArray[np.uint8]  # (n,)


def _draw(
    store: FeatureStore,
    name: str,
    n_labels: int,
    rng: np.random.Generator,
    settings: DrawSettings,
) -> _Drawn:
    labels = store.labelled(name).labels
    voxels = draw_voxels(labels, n_labels, settings, rng)
    return _Drawn(store.features(name)[voxels].astype(np.float32), labels[voxels])


def _seed(seed: int, fold: int) -> int:
    """Return a seed of its own for every forest, apart from those of the drawn voxels."""
    return int(np.random.SeedSequence([seed, _TREES, fold]).generate_state(1)[0])
