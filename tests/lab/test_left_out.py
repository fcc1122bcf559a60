"""Leaving one patient out: what is said of it comes from trees that never saw it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from helpers.tiny_cohort import SEQUENCES, write_cohort
from lab.segmentation.left_out import SharedForests, held_out_probabilities
from perturb_mpm.files import SCHEMES, find_labelled_cases
from perturb_mpm.segmenter.scene import Scene
from perturb_mpm.segmenter.training import (
    EnsembleSettings,
    FeatureStore,
    ReadScene,
    TrainingVoxels,
    training_cases,
)
from perturb_mpm.segmenter.trees import Boosting

SETTINGS = EnsembleSettings(
    folds=3,
    label_voxels=60,
    background_voxels=200,
    trees=Boosting(rounds=12, rate=0.3, least_leaf=5),
)


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ReadScene]:
    root = write_cohort(tmp_path_factory.mktemp("cohort"))
    return training_cases(find_labelled_cases(root, "brats"), SEQUENCES, SCHEMES["brats2021"])


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("features")


def with_wrong_labels(read: ReadScene) -> ReadScene:
    """Return how to read a case whose background and tumour are swapped."""

    def changed() -> Scene:
        scene = read()
        assert scene.truth is not None
        return replace(scene, truth=np.where(scene.truth > 0, 0, 2).astype(np.uint8))

    return changed


def test_leave_one_out_is_nested(cases: dict[str, ReadScene], cache: Path) -> None:
    [found] = held_out_probabilities(cases, 4, cache=cache, settings=SETTINGS, tests=["P1"])
    assert found.test == "P1"
    assert set(found.tuning) == {"P0", "P2", "P3", "P4"}
    voxels = np.count_nonzero(cases["P1"]().mask)
    assert found.probabilities.shape == (voxels, 4)
    assert np.allclose(found.probabilities.sum(axis=1), 1, atol=1e-5)


def test_forests_without_two_patients_serve_both(cases: dict[str, ReadScene], cache: Path) -> None:
    wrong = {**cases, "P0": with_wrong_labels(cases["P0"])}
    stores = FeatureStore(cases, cache), FeatureStore(wrong, cache)
    one, other = (SharedForests(TrainingVoxels.draw(store, 4, 0, SETTINGS)) for store in stores)
    table = stores[0].features("P0")
    # Nothing that speaks of P0 was shown its labels: not for P0 left out, not for P1.
    assert np.array_equal(one.ensemble("P0").predict(table), other.ensemble("P0").predict(table))
    left, right = one.ensemble("P1"), other.ensemble("P1")
    fold = left.find_fold("P0")
    assert np.array_equal(left.predict(table, fold), right.predict(table, fold))
    assert not np.array_equal(left.predict(table), right.predict(table))
    assert left.folds == (("P0",), ("P2",), ("P3",), ("P4",))
    assert len(one.grown) == 4 + 3  # the pair of both was grown once


def test_leaving_one_out_shares_forests_where_folds_are_single(
    cases: dict[str, ReadScene], cache: Path
) -> None:
    settings = replace(SETTINGS, folds=4)
    found = {
        each.test: each for each in held_out_probabilities(cases, 4, cache=cache, settings=settings)
    }
    [alone] = held_out_probabilities(cases, 4, cache=cache, settings=settings, tests=["P3"])
    assert np.array_equal(alone.probabilities, found["P3"].probabilities)
    assert set(alone.tuning) == {"P0", "P1", "P2", "P4"}
    for name, each in alone.tuning.items():
        assert np.array_equal(each, found["P3"].tuning[name])


def test_three_patients_are_too_few_to_leave_one_out(
    cases: dict[str, ReadScene], cache: Path
) -> None:
    few = {name: cases[name] for name in ("P0", "P1", "P2")}
    with pytest.raises(ValueError, match="at least 4 cases to leave one out, got 3"):
        next(held_out_probabilities(few, 4, cache=cache, settings=SETTINGS))
