"""Trees grown one after the other, each on what the ones before got wrong (Friedman 2001).

scikit-learn grows them. What is kept of it is plain arrays: they make a file of a few members that
holds numbers and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from perturb_mpm import checks

if TYPE_CHECKING:
    from sklearn.ensemble import HistGradientBoostingClassifier


_LEAST_GAIN = 1e-300  # where no node is divided, no feature is of importance


@dataclass(frozen=True)
class Boosting:
    """How boosted trees are grown.

    Parameters
    ----------
    rounds
        How many there are; each grows one tree for every label.
    rate
        How far the trees of one round go.
    leaves
        The most leaves of a tree.
    least_leaf
        The fewest training voxels in a leaf.
    shrinkage
        Voxels' worth of doubt added to each leaf, which pulls its value to 0.
    share
        Of the features, drawn anew for every node.
    """

    threads_each: ClassVar[int] = 1

    rounds: int = 150
    rate: float = 0.06
    leaves: int = 15
    least_leaf: int = 100
    shrinkage: float = 5.0
    share: float = 0.2

    def __post_init__(self) -> None:
        checks.integer(self.rounds, "rounds", minimum=1)
        checks.number(self.rate, "rate", positive=True)
        checks.integer(self.leaves, "leaves", minimum=2)
        checks.integer(self.least_leaf, "least_leaf", minimum=1)
        checks.number(self.shrinkage, "shrinkage", minimum=0)
        if checks.number(self.share, "share", positive=True) > 1:
            raise ValueError(f"share must be at most 1, got {self.share:g}")

    def grow(
        self, features: NDArray[np.float32], labels: NDArray[np.integer[Any]], seed: int
    ) -> BoostedTrees:
        """Return trees grown on features (n, F) and labels (n,).

        The same input and seed give the same trees: one thread adds up in one order.
        """
        from sklearn.ensemble import HistGradientBoostingClassifier
        from threadpoolctl import threadpool_limits

        grower = HistGradientBoostingClassifier(
            learning_rate=self.rate,
            max_iter=self.rounds,
            max_leaf_nodes=self.leaves,
            min_samples_leaf=self.least_leaf,
            l2_regularization=self.shrinkage,
            max_features=self.share,
            early_stopping=False,
            random_state=seed,
        )
        with threadpool_limits(self.threads_each, user_api="openmp"):
            grower.fit(features, labels)
        return _plain(grower)


@dataclass(frozen=True, eq=False)
class BoostedTrees:
    """Grown trees, whose leaves add up to the logarithms of the labels' odds.

    With two labels there are trees of the second alone: the first one's sum is 0.
    """

    labels: NDArray[np.int64]  # (K,) that were shown
    start: NDArray[np.float64]  # (K,) before any tree
    roots: NDArray[np.uint32]  # (T,) the node at which each tree begins
    depths: NDArray[np.int64]  # (T,) steps from there to its deepest leaf
    owners: NDArray[np.uint32]  # (T,) which of the K labels it speaks of
    feature: NDArray[np.uint32]  # (nodes,) asked at a node
    threshold: NDArray[np.float32]  # (nodes,) up to which a voxel goes left, else one further
    left: NDArray[np.uint32]  # (nodes,) the next node; a leaf's is itself, its threshold infinite
    value: NDArray[np.float64]  # (nodes,) of a leaf
    importances: NDArray[np.float64]  # (F,) each feature's share of what divisions gain

    @property
    def count(self) -> int:
        """How many trees there are."""
        return len(self.roots)

    def fits(self, n_features: int, n_labels: int) -> bool:
        """Return whether nothing points outside the trees, features and labels.

        Trees are walked without looking: those of a file must be looked at before.
        """
        nodes, trees = len(self.left), len(self.roots)
        wanted = (  # the array, its kind of numbers, its length
            (self.labels, "i", len(self.labels)),
            (self.start, "f", len(self.labels)),
            (self.roots, "u", trees),
            (self.depths, "i", trees),
            (self.owners, "u", trees),
            (self.feature, "u", nodes),
            (self.threshold, "f", nodes),
            (self.left, "u", nodes),
            (self.value, "f", nodes),
            (self.importances, "f", n_features),
        )
        if any(each.dtype.kind != kind or each.shape != (size,) for each, kind, size in wanted):
            return False
        # Where a voxel may go right there must be a node to the right.
        furthest = self.left.astype(np.int64) + np.isfinite(self.threshold)
        known = np.isin(self.labels, np.arange(n_labels)).all()
        limits = (
            (self.roots, nodes),
            (furthest, nodes),
            (self.feature, n_features),
            (self.owners, len(self.labels)),
            (self.depths, nodes),
        )
        return bool(known) and all(np.all(each < limit) for each, limit in limits)

    def predict(self, features: NDArray[np.float32], n_labels: int) -> NDArray[np.float32]:
        """Return the labels' probabilities, (n, L).

        A label that the trees were never shown has probability 0.
        """
        from perturb_mpm.segmenter.boosting_kernel import add_leaves

        odds = np.empty((len(features), len(self.labels)))
        odds[:] = self.start
        trees = self.roots, self.depths, self.owners
        add_leaves(features, *trees, self.feature, self.threshold, self.left, self.value, odds)
        odds -= odds.max(axis=1, keepdims=True)
        np.exp(odds, out=odds)
        odds /= odds.sum(axis=1, keepdims=True)
        result = np.zeros((len(features), n_labels), dtype=np.float32)
        result[:, self.labels] = odds
        return result


def _plain(grown: HistGradientBoostingClassifier) -> BoostedTrees:
    """Return what a classifier of scikit-learn has grown."""
    start = grown._baseline_prediction.ravel()
    alone = len(start) == 1
    trees = [(own, tree) for each in grown._predictors for own, tree in enumerate(each)]
    sizes = [len(tree.nodes) for _, tree in trees]
    roots = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.uint32)
    nodes = np.concatenate([_siblings_together(tree.nodes) for _, tree in trees])
    leaf = nodes["is_leaf"].astype(bool)
    divided, gained = nodes["feature_idx"][~leaf], nodes["gain"][~leaf]
    gains = np.bincount(divided, gained, minlength=grown.n_features_in_).astype(np.float64)
    places = np.arange(len(nodes))
    return BoostedTrees(
        labels=grown.classes_.astype(np.int64),
        start=np.concatenate([[0.0], start]) if alone else start.astype(np.float64),
        roots=roots,
        depths=np.array([tree.nodes["depth"].max() for _, tree in trees], dtype=np.int64),
        owners=np.array([own + alone for own, _ in trees], dtype=np.uint32),
        feature=np.where(leaf, 0, nodes["feature_idx"]).astype(np.uint32),
        threshold=np.where(leaf, np.float32(np.inf), _rounded_down(nodes["num_threshold"])),
        left=np.where(leaf, places, nodes["left"] + np.repeat(roots, sizes)).astype(np.uint32),
        value=np.where(leaf, nodes["value"], 0.0),
        importances=gains / max(float(gains.sum()), _LEAST_GAIN),
    )


def _siblings_together(nodes: NDArray[Any]) -> NDArray[Any]:
    """Return a tree's nodes in an order in which every right child follows the left one."""
    order = [0]
    for place in order:
        if not nodes["is_leaf"][place]:
            order += [int(nodes["left"][place]), int(nodes["right"][place])]
    place_of = np.empty(len(nodes), dtype=np.uint32)
    place_of[order] = np.arange(len(nodes))
    arranged = nodes[order].copy()
    arranged["left"] = place_of[arranged["left"]]
    return arranged


def _rounded_down(thresholds: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return the largest float32 that is not above: what no float32 can tell from the original."""
    near = thresholds.astype(np.float32)
    return np.where(near > thresholds, np.nextafter(near, np.float32(-np.inf)), near)
