"""``perturb-mpm tune``: settings in, better settings out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from perturb_mpm.cli import main
from perturb_mpm.files import Case, InputError, LabelScheme, geometry_from_affine, save_nifti
from perturb_mpm.learning.learner import learn
from perturb_mpm.learning.objectives import OBJECTIVES
from perturb_mpm.learning.parameters import KernelChange, Parameters
from perturb_mpm.run.model import build_crf
from perturb_mpm.run.settings import KernelSettings, RunSettings, read_settings
from perturb_mpm.segmenter import Calibration, Ensemble, SegmenterModel, find_cases
from perturb_mpm.tune import tuning
from perturb_mpm.tune.cases import cases_of_model
from perturb_mpm.tune.tuning import WORDS, deal, tuned_settings, write_convergence

START = RunSettings.of_paper().changed(
    temperature=1.5,
    bias=(0.0, 0.4, -0.2),
    kernels=(
        KernelSettings("spatial", sigma_space=(3.0, 3.0, 4.0), weight=0.8),
        KernelSettings("spatial", sigma_space=9.0, weight=0.0),
        KernelSettings("bilateral", sigma_space=8.0, sigma_intensity_sd=0.7, weight=1.1),
    ),
    iterations=4,
)


def made_up(seed: int) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.uint8]]:
    """Two images, probabilities (3, 8, 8, 8) that see too little foreground, and the truth."""
    rng = np.random.default_rng(seed)
    centre = 3.5 + rng.uniform(-0.5, 0.5, size=(3, 1, 1, 1))
    radius = np.sqrt(((np.indices((8, 8, 8)) - centre) ** 2).sum(axis=0))
    truth = np.where(radius < 1.8, 2, np.where(radius < 3.2, 1, 0)).astype(np.uint8)
    images = np.stack([truth + rng.normal(0, s, truth.shape) for s in (0.5, 0.8)]) + 5.0
    logits = 2.0 * (truth == np.arange(3)[:, None, None, None]) + rng.normal(0, 1, (3, 8, 8, 8))
    logits[0] += 1.5
    shares = np.exp(logits)
    shares /= shares.sum(axis=0)
    return images.astype(np.float32), shares.astype(np.float32), truth


def case_of(seed: int) -> tuple[Case, NDArray[np.uint8]]:
    images, shares, truth = made_up(seed)
    case = Case(
        images={"a": images[0], "b": images[1]},
        probabilities=shares,
        mask=np.ones(truth.shape, dtype=bool),
        mask_origin="given",
        labels=LabelScheme((0, 1, 2), ("background", "rim", "core")),
        geometry=geometry_from_affine(truth.shape, np.diag([2.0, 2.0, 2.0, 1.0])),
        hashes={},
    )
    return case, truth


def test_tuned_settings_make_the_crf_that_was_learned() -> None:
    case, truth = case_of(0)
    crf = build_crf(case, START)
    learned = learn([crf], [truth], iterations=4, steps=4, engine="reference")
    assert any(change.compatibility_change.any() for change in learned.parameters.kernels)
    wanted, made = learned.apply(crf), build_crf(case, tuned_settings(START, learned.parameters))
    difference = made.energies - wanted.energies
    np.testing.assert_allclose(difference - difference[0], 0.0, atol=2e-4)
    assert len(made.terms) == len(wanted.terms) == 2
    for ours, theirs in zip(made.terms, wanted.terms):
        np.testing.assert_allclose(ours.compatibility, theirs.compatibility, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(ours.features(), theirs.features(), rtol=1e-4)


def test_what_was_not_learned_stays() -> None:
    nothing = KernelChange(1.0, np.zeros((3, 3)), {"space": 1.0})
    both = replace(nothing, bandwidth_factors={"space": 1.0, "intensity": 1.0})
    same = tuned_settings(START, Parameters(1.0, np.zeros(3), (nothing, both)))
    assert same == START


def write_cases(folder: Path, count: int) -> Path:
    """A table of cases with their probabilities beside them."""
    affine = np.diag([2.0, 2.0, 2.0, 1.0])
    (folder / "probabilities").mkdir()
    lines = ["case,labels,t1,t2"]
    for number in range(count):
        images, shares, truth = made_up(number)
        name = f"p{number}"
        for sequence, image in zip(("t1", "t2"), images):
            save_nifti(folder / f"{name}_{sequence}.nii.gz", image, affine)
        save_nifti(folder / f"{name}_seg.nii.gz", truth, affine)
        save_nifti(folder / "probabilities" / f"{name}.nii.gz", np.moveaxis(shares, 0, -1), affine)
        lines.append(f"{name},{name}_seg.nii.gz,{name}_t1.nii.gz,{name}_t2.nii.gz")
    table = folder / "cases.csv"
    table.write_text("\n".join(lines) + "\n")
    return table


def call(arguments: list[str]) -> object:
    with pytest.raises(SystemExit) as ending:
        main(arguments)
    return ending.value.code


def arguments(folder: Path, table: Path, *more: str) -> list[str]:
    return [
        *("tune", "--data", str(table), "--layout", "table"),
        *("--labels", "0:background", "1:rim", "2:core"),
        *("--probabilities", str(folder / "probabilities"), "--output", str(folder / "out")),
        *more,
    ]


def test_the_command_tunes_and_writes_what_run_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = write_cases(tmp_path, 3)
    options = ["--phases", "unary", "weights", "--iterations", "3", "--steps", "8"]
    options += ["--folds", "3", "--fields", "4", "--json", "--quiet"]
    assert call(arguments(tmp_path, table, *options)) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["objective_after"] > found["objective_before"]
    assert sorted(name for fold in found["folds"] for name in fold) == ["p0", "p1", "p2"]
    foreground = found["labels"][1:]
    assert all(each["tuned_iou"] > each["untuned_iou"] for each in foreground)
    settings = read_settings(tmp_path / "out" / "settings.toml")
    assert settings.sampling.iterations == 3
    assert settings.bias is not None
    assert settings.bias[1] > 0  # the probabilities saw too little foreground
    text = (tmp_path / "out" / "settings.toml").read_text()
    assert text.startswith("# Tuned by perturb-mpm on 3 cases: objective iou")
    assert (tmp_path / "out" / "convergence.png").read_bytes().startswith(b"\x89PNG")


def test_the_table_shows_both_ious(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = write_cases(tmp_path, 2)
    options = ["--phases", "unary", "--iterations", "1", "--steps", "2", "--folds", "2"]
    assert call(arguments(tmp_path, table, *options)) == 0
    shown = capsys.readouterr()
    assert "IoU of cases that were left out" in shown.out
    assert "untuned" in shown.out
    assert "cross-validating, fold 2 of 2" in shown.err
    assert "reading the cases: 2 of 2" in shown.err


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--folds", "4"], "--folds must be at most the number of cases, 2, got 4"),
        (["--folds", "1"], "--folds must be at least 2, got 1"),
        (["--steps", "0"], "--steps must be at least 1, got 0"),
        (["--strength", "-1"], "--strength must be at least 0, got -1"),
        (["--crop-mm", "-1"], "--crop-mm must be at least 0, got -1"),
        (["--fields", "1"], "--fields must be at least 2, got 1"),
        (["--fields", "5000000000"], "--fields must be at most 10000000, got 5000000000"),
        (["--iterations", "1000000000"], "--iterations must be at most 100000, got 1000000000"),
        (["--threads", "0"], "--threads must be at least 1, got 0"),
        (["--model", "m.npz"], "either --probabilities or --model"),
        (["--settings", "nothing.toml"], "--settings nothing.toml cannot be read"),
    ],
)
def test_bad_options_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], words: str
) -> None:
    table = write_cases(tmp_path, 2)
    assert call(arguments(tmp_path, table, *more)) == 2
    assert words in capsys.readouterr().err


def test_a_missing_file_of_probabilities_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = write_cases(tmp_path, 2)
    (tmp_path / "probabilities" / "p1.nii.gz").unlink()
    assert call(arguments(tmp_path, table, "--folds", "2")) == 2
    assert "--probabilities must hold p1.nii.gz" in capsys.readouterr().err


class Sure:
    """Trees that say the same label of every voxel."""

    count = 1
    importances = np.ones(1)

    def __init__(self, label: int) -> None:
        self.label = label

    def predict(self, features: NDArray[np.float32], n_labels: int) -> NDArray[np.float32]:
        return np.eye(n_labels, dtype=np.float32)[np.full(len(features), self.label)]


def test_a_model_answers_its_own_cases_by_trees_that_never_saw_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = LabelScheme((0, 1, 2), ("background", "rim", "core"))
    ensemble = Ensemble(3, (("p0",), ("q",)), (Sure(1), Sure(2)), (0.3, 0.3, 0.4))
    model = SegmenterModel(("t1", "t2"), labels, ensemble, Calibration((1.0, 1.0, 1.0)))
    monkeypatch.setattr(SegmenterModel, "load", staticmethod(lambda _path: model))
    files = find_cases(write_cases(tmp_path, 2), "table")
    found = cases_of_model(files, tmp_path / "model.npz", labels)
    assert list(found) == ["p0", "p1"]
    assert (found["p0"].probabilities[1] > 0.99).all()  # of the trees without fold 0
    assert (abs(found["p1"].probabilities[1:] - 0.5) < 0.01).all()  # a case it does not know
    assert found["p1"].truth is not None
    np.testing.assert_array_equal(found["p1"].truth, made_up(1)[2])
    other = LabelScheme((0, 1, 4), ("background", "rim", "core"))
    with pytest.raises(InputError, match="must be trained on the label values 0, 1, 4"):
        cases_of_model(files, tmp_path / "model.npz", other)


def test_tuning_follows_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engine, accuracy, iterations and the law of sampling are the file's, at every step."""
    heard: dict[str, list[Any]] = {"mean field": [], "filters": [], "fields": []}

    def noted(name: str, function: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            heard[name].append((args, options))
            return function(*args, **options)

        return call

    monkeypatch.setattr(tuning, "mean_field", noted("mean field", tuning.mean_field))
    monkeypatch.setattr(tuning, "filter_maker", noted("filters", tuning.filter_maker))
    monkeypatch.setattr(tuning, "learn_fields", noted("fields", tuning.learn_fields))
    (tmp_path / "start.toml").write_text(
        '[sampling]\niterations = 2\nseed = 9\nestimator = "conditional"\nnoise_scale = 0.25\n'
        '[compute]\nengine = "cpu"\naccuracy = "plain"\nthreads = 2\n'
        '[[kernels]]\nkind = "spatial"\nsigma_space = 3.0\n'
    )
    table = write_cases(tmp_path, 2)
    options = ["--settings", str(tmp_path / "start.toml"), "--phases", "unary", "--steps", "1"]
    options += ["--folds", "2", "--fields", "2", "--threads", "1", "--quiet"]
    assert call(arguments(tmp_path, table, *options)) == 0
    assert len(heard["mean field"]) == 4
    for args, options_heard in heard["mean field"]:
        assert args[1] == 2
        assert options_heard["engine"] == "cpu"
        assert options_heard["accuracy"] == "plain"
    [(args, _)] = heard["filters"]
    assert args[1:] == ("cpu", "plain", 1)
    [(_, options_heard)] = heard["fields"]
    sampling, compute = options_heard["sampling"], options_heard["compute"]
    assert (sampling.samples, sampling.iterations, sampling.seed) == (2, 2, 9)
    assert (sampling.estimator, sampling.scale) == ("conditional", 0.25)
    assert (compute.engine, compute.accuracy, compute.threads) == ("cpu", "plain", 1)
    written = read_settings(tmp_path / "out" / "settings.toml")
    assert written.sampling.iterations == 2
    assert written.compute.threads == 2  # the file's: this machine's are no part of what is learned


def test_settings_that_cannot_be_learned_with_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = write_cases(tmp_path, 2)
    settings = tmp_path / "start.toml"
    for text, words in (
        ('[compute]\naccuracy = "exact"\n', '--settings: accuracy "exact" cannot be learned with'),
        ("[sampling]\niterations = 0\n", "--iterations must be at least 1"),
    ):
        settings.write_text(text)
        assert call(arguments(tmp_path, table, "--folds", "2", "--settings", str(settings))) == 2
        assert words in capsys.readouterr().err


def test_folds_are_dealt_in_turn() -> None:
    assert deal(5, 2) == [[0, 2, 4], [1, 3]]
    with pytest.raises(ValueError, match="`folds` must be at most the number of cases, 2, got 3"):
        deal(2, 3)


def test_the_picture_can_be_svg(tmp_path: Path) -> None:
    case, truth = case_of(1)
    crf = build_crf(case, START)
    found = learn([crf], [truth], iterations=1, steps=2, phases=["unary"], engine="reference")
    write_convergence(tmp_path / "course.svg", found.trace, found.objective)
    assert b"<svg" in (tmp_path / "course.svg").read_bytes()


def test_the_picture_has_words_for_every_objective() -> None:
    assert list(WORDS) == list(OBJECTIVES)
