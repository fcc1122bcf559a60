"""Decision trees: boosted (Friedman 2001), or as a random forest (Breiman 2001).

scikit-learn (extra ``train``) grows them; predicting does not need it. What is kept are plain
arrays, which a model file holds as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm import checks
from perturb_mpm.checks import FEWEST_LABELS
from perturb_mpm.optional import optional_package

if TYPE_CHECKING:
    from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier


MOST_ROUNDS = 10_000
MOST_LEAVES = 256
MOST_NODES = 10**7  # 150 rounds for 4 labels have 20 000, 50 trees of a forest some 300 000
LARGEST_VALUE = 1e6  # of a leaf: log odds beyond 40 are certain already
ARRAYS = {  # of the trees, in a file too: kind of numbers, and of what there are so many
    "labels": ("<i8", "labels"),
    "start": ("<f8", "labels"),
    "roots": ("<u4", "trees"),
    "owners": ("<u4", "trees"),
    "feature": ("<u4", "nodes"),
    "threshold": ("<f4", "nodes"),
    "left": ("<u4", "nodes"),
    "value": ("<f8", "leaves"),  # a forest's are shares, as _SHARES
    "importances": ("<f8", "features"),
}
_SHARES = "<f4"  # the kind of numbers of a forest's values
_ROUNDING = 1e-5  # by which the shares of a leaf may miss a sum of 1
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
    ) -> Trees:
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
        with threadpool_limits(1, user_api="openmp"):
            grower.fit(features, labels)
        return _boosted_trees(grower)


@dataclass(frozen=True)
class RandomForest:
    """How a random forest is grown, the paper's kind of classifier.

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

    trees: int = 50
    least_leaf: int = 10
    smoothing: float = 1.0

    def __post_init__(self) -> None:
        checks.integer(self.trees, "trees", minimum=1, maximum=MOST_ROUNDS)
        checks.integer(self.least_leaf, "least_leaf", minimum=1)
        checks.number(self.smoothing, "smoothing", positive=True)

    def grow(
        self, features: NDArray[np.float32], labels: NDArray[np.integer[Any]], seed: int
    ) -> Trees:
        """Return trees grown on features (n, F) and labels (n,), their leaves smoothed.

        The same input and seed give the same trees.
        """
        optional_package("sklearn", "training")
        from sklearn.ensemble import RandomForestClassifier

        grower = RandomForestClassifier(
            self.trees,
            min_samples_leaf=self.least_leaf,
            max_depth=MOST_LEAVES - 1,
            max_features="sqrt",
            random_state=seed,
        )
        return _forest_trees(grower.fit(features, labels), self.smoothing)


@dataclass(frozen=True, eq=False)
class Trees:
    """Grown trees.

    The leaves of boosted trees hold one number (C = 1); they add up to the logarithms of the
    labels' odds. With two labels there are trees of the second alone: the first one's sum is 0.
    The leaves of a forest hold the labels' shares (C = K), and are averaged.
    """

    labels: NDArray[np.int64]  # (K,) that were shown
    start: NDArray[np.float64]  # (K,) before any tree
    roots: NDArray[np.uint32]  # (T,) the node at which each tree begins
    owners: NDArray[np.uint32]  # (T,) which of the K labels it speaks of
    feature: NDArray[np.uint32]  # (nodes,) asked at a node
    threshold: NDArray[np.float32]  # (nodes,) up to which a voxel goes left, else one further
    left: NDArray[np.uint32]  # (nodes,) the next node; a leaf's is itself, its threshold infinite
    value: NDArray[np.float64 | np.float32]  # (leaves, C) in the order of the nodes
    importances: NDArray[np.float64]  # (F,) each feature's share of what divisions gain

    @property
    def count(self) -> int:
        """How many trees there are."""
        return len(self.roots)

    @cached_property
    def node_values(self) -> NDArray[np.float64]:
        """The value of every node, (nodes, C): 0 where it is no leaf."""
        values = np.zeros((len(self.left), self.value.shape[1]))
        values[self.left == np.arange(len(self.left))] = self.value
        return values

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
        leaves = np.count_nonzero(~divided)
        _require(len(self.value) == leaves, f"value of {leaves} leaves")
        for numbers in (self.value, self.start, self.importances):
            _require(bool(np.all(np.abs(numbers) <= LARGEST_VALUE)), "finite values")
        if self.value.shape[1] > 1:
            sums = self.value.sum(axis=1, dtype=np.float64)
            shares = bool(np.all(self.value >= 0) and np.all(np.abs(sums - 1) <= _ROUNDING))
            _require(shares and not self.owners.any(), "leaves whose shares add up to 1")
        _require(int(self.depths.max()) < MOST_LEAVES, f"fewer than {MOST_LEAVES} steps to a leaf")

    def _check_arrays(self, n_features: int) -> None:
        """Refuse arrays of other kinds of numbers, or of sizes that do not match."""
        sizes = (len(self.labels), len(self.roots), len(self.left), n_features, len(self.value))
        counts = dict(zip(("labels", "trees", "nodes", "features", "leaves"), sizes))
        columns = 1 if self.value.dtype == ARRAYS["value"][0] else len(self.labels)
        kinds = ARRAYS if columns == 1 else {**ARRAYS, "value": (_SHARES, "leaves")}
        for name, (dtype, counted) in kinds.items():
            array: NDArray[Any] = getattr(self, name)
            shape = (counts[counted], columns) if name == "value" else (counts[counted],)
            _require(array.dtype == dtype, f"{name} as {dtype}")
            _require(array.shape == shape, f"{name} of {' × '.join(map(str, shape))} numbers")
        _require(len(self.labels) >= FEWEST_LABELS, "two labels or more")
        _require(0 < self.count <= MOST_ROUNDS * len(self.labels), "as many roots as can grow")
        _require(len(self.left) <= MOST_NODES, f"at most {MOST_NODES} nodes")

    def predict(self, features: NDArray[np.float32], n_labels: int) -> NDArray[np.float32]:
        """Return the labels' probabilities, (n, L).

        A label that the trees were never shown has probability 0.
        """
        from perturb_mpm.segmenter.trees_kernel import add_leaves

        sums = np.empty((len(features), len(self.labels)))
        sums[:] = self.start
        trees = self.roots, self.depths, self.owners
        nodes = self.feature, self.threshold, self.left, self.node_values
        add_leaves(features, *trees, *nodes, sums)
        if self.value.shape[1] == 1:
            sums -= sums.max(axis=1, keepdims=True)
            np.exp(sums, out=sums)
        sums /= sums.sum(axis=1, keepdims=True)
        result = np.zeros((len(features), n_labels), dtype=np.float32)
        result[:, self.labels] = sums
        return result


def _require(holds: bool, what: str) -> None:  # noqa: FBT001 - an assertion
    if not holds:
        raise ValueError(f"trees must have {what}")


def _boosted_trees(grown: HistGradientBoostingClassifier) -> Trees:
    """Return what a classifier of scikit-learn has grown.

    Only here are private attributes of scikit-learn read (``_predictors``, its nodes' fields and
    ``_baseline_prediction``). Any minor version may change them: pyproject.toml caps the version.
    """
    start = grown._baseline_prediction.ravel()
    alone = len(start) == 1
    trees = [(own, tree.nodes) for each in grown._predictors for own, tree in enumerate(each)]
    nodes = np.concatenate([nodes for _, nodes in trees])
    inside = nodes["is_leaf"] == 0
    gains = np.bincount(
        nodes["feature_idx"][inside], nodes["gain"][inside], minlength=grown.n_features_in_
    )
    return _pack_trees(
        [
            (
                np.where(each["is_leaf"], -1, each["left"].astype(np.int64)),
                each["right"].astype(np.int64),
                each["feature_idx"],
                each["num_threshold"],
                each["value"][:, np.newaxis],
            )
            for _, each in trees
        ],
        labels=grown.classes_.astype(np.int64),
        start=np.concatenate([[0.0], start]) if alone else start.astype(np.float64),
        owners=np.array([own + alone for own, _ in trees], dtype=np.uint32),
        importances=gains / max(float(gains.sum()), _LEAST_GAIN),
    )


def _forest_trees(grown: RandomForestClassifier, smoothing: float) -> Trees:
    """Return a forest of scikit-learn, ``smoothing`` voxels of every label added to its leaves."""
    trees = []
    for each in grown.estimators_:
        tree = each.tree_
        voxels = tree.weighted_n_node_samples[:, np.newaxis]  # (nodes, 1)
        shares = tree.value[:, 0]  # (nodes, K)
        smooth = (shares * voxels + smoothing) / (voxels + smoothing * shares.shape[1])
        pair = tree.children_left, tree.children_right
        trees.append((*pair, tree.feature, tree.threshold, smooth.astype(_SHARES)))
    return _pack_trees(
        trees,
        labels=grown.classes_.astype(np.int64),
        start=np.zeros(len(grown.classes_)),
        owners=np.zeros(len(trees), dtype=np.uint32),
        importances=grown.feature_importances_,
    )


def _pack_trees(trees: Sequence[tuple[NDArray[Any], ...]], **others: NDArray[Any]) -> Trees:
    """Return trees given as left child (−1: a leaf), right child, feature, threshold and values.

    Nodes are put in an order in which every right child follows the left one.
    """
    parts: list[tuple[NDArray[Any], ...]] = []
    roots = np.cumsum([0, *(len(tree[0]) for tree in trees)])
    for root, (left, right, feature, threshold, value) in zip(roots, trees):
        order = [0]
        for node in order:
            if left[node] >= 0:
                order += [int(left[node]), int(right[node])]
        index = np.empty(len(left), dtype=np.int64)
        index[order] = np.arange(len(left))
        leaf = left[order] < 0
        parts.append(
            (
                np.where(leaf, 0, feature[order]).astype(np.uint32),
                np.where(leaf, np.float32(np.inf), _round_down(threshold[order])),
                (root + np.where(leaf, np.arange(len(left)), index[left[order]])).astype(np.uint32),
                value[order][leaf],
            )
        )
    names = ("feature", "threshold", "left", "value")
    nodes = {name: np.concatenate(each) for name, each in zip(names, zip(*parts))}
    return Trees(roots=roots[:-1].astype(np.uint32), **nodes, **others)


def _round_down(thresholds: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return the largest float32 that is not above: what no float32 can tell from the original."""
    near = thresholds.astype(np.float32)
    return np.where(near > thresholds, np.nextafter(near, np.float32(-np.inf)), near)
