"""Forests, folds, the model file, and what of it is refused."""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import skops.io
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression

from helpers.tiny_cohort import AFFINE, SEQUENCES, make_patient, write_cohort
from lab.segmentation.left_out import SharedForests, held_out_probabilities
from perturb_mpm.files import SCHEMES
from perturb_mpm.files.case import ImageSet
from perturb_mpm.files.geometry import geometry_from_affine
from perturb_mpm.files.source import InputError, Source
from perturb_mpm.segmenter.boosting import Boosting
from perturb_mpm.segmenter.cases import find_cases, training_cases
from perturb_mpm.segmenter.ensemble import EnsembleSettings, deal_folds, show_voxels, train_ensemble
from perturb_mpm.segmenter.feature_store import DrawSettings, FeatureStore, Labelled, TrainingCase
from perturb_mpm.segmenter.forest import RandomForest
from perturb_mpm.segmenter.model import SegmenterModel, probabilities_from_model, require_scheme
from perturb_mpm.segmenter.model_file import load_skops, save_skops
from perturb_mpm.segmenter.preprocessing import prepare
from perturb_mpm.segmenter.training import TrainingReport, train_segmenter

SCHEME = SCHEMES["brats2021"]
DRAW = DrawSettings(60, 200)
GROWERS: dict[str, Boosting | RandomForest] = {
    "boosted": Boosting(rounds=12, rate=0.3, least_leaf=5),
    "random": RandomForest(trees=4),
}
SETTINGS = EnsembleSettings(folds=3, draw=DRAW, trees=GROWERS["boosted"])


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> list[TrainingCase]:
    root = write_cohort(tmp_path_factory.mktemp("cohort"))
    return training_cases(find_cases(root, "brats"), SEQUENCES, SCHEME)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("features")


@pytest.fixture(scope="module", params=GROWERS)
def settings(request: pytest.FixtureRequest) -> EnsembleSettings:
    return replace(SETTINGS, trees=GROWERS[request.param])


@pytest.fixture(scope="module")
def trained(
    cases: list[TrainingCase], cache: Path, settings: EnsembleSettings
) -> tuple[SegmenterModel, TrainingReport]:
    return train_segmenter(cases, SEQUENCES, SCHEME, seed=3, settings=settings, cache=cache)


@pytest.fixture(scope="module")
def saved(
    trained: tuple[SegmenterModel, TrainingReport], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.skops"
    trained[0].save(path)
    return path


def images_of(seed: int, drop: tuple[str, ...] = ()) -> tuple[ImageSet, np.ndarray]:
    images, labels = make_patient(seed)
    kept = {name: image.astype(np.float32) for name, image in images.items() if name not in drop}
    mask = images["t1"] != 0
    geometry = geometry_from_affine(mask.shape, AFFINE)
    return ImageSet(kept, mask, "given", geometry, {}), labels


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


@pytest.mark.parametrize("shown", [(0, 1), (0, 2, 3), (0, 1, 2, 3)])
def test_boosted_trees_say_what_scikit_learn_says(shown: tuple[int, ...]) -> None:
    rng = np.random.default_rng(5)
    features = rng.normal(size=(700, 6)).astype(np.float32)
    product = np.digitize(features[:, 0] * features[:, 1], [0.0, 0.5, 1.0])
    labels = np.array(shown)[product % len(shown)]
    boosting = Boosting(rounds=9, rate=0.2, leaves=7, least_leaf=10, share=0.5)
    grown = boosting.grow(features, labels, seed=4)
    theirs = HistGradientBoostingClassifier(
        learning_rate=0.2,
        max_iter=9,
        max_leaf_nodes=7,
        min_samples_leaf=10,
        l2_regularization=5.0,
        max_features=0.5,
        early_stopping=False,
        random_state=4,
    ).fit(features, labels)
    fresh = rng.normal(size=(500, 6)).astype(np.float32)
    found = grown.predict(fresh, 4)
    assert np.allclose(found[:, list(shown)], theirs.predict_proba(fresh), atol=1e-6)
    assert np.allclose(found.sum(axis=1), 1, atol=1e-6)
    assert not found[:, [label for label in range(4) if label not in shown]].any()
    assert grown.count == 9 * (1 if len(shown) == 2 else len(shown))


def test_boosting_is_importance_of_what_matters() -> None:
    rng = np.random.default_rng(6)
    features = rng.normal(size=(900, 5)).astype(np.float32)
    labels = (features[:, 3] > 0.2).astype(np.int64)
    grown = Boosting(rounds=10, least_leaf=10, share=1.0).grow(features, labels, 0)
    assert grown.importances.shape == (5,)
    assert grown.importances.sum() == pytest.approx(1)
    assert grown.importances[3] > 0.95


def test_bad_settings_of_trees_are_refused() -> None:
    with pytest.raises(ValueError, match="smoothing must be positive"):
        RandomForest(smoothing=0)
    with pytest.raises(ValueError, match="rounds must be at least 1"):
        Boosting(rounds=0)
    with pytest.raises(ValueError, match=r"share must be at most 1, got 1.5"):
        Boosting(share=1.5)
    with pytest.raises(ValueError, match="folds must be at least 3"):
        EnsembleSettings(folds=2)
    with pytest.raises(ValueError, match="at least 3 cases"):
        deal_folds(["a", "b"], 5, 0)


def test_cases_of_one_label_are_refused(cases: list[TrainingCase], cache: Path) -> None:
    def blank(case: TrainingCase) -> TrainingCase:
        found = case.read()
        return TrainingCase(case.name, lambda: Labelled(found.scene, 0 * found.labels))

    store = FeatureStore([cases[0], *map(blank, cases[1:])], cache)
    with pytest.raises(ValueError, match="two labels or more to tell apart, got one label without"):
        train_ensemble(store, 4, 0, SETTINGS)


def test_folds_hold_every_case_once() -> None:
    names = [f"P{i}" for i in range(11)]
    folds = deal_folds(names, 5, seed=1)
    assert sorted(name for fold in folds for name in fold) == sorted(names)
    assert {len(fold) for fold in folds} == {2, 3}
    assert deal_folds(names, 5, seed=1) == folds != deal_folds(names, 5, seed=2)
    assert len(deal_folds(names[:4], 5, seed=1)) == 4


def test_a_model_finds_the_lump_in_a_new_patient(saved: Path) -> None:
    images, labels = images_of(17)
    probabilities, scheme = probabilities_from_model(saved, images)
    assert scheme == SCHEME
    assert probabilities.shape == (4, *labels.shape)
    assert np.allclose(probabilities.sum(axis=0), 1, atol=1e-5)
    assert (probabilities[0][~images.mask] == 1).all()
    found, truth = probabilities.argmax(axis=0) > 0, labels > 0
    assert 2 * (found & truth).sum() / (found.sum() + truth.sum()) > 0.7


def test_names_of_sequences_and_orientation_do_not_matter(saved: Path) -> None:
    images, _ = images_of(17)
    wanted, _ = probabilities_from_model(saved, images)
    flipped = AFFINE.copy()
    flipped[:, 0] *= -1
    other = ImageSet(
        {("t1ce" if n == "t1c" else n): i[::-1] for n, i in reversed(images.images.items())},
        images.mask[::-1],
        "given",
        geometry_from_affine(images.mask.shape, flipped),
        {},
    )
    found, _ = probabilities_from_model(saved, other)
    assert np.array_equal(found[:, ::-1], wanted)


def test_a_missing_sequence_is_refused(saved: Path) -> None:
    images, _ = images_of(17, drop=("t1c",))
    with pytest.raises(InputError, match=r"t1, t1c, t2, flair are needed, t1c is missing; got t1"):
        probabilities_from_model(saved, images)


def test_another_label_scheme_is_refused(trained: tuple[SegmenterModel, TrainingReport]) -> None:
    source = Source("--model", Path("model.skops"))
    require_scheme(trained[0], SCHEME, source)
    with pytest.raises(InputError, match=r"label values 0, 1, 2, 3, got 0, 1, 2, 4"):
        require_scheme(trained[0], SCHEMES["brats2023"], source)


def test_the_same_seed_gives_the_same_bytes(
    cases: list[TrainingCase],
    settings: EnsembleSettings,
    saved: Path,
    cache: Path,
    tmp_path: Path,
) -> None:
    again, _ = train_segmenter(cases, SEQUENCES, SCHEME, seed=3, settings=settings)
    again.save(tmp_path / "again.skops")
    assert (tmp_path / "again.skops").read_bytes() == saved.read_bytes()
    other, _ = train_segmenter(cases, SEQUENCES, SCHEME, seed=4, settings=settings, cache=cache)
    other.save(tmp_path / "other.skops")
    assert (tmp_path / "other.skops").read_bytes() != saved.read_bytes()


def test_a_model_is_read_as_it_was_written(
    trained: tuple[SegmenterModel, TrainingReport], saved: Path, tmp_path: Path
) -> None:
    loaded = SegmenterModel.load(saved)
    assert loaded.calibration == trained[0].calibration
    assert loaded.ensemble.folds == trained[0].ensemble.folds
    images, affine = images_of(21)[0], AFFINE
    prepared = prepare({n: images.images[n] for n in SEQUENCES}, affine, images.mask)
    assert np.array_equal(loaded.probabilities(prepared), trained[0].probabilities(prepared))
    loaded.save(tmp_path / "again.skops")
    assert (tmp_path / "again.skops").read_bytes() == saved.read_bytes()


def test_a_file_with_another_type_is_not_opened(tmp_path: Path) -> None:
    path = tmp_path / "model.skops"
    model = LogisticRegression().fit([[0.0], [1.0]], [0, 1])
    path.write_bytes(skops.io.dumps({"format": "perturb-mpm segmenter 2", "forests": [model]}))
    with pytest.raises(InputError, match=r"got the type .*LogisticRegression; it was not opened"):
        SegmenterModel.load(path)


def test_a_type_hidden_under_a_known_name_is_not_opened(tmp_path: Path) -> None:
    """The schema names a harmless class for an object that would be made by a function."""
    schema = {
        "__class__": "dict",
        "__module__": "builtins",
        "__loader__": "ReduceNode",
        "reduce": {"__class__": "str", "__module__": "os", "__loader__": "JsonNode"},
        "__id__": 1,
        "protocol": 2,
        "_skops_version": "0.11",
    }
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("schema.json", json.dumps(schema))
    path = tmp_path / "model.skops"
    path.write_bytes(data.getvalue())
    with pytest.raises(InputError, match=r"got the type os.str"):
        SegmenterModel.load(path)


def test_files_that_are_no_models_are_refused(tmp_path: Path, saved: Path) -> None:
    path = tmp_path / "model.skops"
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(InputError, match="it is not, or damaged"):
        SegmenterModel.load(path)
    path.write_bytes(saved.read_bytes()[:-1000])
    with pytest.raises(InputError, match="it is not, or damaged"):
        SegmenterModel.load(path)
    save_skops(path, {"format": "something else"})
    with pytest.raises(InputError, match="got something else"):
        SegmenterModel.load(path)
    save_skops(path, {"format": "perturb-mpm segmenter 2"})
    with pytest.raises(InputError, match="lacks 'sequences'"):
        SegmenterModel.load(path)
    with pytest.raises(InputError, match="there is no such file"):
        SegmenterModel.load(tmp_path / "nowhere.skops")


def test_a_model_of_other_features_is_refused(saved: Path, tmp_path: Path) -> None:
    content: dict[str, Any] = load_skops(saved)
    content["features"] = [*content["features"], "one_more"]
    save_skops(tmp_path / "other.skops", content)
    with pytest.raises(InputError, match="features that this version computes"):
        SegmenterModel.load(tmp_path / "other.skops")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("left", 10**6),
        ("feature", 10**6),
        ("roots", 10**6),
        ("owners", 4),
        ("depths", 10**9),
        ("labels", 4),
    ],
)
def test_trees_that_point_outside_are_refused(
    tmp_path: Path, cases: list[TrainingCase], cache: Path, name: str, value: int
) -> None:
    model, _ = train_segmenter(cases, SEQUENCES, SCHEME, settings=SETTINGS, cache=cache)
    path = tmp_path / "model.skops"
    model.save(path)
    SegmenterModel.load(path)
    content = load_skops(path)
    content["forests"][1][name][0] = value
    save_skops(path, content)
    with pytest.raises(InputError, match="trees of its own features and labels"):
        SegmenterModel.load(path)


def test_trees_of_other_kinds_of_numbers_or_other_sizes_are_refused() -> None:
    features = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32)
    grown = Boosting(rounds=3, least_leaf=5).grow(features, features[:, 0] > 0, 0)
    assert grown.fits(3, 2)
    assert not grown.fits(4, 2)
    assert not grown.fits(3, 1)
    assert not replace(grown, left=grown.left.astype(np.int64)).fits(3, 2)
    assert not replace(grown, value=grown.value[1:]).fits(3, 2)
    random = RandomForest(trees=2).grow(features, (features[:, 0] > 0).astype(int), 0)
    assert random.fits(3, 2)
    assert not random.fits(4, 2)
    assert not random.fits(3, 1)


def test_the_report_is_of_patients_the_trees_never_saw(
    trained: tuple[SegmenterModel, TrainingReport],
) -> None:
    report = trained[1]
    assert report.cases == ("P0", "P1", "P2", "P3", "P4")
    assert report.dice["P3"]["enhancing tumour"] is None
    assert all(value is None for value in report.dice["P4"].values())
    assert report.mean_dice["all labels"] is not None
    assert report.mean_dice["all labels"] > 0.6
    assert report.log_loss_nats["after"] <= report.log_loss_nats["before"]
    assert sum(report.importances.values()) == pytest.approx(1)


def test_a_patient_is_judged_by_trees_that_never_saw_it(
    cases: list[TrainingCase], cache: Path, settings: EnsembleSettings
) -> None:
    """Other labels in one patient change the model, but not what it says of that patient."""

    def swapped() -> Labelled:
        found = cases[0].read()
        return Labelled(found.scene, np.where(found.labels > 0, 0, 2).astype(np.uint8))

    wrong = [TrainingCase("P0", swapped), *cases[1:]]
    stores = FeatureStore(cases, cache), FeatureStore(wrong, cache)
    first, second = (train_ensemble(store, 4, 0, settings) for store in stores)
    assert first.folds == second.folds
    table = stores[0].features("P0")
    fold = first.fold_of("P0")
    assert np.array_equal(first.predict(table, fold), second.predict(table, fold))
    assert not np.array_equal(first.predict(table), second.predict(table))


def test_leave_one_out_is_nested(cases: list[TrainingCase], cache: Path) -> None:
    [found] = held_out_probabilities(cases, 4, cache=cache, settings=SETTINGS, tests=["P1"])
    assert found.test == "P1"
    assert set(found.tuning) == {"P0", "P2", "P3", "P4"}
    labels = cases[1].read().labels
    assert found.probabilities.shape == (labels.size, 4)
    assert np.allclose(found.probabilities.sum(axis=1), 1, atol=1e-5)


def test_forests_without_two_patients_serve_both(cases: list[TrainingCase], cache: Path) -> None:
    def swapped() -> Labelled:
        found = cases[0].read()
        return Labelled(found.scene, np.where(found.labels > 0, 0, 2).astype(np.uint8))

    wrong = [TrainingCase("P0", swapped), *cases[1:]]
    stores = FeatureStore(cases, cache), FeatureStore(wrong, cache)
    one, other = (SharedForests(show_voxels(store, 4, 0, SETTINGS)) for store in stores)
    table = stores[0].features("P0")
    # Nothing that speaks of P0 was shown its labels: not for P0 left out, not for P1.
    assert np.array_equal(one.ensemble("P0").predict(table), other.ensemble("P0").predict(table))
    left, right = one.ensemble("P1"), other.ensemble("P1")
    fold = left.fold_of("P0")
    assert np.array_equal(left.predict(table, fold), right.predict(table, fold))
    assert not np.array_equal(left.predict(table), right.predict(table))
    assert left.folds == (("P0",), ("P2",), ("P3",), ("P4",))
    assert len(one.grown) == 4 + 3  # the pair of both was grown once


def test_leaving_one_out_shares_forests_where_folds_are_single(
    cases: list[TrainingCase], cache: Path
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
    cases: list[TrainingCase], cache: Path
) -> None:
    with pytest.raises(ValueError, match="at least 4 cases to leave one out, got 3"):
        next(held_out_probabilities(cases[:3], 4, cache=cache, settings=SETTINGS))
