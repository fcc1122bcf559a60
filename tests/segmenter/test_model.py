"""Forests, folds, the model file, and what of it is refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier

from helpers.tiny_cohort import AFFINE, SEQUENCES, make_patient, write_cohort
from perturb_mpm.files import (
    SCHEMES,
    ImageSet,
    InputError,
    Source,
    find_labelled_cases,
    geometry_from_affine,
)
from perturb_mpm.segmenter.model import SegmenterModel, case_from_model, require_scheme
from perturb_mpm.segmenter.preprocessing import prepare
from perturb_mpm.segmenter.scene import Scene
from perturb_mpm.segmenter.training import (
    EnsembleSettings,
    FeatureStore,
    ReadScene,
    TrainingReport,
    deal_folds,
    train_ensemble,
    train_segmenter,
    training_cases,
)
from perturb_mpm.segmenter.trees import Boosting, RandomForest, Trees
from perturb_mpm.storage import read_arrays, write_arrays

SCHEME = SCHEMES["brats2021"]
SETTINGS = EnsembleSettings(
    folds=3,
    label_voxels=60,
    background_voxels=200,
    trees=Boosting(rounds=12, rate=0.3, least_leaf=5),
)


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ReadScene]:
    root = write_cohort(tmp_path_factory.mktemp("cohort"))
    return training_cases(find_labelled_cases(root, "brats"), SEQUENCES, SCHEME)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("features")


@pytest.fixture(scope="module")
def trained(cases: dict[str, ReadScene], cache: Path) -> tuple[SegmenterModel, TrainingReport]:
    return train_segmenter(cases, SEQUENCES, SCHEME, seed=3, settings=SETTINGS, cache=cache)


@pytest.fixture(scope="module")
def saved(
    trained: tuple[SegmenterModel, TrainingReport], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.npz"
    trained[0].save(path)
    return path


def relabelled(read: ReadScene, change: Callable[[np.ndarray], np.ndarray]) -> ReadScene:
    """Return how to read a case with other labels."""

    def changed() -> Scene:
        scene = read()
        assert scene.truth is not None
        return replace(scene, truth=change(scene.truth))

    return changed


def swapped(labels: np.ndarray) -> np.ndarray:
    return np.where(labels > 0, 0, 2).astype(np.uint8)


def images_of(seed: int, drop: tuple[str, ...] = ()) -> tuple[ImageSet, np.ndarray]:
    images, labels = make_patient(seed)
    kept = {name: image.astype(np.float32) for name, image in images.items() if name not in drop}
    mask = images["t1"] != 0
    geometry = geometry_from_affine(mask.shape, AFFINE)
    return ImageSet(kept, mask, "given", geometry, {}), labels


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
    with pytest.raises(ValueError, match="rounds must be at least 1"):
        Boosting(rounds=0)
    with pytest.raises(ValueError, match=r"share must be at most 1, got 1.5"):
        Boosting(share=1.5)
    with pytest.raises(ValueError, match="smoothing must be positive"):
        RandomForest(smoothing=0)
    with pytest.raises(ValueError, match="folds must be at least 3"):
        EnsembleSettings(folds=2)
    with pytest.raises(ValueError, match="at least 3 cases"):
        deal_folds(["a", "b"], 5, 0)


def test_cases_of_one_label_are_refused(cases: dict[str, ReadScene], cache: Path) -> None:
    blank = {name: relabelled(read, np.zeros_like) for name, read in cases.items()}
    store = FeatureStore({**blank, "P0": cases["P0"]}, cache)
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
    case = case_from_model(saved, images)
    probabilities = case.probabilities
    assert case.labels == SCHEME
    assert probabilities.shape == (4, *labels.shape)
    assert np.allclose(probabilities.sum(axis=0), 1, atol=1e-5)
    assert (probabilities[0][~images.mask] == 1).all()
    found, truth = probabilities.argmax(axis=0) > 0, labels > 0
    assert 2 * (found & truth).sum() / (found.sum() + truth.sum()) > 0.7


def test_names_of_sequences_and_orientation_do_not_matter(saved: Path) -> None:
    images, _ = images_of(17)
    wanted = case_from_model(saved, images).probabilities
    flipped = AFFINE.copy()
    flipped[:, 0] *= -1
    other = ImageSet(
        {("t1ce" if n == "t1c" else n): i[::-1] for n, i in reversed(images.images.items())},
        images.mask[::-1],
        "given",
        geometry_from_affine(images.mask.shape, flipped),
        {},
    )
    found = case_from_model(saved, other).probabilities
    assert np.array_equal(found[:, ::-1], wanted)


def test_a_missing_sequence_is_refused(saved: Path) -> None:
    images, _ = images_of(17, drop=("t1c",))
    with pytest.raises(InputError, match=r"t1, t1c, t2, flair are needed, t1c is missing; got t1"):
        case_from_model(saved, images)


def test_another_label_scheme_is_refused(trained: tuple[SegmenterModel, TrainingReport]) -> None:
    source = Source("model", Path("model.npz"))
    require_scheme(trained[0], SCHEME, source)
    with pytest.raises(InputError, match=r"label values 0, 1, 2, 3, got 0, 1, 2, 4"):
        require_scheme(trained[0], SCHEMES["brats2023"], source)


def test_the_same_seed_gives_the_same_bytes(
    cases: dict[str, ReadScene], saved: Path, cache: Path, tmp_path: Path
) -> None:
    again, _ = train_segmenter(cases, SEQUENCES, SCHEME, seed=3, settings=SETTINGS, threads=1)
    again.save(tmp_path / "again.npz")
    assert (tmp_path / "again.npz").read_bytes() == saved.read_bytes()
    other, _ = train_segmenter(cases, SEQUENCES, SCHEME, seed=4, settings=SETTINGS, cache=cache)
    other.save(tmp_path / "other.npz")
    assert (tmp_path / "other.npz").read_bytes() != saved.read_bytes()


def test_a_model_is_read_as_it_was_written(
    trained: tuple[SegmenterModel, TrainingReport], saved: Path, tmp_path: Path
) -> None:
    loaded = SegmenterModel.load(saved)
    assert loaded.calibration == trained[0].calibration
    assert loaded.ensemble.folds == trained[0].ensemble.folds
    images, affine = images_of(21)[0], AFFINE
    prepared = prepare({n: images.images[n] for n in SEQUENCES}, affine, images.mask)
    assert np.array_equal(loaded.probabilities(prepared), trained[0].probabilities(prepared))
    loaded.save(tmp_path / "again.npz")
    assert (tmp_path / "again.npz").read_bytes() == saved.read_bytes()


@pytest.mark.parametrize("shown", [(0, 1), (0, 2, 3)])
def test_a_forest_says_what_scikit_learn_says(shown: tuple[int, ...]) -> None:
    rng = np.random.default_rng(5)
    features = rng.normal(size=(700, 6)).astype(np.float32)
    product = np.digitize(features[:, 0] * features[:, 1], [0.0, 0.5])
    labels = np.array(shown)[product % len(shown)]
    grown = RandomForest(trees=7, least_leaf=4, smoothing=1e-9).grow(features, labels, seed=4)
    grown.check(6, 4)
    theirs = RandomForestClassifier(7, min_samples_leaf=4, max_features="sqrt", random_state=4).fit(
        features, labels
    )
    fresh = rng.normal(size=(500, 6)).astype(np.float32)
    found = grown.predict(fresh, 4)
    assert np.allclose(found[:, list(shown)], theirs.predict_proba(fresh), atol=1e-6)
    assert not found[:, [label for label in range(4) if label not in shown]].any()
    assert np.allclose(grown.importances, theirs.feature_importances_)
    assert grown.count == 7


def test_leaves_of_a_forest_are_smoothed_by_laplaces_rule() -> None:
    features = np.array([[0.0], [0.0], [0.0], [1.0], [1.0]], dtype=np.float32)
    labels = np.array([0, 0, 0, 1, 0])
    theirs = RandomForestClassifier(1, max_features="sqrt", random_state=0).fit(features, labels)
    tree = theirs.estimators_[0].tree_
    leaf = tree.children_left < 0
    voxels, shares = tree.weighted_n_node_samples[leaf, np.newaxis], tree.value[leaf, 0]
    grown = RandomForest(trees=1, least_leaf=1, smoothing=0.5).grow(features, labels, 0)
    assert np.allclose(grown.value, (voxels * shares + 0.5) / (voxels + 2 * 0.5))
    found = grown.predict(np.float32([[0.0]]), 3)
    assert found[0, 0] > found[0, 1] > 0
    assert found[0, 2] == 0  # never shown


def test_a_forest_makes_a_model_file_that_needs_no_scikit_learn(
    cases: dict[str, ReadScene], cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(SETTINGS, trees=RandomForest(trees=4, least_leaf=3))
    model, report = train_segmenter(
        cases, SEQUENCES, SCHEME, seed=3, settings=settings, cache=cache
    )
    assert [forest.count for forest in model.ensemble.forests] == [4, 4, 4]
    assert report.mean_dice["all labels"] is not None
    assert report.mean_dice["all labels"] > 0.6
    assert sum(report.importances.values()) == pytest.approx(1)
    model.save(tmp_path / "forest.npz")
    monkeypatch.setitem(sys.modules, "sklearn", None)
    loaded = SegmenterModel.load(tmp_path / "forest.npz")
    images = images_of(21)[0]
    prepared = prepare({n: images.images[n] for n in SEQUENCES}, AFFINE, images.mask)
    assert np.array_equal(loaded.probabilities(prepared), model.probabilities(prepared))
    loaded.save(tmp_path / "again.npz")
    assert (tmp_path / "again.npz").read_bytes() == (tmp_path / "forest.npz").read_bytes()
    first = loaded.ensemble.forests[0]
    wrong = replace(first, value=first.value * np.float32(1.1))
    with pytest.raises(ValueError, match="shares add up to 1"):
        wrong.check(len(first.importances), 4)


def metadata_of(path: Path) -> dict[str, Any]:
    metadata: dict[str, Any] = json.loads(read_arrays(path)["model.json"].tobytes())
    return metadata


def write_changed(saved: Path, path: Path, **metadata: object) -> Path:
    """Write a model again with other metadata."""
    text = json.dumps({**metadata_of(saved), **metadata}).encode()
    write_arrays(path, {**read_arrays(saved), "model.json": np.frombuffer(text, np.uint8)})
    return path


def test_files_that_are_no_models_are_refused(tmp_path: Path, saved: Path) -> None:
    path = tmp_path / "model.npz"
    for content in (b"nothing of the kind", b"", saved.read_bytes()[:-1000]):
        path.write_bytes(content)
        with pytest.raises(InputError, match="it is not, or damaged"):
            SegmenterModel.load(path)
    write_arrays(path, {"volumes": np.zeros(3)})
    with pytest.raises(InputError, match=r"it lacks 'model\.json'"):
        SegmenterModel.load(path)
    with pytest.raises(InputError, match="got something else"):
        SegmenterModel.load(write_changed(saved, path, format="something else"))
    with pytest.raises(InputError, match=r"`model` .*: there is no such file"):
        SegmenterModel.load(tmp_path / "nowhere.npz")


def test_pickled_members_are_not_opened(tmp_path: Path, saved: Path) -> None:
    arrays: dict[str, Any] = {**read_arrays(saved), "0.left": np.array([{}], dtype=object)}
    np.savez(tmp_path / "model.npz", **arrays)
    with pytest.raises(InputError, match="must hold numbers or text, got object"):
        SegmenterModel.load(tmp_path / "model.npz")


def test_a_file_that_unpacks_to_too_much_is_not_unpacked(
    tmp_path: Path, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perturb_mpm.segmenter.model._MOST_BYTES", 1000)
    with pytest.raises(InputError, match="more than the 1e-06 GB that it may take"):
        SegmenterModel.load(saved)


def test_a_byte_that_was_changed_never_ends_in_a_crash(tmp_path: Path, saved: Path) -> None:
    """Without their checksums: damage that a zip file notices is found by the zip file."""
    rng = np.random.default_rng(1)
    arrays = read_arrays(saved)
    names = [name for name in arrays if name.startswith("1.")] + ["model.json"]
    features = rng.normal(size=(40, len(metadata_of(saved)["features"]))).astype(np.float16)
    path = tmp_path / "model.npz"
    loaded = 0
    for number in range(80):
        name = names[number % len(names)]
        changed = arrays[name].copy()
        raw = changed.reshape(-1).view(np.uint8)
        raw[rng.integers(raw.size)] ^= np.uint8(1 << rng.integers(8))
        write_arrays(path, {**arrays, name: changed})
        try:
            model = SegmenterModel.load(path)
        except InputError:
            continue
        loaded += 1
        assert np.isfinite(model.ensemble.predict(features)).all()
    assert 0 < loaded < 80


def test_a_damaged_zip_file_raises_nothing_but_input_errors(tmp_path: Path, saved: Path) -> None:
    rng = np.random.default_rng(2)
    whole = saved.read_bytes()
    path = tmp_path / "model.npz"
    refused = 0
    for _ in range(60):
        content = bytearray(whole)
        content[rng.integers(len(content))] ^= 1 << int(rng.integers(8))
        path.write_bytes(content)
        try:
            SegmenterModel.load(path)
        except InputError:
            refused += 1
    assert refused > 30  # a bit of the padding, or of a date, is no damage


def test_a_model_of_other_features_is_refused(saved: Path, tmp_path: Path) -> None:
    features = [*metadata_of(saved)["features"], "one_more"]
    path = write_changed(saved, tmp_path / "other.npz", features=features)
    with pytest.raises(InputError, match="features that this version computes"):
        SegmenterModel.load(path)


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"sequences": "t1"}, "sequences must be a list, got str"),
        ({"sequences": [1]}, "sequences must all be text"),
        ({"sequences": ["t1"] * 99}, "sequences must be 1 to 32, got 99"),
        ({"label_values": [0, 1, 2, "4"]}, "label values must be whole numbers, got '4'"),
        ({"label_values": [0, 1, 2, 2]}, "label values must be different"),
        ({"calibration": {"ratio": [1.0] * 4, "exponent": -1.0}}, "exponent must be"),
        ({"calibration": {"ratio": [1.0] * 3}}, "labels, ratios and shares must be as many"),
        ({"calibration": {"ratio": [1.0] * 4, "power": 1}}, "unexpected keyword argument"),
        ({"shown": [10**400] * 4}, "too large to convert to float"),
        ({"folds": []}, "folds must be 1 to 1000, got 0"),
        ({"folds": [["P0"]] * 4}, "lacks '3.labels'"),
    ],
)
def test_wrong_metadata_are_refused(
    saved: Path, tmp_path: Path, metadata: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        SegmenterModel.load(write_changed(saved, tmp_path / "model.npz", **metadata))


def grown_trees() -> Trees:
    features = np.random.default_rng(0).normal(size=(300, 3)).astype(np.float32)
    labels = np.digitize(features[:, 0] + features[:, 1], [-0.5, 0.5])
    return Boosting(rounds=3, leaves=6, least_leaf=5).grow(features, labels, 0)


def test_depths_are_those_of_the_deepest_leaves() -> None:
    grown = grown_trees()

    def depth(node: int) -> int:
        left = int(grown.left[node])
        return 0 if left == node else 1 + max(depth(left), depth(left + 1))

    assert grown.depths.tolist() == [depth(int(root)) for root in grown.roots]


@pytest.mark.parametrize(
    ("name", "place", "value", "words"),
    [
        ("left", 0, 10**6, "children inside their tree"),
        ("left", 0, 2, "every node reached in one way"),
        ("left", 1, 0, "children after their parent"),  # a circle: the walk would never end
        ("feature", 0, 3, "features of their own model"),
        ("roots", 0, 1, "roots among the nodes"),
        ("roots", 1, 10**6, "roots among the nodes"),
        ("roots", 1, 0, "roots in order"),
        ("owners", 0, 3, "trees of their own labels"),
        ("labels", 2, 3, "labels of their own model"),
        ("labels", 0, -1, "labels of their own model"),
        ("labels", 1, 0, "labels in order"),
        ("threshold", 0, -np.inf, "finite thresholds"),
        ("threshold", 0, np.nan, "finite thresholds"),
        ("threshold", -1, -np.inf, "leaves without a threshold"),  # its voxels would go on
        ("threshold", -1, 0.0, "leaves without a threshold"),
        ("value", -1, np.inf, "finite values"),
        ("start", 0, np.nan, "finite values"),
        ("start", 0, 1e300, "finite values"),  # sums of these would overflow
        ("importances", 0, np.nan, "finite values"),
    ],
)
def test_trees_that_cannot_be_walked_are_refused(
    name: str, place: int, value: float, words: str
) -> None:
    grown = grown_trees()
    grown.check(3, 3)
    array = getattr(grown, name).copy()
    array[place] = value
    with pytest.raises(ValueError, match=words):
        replace(grown, **{name: array}).check(3, 3)


def test_trees_of_other_kinds_of_numbers_or_other_sizes_are_refused() -> None:
    grown = grown_trees()
    with pytest.raises(ValueError, match="importances of 4 numbers"):
        grown.check(4, 3)
    with pytest.raises(ValueError, match="labels of their own model"):
        grown.check(3, 2)
    with pytest.raises(ValueError, match="left as <u4"):
        replace(grown, left=grown.left.astype(np.int64)).check(3, 3)
    with pytest.raises(ValueError, match="value of"):
        replace(grown, value=grown.value[1:]).check(3, 3)
    with pytest.raises(ValueError, match="as many roots as can grow"):
        replace(grown, roots=grown.roots[:0], owners=grown.owners[:0]).check(3, 3)


def test_a_chain_of_nodes_is_too_deep() -> None:
    """Trees of this program have at most 256 leaves; a chain would keep the walk busy for long."""
    steps = 300
    nodes = 2 * steps + 1
    left = np.arange(nodes)
    left[0::2] += 1  # an inner node's children come next: a leaf, and the next inner node
    left[-1] = nodes - 1
    inner = left != np.arange(nodes)
    chain = replace(
        grown_trees(),
        roots=np.zeros(1, np.uint32),
        owners=np.zeros(1, np.uint32),
        feature=np.zeros(nodes, np.uint32),
        threshold=np.where(inner, 0, np.inf).astype(np.float32),
        left=left.astype(np.uint32),
        value=np.zeros((steps + 1, 1)),
    )
    with pytest.raises(ValueError, match="fewer than 256 steps"):
        chain.check(3, 3)


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
    cases: dict[str, ReadScene], cache: Path
) -> None:
    """Other labels in one patient change the model, but not what it says of that patient."""
    wrong = {**cases, "P0": relabelled(cases["P0"], swapped)}
    stores = FeatureStore(cases, cache), FeatureStore(wrong, cache)
    first, second = (train_ensemble(store, 4, 0, SETTINGS) for store in stores)
    assert first.folds == second.folds
    table = stores[0].features("P0")
    fold = first.find_fold("P0")
    assert np.array_equal(first.predict(table, fold), second.predict(table, fold))
    assert not np.array_equal(first.predict(table), second.predict(table))


def test_an_interrupted_cache_leaves_nothing_behind(
    cases: dict[str, ReadScene], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a table under its name would be taken for a whole one the next time."""

    def interrupted(file: Any, table: np.ndarray, **options: object) -> None:
        file.write(table.tobytes()[:100])
        raise KeyboardInterrupt

    store = FeatureStore(cases, tmp_path)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(np, "save", interrupted)
        store.features("P0")
    assert list(tmp_path.iterdir()) == []
    assert np.array_equal(store.features("P0"), FeatureStore(cases).features("P0"))
