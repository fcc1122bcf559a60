"""The random forest of the clinical experiments, and the segmenter that grows it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from helpers.tiny_cohort import SEQUENCES, write_cohort
from lab.random_forest import RandomForest, RandomTrees
from perturb_mpm.files import SCHEMES, find_labelled_cases
from perturb_mpm.segmenter import (
    EnsembleSettings,
    train_segmenter,
    training_cases,
)


def test_leaves_are_smoothed_by_laplaces_rule() -> None:
    features = np.array([[0.0], [0.0], [0.0], [1.0], [1.0]], dtype=np.float32)
    labels = np.array([0, 0, 0, 1, 0])
    grown = RandomForest(trees=1, least_leaf=1, smoothing=0.5).grow(features, labels, 0)
    [tree] = grown.forest.estimators_
    drawn = tree.tree_.weighted_n_node_samples  # the root, then its two leaves
    assert drawn.sum() == 2 * 5
    plain = RandomForest(trees=1, least_leaf=1, smoothing=1e-9).grow(features, labels, 0)
    shares = plain.forest.estimators_[0].tree_.value[:, 0]
    for count, share, smooth in zip(drawn, shares, tree.tree_.value[:, 0]):
        assert np.allclose(smooth, (count * share + 0.5) / (count + 2 * 0.5))
    found = grown.predict(np.float32([[0.0]]), 3)
    assert found[0, 0] > found[0, 1] > 0
    assert found[0, 2] == 0  # never shown


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="smoothing must be positive"):
        RandomForest(smoothing=0)


def test_the_segmenter_grows_it_like_its_own_trees(tmp_path: Path) -> None:
    scheme = SCHEMES["brats2021"]
    cases = training_cases(find_labelled_cases(write_cohort(tmp_path), "brats"), SEQUENCES, scheme)
    settings = EnsembleSettings(
        folds=3, label_voxels=60, background_voxels=200, trees=RandomForest(trees=4)
    )
    model, report = train_segmenter(cases, SEQUENCES, scheme, seed=3, settings=settings)
    assert all(isinstance(forest, RandomTrees) for forest in model.ensemble.forests)
    assert [forest.count for forest in model.ensemble.forests] == [4, 4, 4]
    assert report.mean_dice["all labels"] is not None
    assert report.mean_dice["all labels"] > 0.6
    assert sum(report.importances.values()) == pytest.approx(1)
