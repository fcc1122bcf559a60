"""Trees grown one after the other, each on what the ones before got wrong (Friedman 2001).

scikit-learn (extra ``train``) grows them; predicting does not need it. What is kept are plain
arrays, which a model file holds as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from perturb_mpm import checks
from perturb_mpm.checks import FEWEST_LABELS
from perturb_mpm.optional import optional_package

if TYPE_CHECKING:
    from sklearn.ensemble import HistGradientBoostingClassifier


MOST_ROUNDS = 10_000
MOST_LEAVES = 256
MOST_NODES = 10**7  # of one forest: 150 rounds for 4 labels have 20 000
LARGEST_VALUE = 1e6  # of a leaf: log odds beyond 40 are certain already
ARRAYS = {  # of the trees, in a file too: kind of numbers, and of what there are so many
    "labels": ("<i8", "labels"),
    "start": ("<f8", "labels"),
    "roots": ("<u4", "trees"),
    "owners": ("<u4", "trees"),
    "feature": ("<u4", "nodes"),
    "threshold": ("<f4", "nodes"),
    "left": ("<u4", "nodes"),
    "value": ("<f8", "nodes"),
    "importances": ("<f8", "features"),
}
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
        checks.integer(self.rounds, "rounds", minimum=1, maximum=MOST_ROUNDS)
        checks.number(self.rate, "rate", positive=True)
        checks.integer(self.leaves, "leaves", minimum=2, maximum=MOST_LEAVES)
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
        from threadpoolctl import threadpool_limits

        optional_package("sklearn", "training")
        from sklearn.ensemble import HistGradientBoostingClassifier

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
        return _extract_trees(grower)


@dataclass(frozen=True, eq=False)
class BoostedTrees:
    """Grown trees, whose leaves add up to the logarithms of the labels' odds.

    With two labels there are trees of the second alone: the first one's sum is 0.
    """

    labels: NDArray[np.int64]  # (K,) that were shown
    start: NDArray[np.float64]  # (K,) before any tree
    roots: NDArray[np.uint32]  # (T,) the node at which each tree begins
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

    @cached_property
    def depths(self) -> NDArray[np.int64]:
        """The steps from each tree's root to its deepest leaf, (T,)."""
        depths = np.zeros(self.count, dtype=np.int64)
        tree, node = np.arange(self.count), self.roots.astype(np.int64)
        for step in range(1, MOST_LEAVES + 1):  # what is deeper still is refused by ``check``
            divided = self.left[node] != node
            tree, node = tree[divided], self.left[node[divided]].astype(np.int64)
            if not len(node):
                break
            depths[tree] = step
            tree, node = np.concatenate([tree, tree]), np.concatenate([node, node + 1])
        return depths

    def check(self, n_features: int, n_labels: int) -> None:
        """Refuse trees that cannot be walked, or not with so many features and labels.

        The compiled walk looks at nothing: the trees of a file must pass here first.
        """
        self._check_arrays(n_features)
        nodes, indices = len(self.left), np.arange(len(self.left))
        _require(np.array_equal(self.labels, np.unique(self.labels)), "labels in order")
        _require(self.labels[0] >= 0 and self.labels[-1] < n_labels, "labels of their own model")
        _require(bool(np.all(self.owners < len(self.labels))), "trees of their own labels")
        _require(self.roots[0] == 0 and bool(np.all(self.roots < nodes)), "roots among the nodes")
        _require(bool(np.all(np.diff(self.roots.astype(np.int64)) > 0)), "roots in order")
        _require(bool(np.all(self.feature < n_features)), "features of their own model")
        divided = self.left != indices  # (nodes,); a leaf's next node is itself
        children = self.left[divided].astype(np.int64)  # the left ones; the right ones come next
        _require(bool(np.all(children > indices[divided])), "children after their parent")
        starts, stops = self.roots.astype(np.int64), np.append(self.roots[1:], nodes)
        ends = np.repeat(stops, stops - starts)  # (nodes,) where the node's own tree ends
        _require(bool(np.all(children + 1 < ends[divided])), "children inside their tree")
        reached = np.sort(np.concatenate([self.roots, children, children + 1]))
        _require(np.array_equal(reached, indices), "every node reached in one way")
        _require(bool(np.all(np.isfinite(self.threshold[divided]))), "finite thresholds")
        _require(bool(np.all(self.threshold[~divided] == np.inf)), "leaves without a threshold")
        for numbers in (self.value, self.start, self.importances):
            _require(bool(np.all(np.abs(numbers) <= LARGEST_VALUE)), "finite values")
        _require(int(self.depths.max()) < MOST_LEAVES, f"fewer than {MOST_LEAVES} steps to a leaf")

    def _check_arrays(self, n_features: int) -> None:
        """Refuse arrays of other kinds of numbers, or of sizes that do not match."""
        sizes = (len(self.labels), len(self.roots), len(self.left), n_features)
        counts = dict(zip(("labels", "trees", "nodes", "features"), sizes))
        for name, (dtype, counted) in ARRAYS.items():
            array: NDArray[Any] = getattr(self, name)
            _require(array.dtype == dtype, f"{name} as {dtype}")
            _require(array.shape == (counts[counted],), f"{name} of {counts[counted]} numbers")
        _require(len(self.labels) >= FEWEST_LABELS, "two labels or more")
        _require(0 < self.count <= MOST_ROUNDS * len(self.labels), "as many roots as can grow")
        _require(len(self.left) <= MOST_NODES, f"at most {MOST_NODES} nodes")

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


def _require(holds: bool, what: str) -> None:  # noqa: FBT001 - an assertion
    if not holds:
        raise ValueError(f"trees must have {what}")


def _extract_trees(grown: HistGradientBoostingClassifier) -> BoostedTrees:
    """Return what a classifier of scikit-learn has grown.

    Only here are private attributes of scikit-learn read (``_predictors``, its nodes' fields and
    ``_baseline_prediction``). Any minor version may change them: pyproject.toml caps the version.
    """
    start = grown._baseline_prediction.ravel()
    alone = len(start) == 1
    trees = [(own, tree) for each in grown._predictors for own, tree in enumerate(each)]
    sizes = [len(tree.nodes) for _, tree in trees]
    roots = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.uint32)
    nodes = np.concatenate([_pair_siblings(tree.nodes) for _, tree in trees])
    leaf = nodes["is_leaf"].astype(bool)
    divided, gained = nodes["feature_idx"][~leaf], nodes["gain"][~leaf]
    gains = np.bincount(divided, gained, minlength=grown.n_features_in_).astype(np.float64)
    indices = np.arange(len(nodes))
    return BoostedTrees(
        labels=grown.classes_.astype(np.int64),
        start=np.concatenate([[0.0], start]) if alone else start.astype(np.float64),
        roots=roots,
        owners=np.array([own + alone for own, _ in trees], dtype=np.uint32),
        feature=np.where(leaf, 0, nodes["feature_idx"]).astype(np.uint32),
        threshold=np.where(leaf, np.float32(np.inf), _round_down(nodes["num_threshold"])),
        left=np.where(leaf, indices, nodes["left"] + np.repeat(roots, sizes)).astype(np.uint32),
        value=np.where(leaf, nodes["value"], 0.0),
        importances=gains / max(float(gains.sum()), _LEAST_GAIN),
    )


def _pair_siblings(nodes: NDArray[Any]) -> NDArray[Any]:
    """Return a tree's nodes in an order in which every right child follows the left one."""
    order = [0]
    for node in order:
        if not nodes["is_leaf"][node]:
            order += [int(nodes["left"][node]), int(nodes["right"][node])]
    new_index = np.empty(len(nodes), dtype=np.uint32)
    new_index[order] = np.arange(len(nodes))
    arranged = nodes[order].copy()
    arranged["left"] = new_index[arranged["left"]]
    return arranged


def _round_down(thresholds: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return the largest float32 that is not above: what no float32 can tell from the original."""
    near = thresholds.astype(np.float32)
    return np.where(near > thresholds, np.nextafter(near, np.float32(-np.inf)), near)
