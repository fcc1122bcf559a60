"""A random forest that tells the label of a voxel from its features (Breiman 2001).

The paper's kind of classifier, for its clinical experiments; the segmenter's own are boosted trees.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from perturb_mpm import checks

if TYPE_CHECKING:
    from sklearn.ensemble import RandomForestClassifier


@dataclass(frozen=True)
class RandomForest:
    """How a random forest is grown.

    Every tree sees its own draw of the voxels, and every node a draw of √F features.

    Parameters
    ----------
    trees
        How many there are.
    least_leaf
        The fewest training voxels in a leaf.
    smoothing
        Voxels of every label that are added to each leaf (Laplace's rule), so that no label is
        impossible.
    """

    threads_each: ClassVar[int] = os.cpu_count() or 1

    trees: int = 24
    least_leaf: int = 3
    smoothing: float = 1.0

    def __post_init__(self) -> None:
        checks.integer(self.trees, "trees", minimum=1)
        checks.integer(self.least_leaf, "least_leaf", minimum=1)
        checks.number(self.smoothing, "smoothing", positive=True)

    def grow(
        self, features: NDArray[np.float32], labels: NDArray[np.integer[Any]], seed: int
    ) -> RandomTrees:
        """Return trees grown on features (n, F) and labels (n,), their leaves smoothed.

        The same input and seed give the same trees.
        """
        from sklearn.ensemble import RandomForestClassifier

        forest = RandomForestClassifier(
            self.trees,
            min_samples_leaf=self.least_leaf,
            max_features="sqrt",
            random_state=seed,
            n_jobs=self.threads_each,
        )
        forest.fit(features, labels)
        for tree in forest.estimators_:
            smooth_leaves(tree.tree_, self.smoothing)
        return RandomTrees(forest)


@dataclass(frozen=True, eq=False)
class RandomTrees:
    """Grown trees, whose leaves are averaged."""

    forest: RandomForestClassifier

    @property
    def count(self) -> int:
        """How many trees there are."""
        return len(self.forest.estimators_)

    @property
    def importances(self) -> NDArray[np.float64]:
        """Each feature's share of the decrease of impurity, (F,), which sum to 1."""
        shares: NDArray[np.float64] = self.forest.feature_importances_
        return shares

    def predict(self, features: NDArray[np.float32], n_labels: int) -> NDArray[np.float32]:
        """Return the mean of the trees' leaves, (n, L).

        A label that the forest was never shown has probability 0.
        """
        # The forest's own predict_proba is not thread-safe.
        total = np.zeros((len(features), len(self.forest.classes_)))
        for tree in self.forest.estimators_:
            total += tree.predict_proba(features, check_input=False)
        result = np.zeros((len(features), n_labels), dtype=np.float32)
        result[:, self.forest.classes_] = total / self.count
        return result


def smooth_leaves(tree: Any, count: float) -> None:  # noqa: ANN401 - a compiled class
    """Add ``count`` voxels of every label to the histogram of each node of a tree, in place."""
    voxels = tree.weighted_n_node_samples[:, np.newaxis, np.newaxis]  # (nodes, 1, 1)
    n_labels = tree.value.shape[2]
    tree.value[...] = (tree.value * voxels + count) / (voxels + count * n_labels)
