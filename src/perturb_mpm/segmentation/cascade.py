"""Forests on folds of the patients, if wanted two in a row of which the second sees the first.

Patients are dealt into folds, and a forest is grown without each fold. So the model itself gives
honest probabilities of every patient it was trained on, by trees that never saw it: for
calibration, for CRF parameters, for the training report. A new patient is judged by all trees.

Where there are two in a row (auto-context, Tu 2008), a first forest is grown without each pair of
folds {i, j}. What the second forest of j learns from a patient of fold i is the answer of the first
forest without {i, j}, which was not shown that patient either; so it learns from answers such as it
will get, and nothing in the chain of j was shown fold j.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from perturb_mpm import checks
from perturb_mpm.segmentation.draw import DrawSettings, draw_voxels, label_shares
from perturb_mpm.segmentation.features.answers import Answers, CoarseGrid
from perturb_mpm.segmentation.forest import BLOCK, ForestSettings, grow_forest, predict_forest
from perturb_mpm.segmentation.scene import Scene
from perturb_mpm.segmentation.store import FeatureStore

if TYPE_CHECKING:
    from sklearn.ensemble import RandomForestClassifier

Pair = tuple[int, int]
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class CascadeSettings:
    """How many folds and trees, and how trees are grown.

    ``second_trees`` are grown without each fold; ``first_trees`` without each pair of folds. With
    no first trees there is one forest a fold, which sees the features alone.
    """

    folds: int = 10
    first_trees: int = 0
    second_trees: int = 12
    draw: DrawSettings = field(default_factory=DrawSettings)
    forest: ForestSettings = field(default_factory=ForestSettings)

    def __post_init__(self) -> None:
        checks.integer(self.folds, "folds", minimum=3)
        checks.integer(self.first_trees, "first_trees", minimum=0)
        checks.integer(self.second_trees, "second_trees", minimum=1)


@dataclass(frozen=True, eq=False)
class Cascade:
    """The forests, and which patients the folds are."""

    n_labels: int
    folds: tuple[tuple[str, ...], ...]
    first: dict[Pair, RandomForestClassifier]
    second: tuple[RandomForestClassifier, ...]
    shown: tuple[float, ...]  # (L,) each label's share of the voxels that were drawn

    def fold_of(self, name: str) -> int:
        """Return the fold of a patient."""
        return next(fold for fold, names in enumerate(self.folds) if name in names)

    def predict(
        self, scene: Scene, table: NDArray[np.float16], fold: int | None = None
    ) -> NDArray[np.float32]:
        """Return probabilities (N, L) of features (N, F), not calibrated.

        With ``fold``, of the trees that were not shown that fold.
        """
        second = self.second if fold is None else self.second[fold : fold + 1]
        if not self.first:
            return mean_answers(second, table, self.n_labels)
        first = [forest for pair, forest in self.first.items() if fold is None or fold in pair]
        grid = CoarseGrid(scene)
        answers = grid.columns(mean_answers(first, table[grid.rows], self.n_labels))
        return mean_answers(second, table, self.n_labels, answers, np.argwhere(scene.mask))


def mean_answers(
    forests: Sequence[RandomForestClassifier],
    table: NDArray[np.float16],
    n_labels: int,
    answers: Answers | None = None,
    voxels: NDArray[np.intp] | None = None,
) -> NDArray[np.float32]:
    """Return the mean of forests' probabilities (n, L) of features (n, F), in blocks.

    With a first forest's ``answers``, their features at ``voxels`` (n, 3) are put beside.
    """
    result = np.empty((len(table), n_labels), dtype=np.float32)
    for start in range(0, len(table), BLOCK):
        block = slice(start, start + BLOCK)
        features = table[block].astype(np.float32)
        if answers is not None and voxels is not None:
            features = np.hstack([features, answers.at(voxels[block])])
        each = [predict_forest(forest, features, n_labels) for forest in forests]
        result[block] = np.mean(each, axis=0)
    return result


def deal_folds(names: Sequence[str], folds: int, seed: int) -> tuple[tuple[str, ...], ...]:
    """Return the names dealt at random into folds of nearly the same size."""
    if len(names) < 3:
        raise ValueError(f"there must be at least 3 cases to learn from, got {len(names)}")
    order = np.random.default_rng(seed).permutation(len(names))
    folds = min(folds, len(names))
    return tuple(tuple(sorted(names[i] for i in order[fold::folds])) for fold in range(folds))


def train_cascade(
    store: FeatureStore,
    n_labels: int,
    seed: int,
    settings: CascadeSettings,
    progress: Progress | None = None,
) -> Cascade:
    """Return the cascade of all cases in a store; the same cases and seed give the same one."""
    report = progress or (lambda _what, _done, _total: None)
    folds = deal_folds(store.names, settings.folds, seed)
    drawn: dict[str, _Drawn] = {}
    for number, name in enumerate(store.names):
        report("features", number, len(store.names))
        drawn[name] = _draw(store, name, n_labels, np.random.default_rng([seed, number]), settings)
    first = _first_forests(drawn, folds, seed, settings, report)
    beside = _answers(store, drawn, folds, first, n_labels, report) if first else {}
    second = []
    for fold, left_out in enumerate(folds):
        report("forests", fold, len(folds))
        shown = [name for name in store.names if name not in left_out]
        tables = [
            np.hstack([drawn[name].features, beside[name, fold]]) if first else drawn[name].features
            for name in shown
        ]
        labels = np.concatenate([drawn[name].labels for name in shown])
        forest_seed = _seed(seed, 2, fold)
        second.append(
            grow_forest(
                np.concatenate(tables), labels, settings.second_trees, forest_seed, settings.forest
            )
        )
    shares = label_shares(np.concatenate([each.labels for each in drawn.values()]), n_labels)
    return Cascade(n_labels, folds, first, tuple(second), tuple(shares.tolist()))


@dataclass(frozen=True, eq=False)
class _Drawn:
    """The voxels of a case that forests are shown."""

    rows: NDArray[np.intp]  # (n,) among the scene's N voxels
    features: NDArray[np.float32]  # (n, F)
    labels: NDArray[np.uint8]  # (n,)


def _first_forests(
    drawn: Mapping[str, _Drawn],
    folds: Sequence[Sequence[str]],
    seed: int,
    settings: CascadeSettings,
    report: Progress,
) -> dict[Pair, RandomForestClassifier]:
    """Return a forest without each pair of folds, or none where none is wanted."""
    if not settings.first_trees:
        return {}
    first: dict[Pair, RandomForestClassifier] = {}
    pairs = list(combinations(range(len(folds)), 2))
    for number, (one, other) in enumerate(pairs):
        report("first forests", number, len(pairs))
        shown = [each for name, each in drawn.items() if name not in (*folds[one], *folds[other])]
        first[one, other] = grow_forest(
            np.concatenate([each.features for each in shown]),
            np.concatenate([each.labels for each in shown]),
            settings.first_trees,
            _seed(seed, 1, number),
            settings.forest,
        )
    return first


def _answers(
    store: FeatureStore,
    drawn: Mapping[str, _Drawn],
    folds: Sequence[Sequence[str]],
    first: Mapping[Pair, RandomForestClassifier],
    n_labels: int,
    report: Progress,
) -> dict[tuple[str, int], NDArray[np.float32]]:
    """Return what the second forest of each fold sees beside a case's features, (n, A)."""
    beside = {}
    for number, name in enumerate(store.names):
        report("answers", number, len(store.names))
        scene = store.labelled(name).scene
        grid = CoarseGrid(scene)
        table = store.features(name)[grid.rows]
        voxels = np.argwhere(scene.mask)[drawn[name].rows]
        [own] = [fold for fold, names in enumerate(folds) if name in names]
        for fold in range(len(folds)):
            if fold != own:
                forest = first[min(own, fold), max(own, fold)]
                answers = grid.columns(mean_answers([forest], table, n_labels))
                beside[name, fold] = answers.at(voxels)
    return beside


def _draw(
    store: FeatureStore,
    name: str,
    n_labels: int,
    rng: np.random.Generator,
    settings: CascadeSettings,
) -> _Drawn:
    labels = store.labelled(name).labels
    voxels = draw_voxels(labels, n_labels, settings.draw, rng)
    return _Drawn(voxels, store.features(name)[voxels].astype(np.float32), labels[voxels])


def _seed(seed: int, stage: int, number: int) -> int:
    """Return a seed of its own for every forest."""
    return int(np.random.SeedSequence([seed, stage, number]).generate_state(1)[0])
