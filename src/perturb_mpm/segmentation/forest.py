"""A random forest that tells the label of a voxel from its features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm import checks
from perturb_mpm.segmentation.threads import threads_available

if TYPE_CHECKING:
    from sklearn.ensemble import RandomForestClassifier

BLOCK = 65_536
"""Voxels that are predicted at once: what bounds the memory of a prediction."""


@dataclass(frozen=True)
class ForestSettings:
    """How trees are grown.

    Parameters
    ----------
    least_leaf
        The fewest training voxels in a leaf.
    smoothing
        Voxels of every label that are added to each leaf (Laplace's rule), so that no label is
        impossible.
    """

    least_leaf: int = 10
    smoothing: float = 1.0

    def __post_init__(self) -> None:
        checks.integer(self.least_leaf, "least_leaf", minimum=1)
        checks.number(self.smoothing, "smoothing", positive=True)


def grow_forest(
    features: NDArray[np.float32],
    labels: NDArray[np.integer[Any]],
    trees: int,
    seed: int,
    settings: ForestSettings,
) -> RandomForestClassifier:
    """Return a forest grown on features (n, F) and labels (n,), its leaves smoothed.

    Every tree sees its own draw of the voxels, and every node a draw of √F features (Breiman
    2001). The same input and seed give the same forest.
    """
    from sklearn.ensemble import RandomForestClassifier

    forest = RandomForestClassifier(
        trees,
        min_samples_leaf=settings.least_leaf,
        max_features="sqrt",
        random_state=seed,
        n_jobs=threads_available(),
    )
    forest.fit(features, labels)
    for tree in forest.estimators_:
        smooth_leaves(tree.tree_, settings.smoothing)
    return forest


def smooth_leaves(tree: Any, count: float) -> None:  # noqa: ANN401 - a compiled class
    """Add ``count`` voxels of every label to the histogram of each node of a tree, in place."""
    voxels = tree.weighted_n_node_samples[:, np.newaxis, np.newaxis]  # (nodes, 1, 1)
    n_labels = tree.value.shape[2]
    tree.value[...] = (tree.value * voxels + count) / (voxels + count * n_labels)


def predict_forest(
    forest: RandomForestClassifier, features: NDArray[np.float32], n_labels: int
) -> NDArray[np.float32]:
    """Return the mean of the trees' leaves, (n, L), computed in blocks.

    A label that the forest was never shown has probability 0.
    """
    result = np.zeros((len(features), n_labels), dtype=np.float32)
    forest.set_params(n_jobs=threads_available())
    for start in range(0, len(features), BLOCK):
        block = slice(start, start + BLOCK)
        result[block][:, forest.classes_] = forest.predict_proba(features[block])
    return result


def importances(forest: RandomForestClassifier) -> NDArray[np.float64]:
    """Return each feature's share of the decrease of impurity, (F,), which sum to 1."""
    shares: NDArray[np.float64] = forest.feature_importances_
    return shares
