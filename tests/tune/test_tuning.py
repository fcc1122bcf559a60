"""``perturb-mpm tune``: labelled cases in, settings and what they are worth out."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from perturb_mpm.cli import main
from perturb_mpm.engines.cpu import store
from perturb_mpm.files import (
    Case,
    InputError,
    LabelScheme,
    find_labelled_cases,
    geometry_from_affine,
    save_nifti,
)
from perturb_mpm.inference import ConvergenceWarning, mean_field
from perturb_mpm.posterior import Posterior
from perturb_mpm.progress import Silent
from perturb_mpm.run import RunSettings, build_crf, build_sampler, read_settings
from perturb_mpm.sampling import Sampler
from perturb_mpm.segmenter import Calibration, Ensemble, SegmenterModel
from perturb_mpm.tune import (
    METHODS,
    CaseScores,
    MapScore,
    Tuned,
    TuningOptions,
    maps_table,
    means,
    tune,
    tuning,
)
from perturb_mpm.tune.calibration import fitted, half, observe
from perturb_mpm.tune.cases import cases_of_model
from perturb_mpm.tune.problem import LabelledProblem
from perturb_mpm.tune.scores import Residuals, VolumePrediction, score_volume, widenings
from perturb_mpm.tune.tuning import (
    LENGTHS,
    Candidate,
    VolumeTable,
    _chosen,
    _spread_out,
    best_length,
    deal,
)

START = RunSettings()


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


def miscalibrated(seed: int, temperature: float, bias: float) -> Case:
    """A case whose true labels were drawn from softmax(log p / temperature + bias)."""
    rng = np.random.default_rng(seed)
    shape = (16, 16, 16)
    centre = 7.5 + rng.uniform(-1, 1, size=(3, 1, 1, 1))
    radius = np.sqrt(((np.indices(shape) - centre) ** 2).sum(axis=0))
    log_odds = 3.0 * (4.0 - radius)
    shares = 1 / (1 + np.exp(-log_odds))
    drawn = 1 / (1 + np.exp(-(log_odds / temperature + bias)))
    truth = (rng.uniform(size=shape) < drawn).astype(np.uint8)
    return Case(
        images={"a": rng.normal(size=shape).astype(np.float32)},
        probabilities=np.stack([1 - shares, shares]).astype(np.float32),
        mask=np.ones(shape, dtype=bool),
        mask_origin="given",
        labels=LabelScheme((0, 1), ("background", "ball")),
        geometry=geometry_from_affine(shape, np.diag([2.0, 2.0, 2.0, 1.0])),
        hashes={},
        truth=truth,
    )


def test_temperature_and_bias_are_found_that_made_the_labels() -> None:
    problems = [LabelledProblem(str(i), miscalibrated(i, 1.8, -0.4), START) for i in range(6)]
    found = fitted([observe(each, START, everywhere=True) for each in problems], START)
    assert found.unary.temperature == pytest.approx(1.8, rel=0.05)
    assert found.unary.bias is not None
    assert found.unary.bias[1] == pytest.approx(-0.4, abs=0.1)
    expected = sum(each.marginals(found.changed(strength=0.0))[1].sum() for each in problems)
    true = sum(each.truth.sum() for each in problems)
    assert expected == pytest.approx(true, rel=0.02)  # over all voxels
    root = math.sqrt(found.unary.temperature)
    assert half(found).unary.temperature == pytest.approx(root, rel=1e-3)
    near = [observe(each, START, everywhere=False) for each in problems]
    plain = fitted(near, START, with_bias=False)
    assert plain.unary.bias is None


def test_marginals_are_those_of_mean_field() -> None:
    case, truth = case_of(0)
    problem = LabelledProblem("p", replace(case, truth=truth), START)
    for centring in (0.0, 0.5):
        settings = START.changed(
            strength=0.5, centring=centring, temperature=1.4, bias=(0.0, 0.3, 0.1), iterations=4
        )
        with pytest.warns(ConvergenceWarning):
            wanted = mean_field(build_crf(case, settings), 4)
        ours = problem.grid.scatter(problem.marginals(settings), 0)
        np.testing.assert_allclose(ours, wanted.marginals, atol=2e-3)


def test_sampled_volumes_are_those_of_run() -> None:
    case, truth = case_of(1)
    problem = LabelledProblem("p", replace(case, truth=truth), START)
    for strength in (0.0, 0.35):
        settings = START.changed(strength=strength, iterations=3, temperature=1.3)
        ours = problem.sampled_ml(settings, [5.0, 2.0], 12, 4)
        for volumes, length in zip(ours, [5.0, 2.0], strict=True):
            drawn = settings.changed(samples=12, seed=4, noise_length=length)
            wanted = build_sampler(build_crf(case, drawn), drawn).draw().volumes / 1000
            np.testing.assert_array_equal(volumes, wanted)


def test_only_samples_that_are_missing_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[range] = []
    draw = Sampler.draw

    def watched(self: Sampler, samples: range) -> Posterior:
        asked.append(samples)
        return draw(self, samples)

    case = miscalibrated(0, 1.0, 0.0)
    settings = START.changed(strength=0.0)
    wanted = LabelledProblem("p", case, START).sampled_ml(settings, [2.0, 5.0], 12, 4)
    monkeypatch.setattr(Sampler, "draw", watched)
    problem = LabelledProblem("p", case, START)
    few = problem.sampled_ml(settings, [5.0], 8, 4)
    np.testing.assert_array_equal(problem.sampled_ml(settings, [2.0, 5.0], 12, 4), wanted)
    np.testing.assert_array_equal(problem.sampled_ml(settings, [5.0], 8, 4), few)
    np.testing.assert_array_equal(few[0], wanted[1, :8])
    assert asked == [range(8), range(12), range(8, 12)]
    # Another seed or temperature is another draw.
    assert not np.array_equal(problem.sampled_ml(settings, [5.0], 8, 5), few)
    problem.sampled_ml(settings.changed(temperature=2.0), [5.0], 8, 4)
    assert asked[3:] == [range(8), range(8)]


def test_parts_of_a_case_add_up_to_its_volumes() -> None:
    case = miscalibrated(0, 1.0, 0.0)
    problem = LabelledProblem("p", case, START)
    settings = START.changed(noise_length=5.0, strength=0.0, samples=8, iterations=0)
    where = np.arange(case.mask.size) % 3 == 0
    everywhere = np.ones(case.mask.size, dtype=bool)
    whole, one, other = (
        problem._sampler(settings, part).draw().volumes for part in (everywhere, where, ~where)
    )
    np.testing.assert_allclose(one + other, whole, rtol=1e-12)


def map_score(log_score: float, dice: float) -> MapScore:
    return MapScore({"ball": dice}, 0.0, log_score, 0.5)


def candidate(name: str, strength: float, scores: list[tuple[float, float]]) -> Candidate:
    settings = START.changed(strength=strength)
    maps = {i: map_score(*each) for i, each in enumerate(scores)}
    return Candidate(name, (settings,), settings, maps, (dict.fromkeys(maps, 0.1),))


def test_what_is_taken_beats_the_others_on_cases_left_out() -> None:
    alone = candidate("alone", 0.0, [(0.5, 0.8)] * 4)
    tempered = candidate("T", 0.0, [(0.4, 0.8)] * 4)
    better = candidate("K", 0.35, [(0.30, 0.8), (0.31, 0.8), (0.29, 0.8), (0.30, 0.8)])
    costly = candidate("K", 0.35, [(0.30, 0.79)] * 4)
    cases = range(4)
    assert _chosen([alone, tempered, better], cases) is better
    assert _chosen([alone, tempered, costly], cases) is tempered  # labels would be worse
    hardly = candidate("K", 0.35, [(0.395, 0.8)] * 4)
    assert _chosen([alone, tempered, hardly], cases) is tempered  # a hundredth is not worth it
    assert _chosen([alone, candidate("T", 0.0, [(0.6, 0.8)] * 4)], cases) is alone
    wrong_volumes = replace(tempered, volumes=((0.2,) * 4,))  # maps gain a fifth, volumes lose half
    assert _chosen([alone, wrong_volumes], cases) is alone


def volume_score(crps: float) -> dict[str, VolumePrediction]:
    return {"ball": VolumePrediction(1.0, 2.0, 1.5, crps)}


def test_a_handful_of_cases_is_believed_half_way() -> None:
    shown = {"ball": (1,)}
    table = [[volume_score(0.1 + place)] * 20 for place in range(len(LENGTHS))]
    assert LENGTHS[best_length(table, range(20), shown)] == LENGTHS[0]
    assert LENGTHS[best_length(table, range(5), shown)] == LENGTHS[2]  # the assumed one is 1.0
    assert LENGTHS[best_length(table[::-1], range(5), shown)] == LENGTHS[5]


@pytest.mark.parametrize("steeper", [0.4, 3.0], ids=["too short is worse", "too long is worse"])
@pytest.mark.parametrize("best", range(len(LENGTHS)))
def test_the_search_for_a_length_finds_the_valley(
    best: int, steeper: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: set[float] = set()

    def loss(length: float) -> float:
        beyond = LENGTHS.index(length) - best
        return max(steeper * beyond, -beyond)

    def table(problems: list[None], own: object, lengths: list[float], *_: object) -> VolumeTable:
        tried.update(lengths)
        return [[volume_score(loss(length))] * len(problems) for length in lengths]

    monkeypatch.setattr(tuning, "_volume_table", table)
    assert tuning._searched([None] * 20, [], LENGTHS, 8, {"ball": (1,)}, Silent()) == best
    assert len(tried) <= 5


def test_lengths_are_tried_on_both_sides_of_the_best() -> None:
    assert tuning._around([1.0, 4.0, 9.0, 16.0], 1, with_ends=False) == [2.0, 4.0, 6.0]
    assert tuning._around([1.0, 4.0, 9.0, 16.0], 1, with_ends=True) == [1.0, 2.0, 4.0, 6.0, 9.0]
    assert tuning._around([1.0, 4.0, 9.0], 2, with_ends=False) == [6.0, 9.0]


def test_a_volume_is_scored_as_by_hand() -> None:
    found = score_volume(np.array([0.9, 1.9]), 0.9)
    # log 1 = 0 and log 2: E|X − y| = log 2 / 2, half of E|X − X'| is log 2 / 4.
    assert found.crps == pytest.approx(math.log(2) / 4)
    assert found.inside is False
    wide = found.widened(widenings([{"r": found}] * 19)["r"])
    assert wide.inside
    assert widenings([{"r": found}] * 18) == {}


def test_residuals_move_a_volume_by_what_others_missed() -> None:
    past = Residuals((0.0, math.log(2)))
    np.testing.assert_allclose(past.shifted(0.9), [0.9, 1.9])
    normal = past.normal(0.9)
    assert np.median(normal) == pytest.approx(math.sqrt(2) - 0.1, rel=0.01)


def test_what_was_wrong_is_learned_and_what_was_right_is_left_alone() -> None:
    wrong = {f"p{i}": miscalibrated(i, 2.0, 0.0) for i in range(5)}
    found = tune(wrong, START, TuningOptions(folds=5, samples=8))
    assert found.settings.unary.temperature == pytest.approx(math.sqrt(2), rel=0.1)  # half-way
    assert found.settings.basis.learned_cases == 5
    assert found.settings.intervals == "learned"
    assert found.settings.widening == {}  # too few for a promise of 95 %
    rows = means(found.scores, found.regions)
    assert rows["learned"]["log_score_nats"] < rows["probabilities alone"]["log_score_nats"]
    assert rows["with temperature"]["log_score_nats"] < rows["learned"]["log_score_nats"]
    right = {f"p{i}": miscalibrated(10 + i, 1.0, 0.0) for i in range(5)}
    kept = tune(right, START, TuningOptions(folds=5, samples=8))
    assert kept.settings.unary.temperature == pytest.approx(1.0, abs=0.1)
    again = tune(right, START, TuningOptions(folds=5, samples=8))
    assert again.settings == kept.settings


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
    options = ["--folds", "3", "--samples", "8", "--region", "all=1,2", "core=2"]
    assert call(arguments(tmp_path, table, *options, "--json", "--quiet")) == 0
    found = json.loads(capsys.readouterr().out)
    assert sorted(name for fold in found["folds"] for name in fold) == ["p0", "p1", "p2"]
    assert found["regions"] == ["all", "core"]
    assert set(found["methods"]) == {
        *("probabilities alone", "with temperature", "learned", "fixed width", "residuals")
    }
    settings = read_settings(tmp_path / "out" / "settings.toml")
    assert settings.basis.learned_cases == 3
    assert settings.basis.note == found["verdict"]
    assert dict(settings.regions) == {"all": (1, 2), "core": (2,)}
    assert settings.sampling.noise_length is not None
    with (tmp_path / "out" / "scores.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 3 * 5 * 2  # cases, methods, regions


def test_kernels_are_kept_while_it_works_and_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = write_cases(tmp_path, 3)
    out = tmp_path / "out"
    (out / ".kernels-old").mkdir(parents=True)  # of a command that was killed
    written: list[Path] = []
    monkeypatch.setattr(store, "WORTH_KEEPING", 10**9)
    command = arguments(tmp_path, table, "--folds", "3", "--samples", "8", "--quiet")
    assert call(command) == 0
    without = {path.name: path.read_bytes() for path in out.iterdir()}
    assert set(without) == {"scores.csv", "settings.toml"}
    write = store.write_arrays

    def noted(path: Path, arrays: Mapping[str, NDArray[Any]], **options: Any) -> None:
        write(path, arrays, **options)
        written.append(path)

    monkeypatch.setattr(store, "WORTH_KEEPING", 0)
    monkeypatch.setattr(store, "write_arrays", noted)
    assert call(command) == 0
    assert {path.name: path.read_bytes() for path in out.iterdir()} == without
    assert {path.parent.parent for path in written} == {out}
    mine = tmp_path / "mine.toml"
    mine.write_text(f"[compute]\nkernel_cache = {json.dumps(str(tmp_path / 'kept'))}\n")
    count = len(written)
    assert call([*command, "--settings", str(mine)]) == 0
    assert set(written[count:]) == set((tmp_path / "kept").iterdir())
    kept = read_settings(out / "settings.toml").compute.kernel_cache
    assert kept == str(tmp_path / "kept")


def test_a_heading_says_how_many_cases_have_the_region() -> None:
    scores = [
        CaseScores(case, method, MapScore({"all": 0.8, "core": core}, 0.1, 0.2, 0.9), None)
        for case, core in (("a", 0.5), ("b", math.nan))
        for method in METHODS
    ]
    header, rows = maps_table(Tuned(START, tuple(scores), ("all", "core"), ()))
    assert header[1:3] == ["Dice all", "Dice core, 1 of 2 cases"]
    assert rows[0][1:3] == ["0.8000", "0.5000"]


def test_the_table_shows_all_methods(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    table = write_cases(tmp_path, 3)
    assert call(arguments(tmp_path, table, "--folds", "3", "--samples", "8")) == 0
    shown = capsys.readouterr()
    for words in ("probabilities alone", "learned", "residuals", "Learned from 3 labelled cases"):
        assert words in shown.out
    assert "reading the cases: 3 of 3" in shown.err
    assert "sampling volumes of cases left out" in shown.err


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--folds", "4"], "--folds must be at most the number of cases, 3, got 4"),
        (["--folds", "1"], "--folds must be at least 2, got 1"),
        (["--samples", "1"], "--samples must be at least 8, got 1"),
        (["--threads", "0"], "--threads must be at least 1, got 0"),
        (["--region", "core=7"], "--region must be label values out of 0, 1, 2, got 7 for core"),
        (["--model", "m.npz"], "either --probabilities or --model"),
        (["--settings", "nothing.toml"], "--settings nothing.toml cannot be read"),
    ],
)
def test_bad_options_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], words: str
) -> None:
    table = write_cases(tmp_path, 3)
    folds = [] if "--folds" in more else ["--folds", "3"]
    assert call(arguments(tmp_path, table, *folds, *more)) == 2
    assert words in capsys.readouterr().err


def test_two_cases_are_too_few(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = write_cases(tmp_path, 2)
    assert call(arguments(tmp_path, table, "--folds", "2")) == 2
    assert "--data must hold at least 3 cases, got 2" in capsys.readouterr().err


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
    files = find_labelled_cases(write_cases(tmp_path, 2), "table")
    found = cases_of_model(files, tmp_path / "model.npz", labels)
    assert list(found) == ["p0", "p1"]
    assert (found["p0"].probabilities[1] > 0.99).all()  # of the trees without fold 0
    assert (abs(found["p1"].probabilities[1:] - 0.5) < 0.01).all()  # a case it does not know
    assert found["p1"].truth is not None
    np.testing.assert_array_equal(found["p1"].truth, made_up(1)[2])
    other = LabelScheme((0, 1, 4), ("background", "rim", "core"))
    with pytest.raises(InputError, match="must be trained on the label values 0, 1, 4"):
        cases_of_model(files, tmp_path / "model.npz", other)


def test_threads_of_the_machine_are_no_part_of_what_is_learned(tmp_path: Path) -> None:
    (tmp_path / "start.toml").write_text("[sampling]\niterations = 2\n[compute]\nthreads = 2\n")
    table = write_cases(tmp_path, 3)
    options = ["--settings", str(tmp_path / "start.toml"), "--threads", "1", "--folds", "3"]
    assert call(arguments(tmp_path, table, *options, "--samples", "8", "--quiet")) == 0
    written = read_settings(tmp_path / "out" / "settings.toml")
    assert written.sampling.iterations == 2
    assert written.compute.threads == 2


def test_folds_are_dealt_in_turn() -> None:
    assert deal(5, 2) == [[0, 2, 4], [1, 3]]
    with pytest.raises(ValueError, match="`folds` must be at most the number of cases, 2, got 3"):
        deal(2, 3)


def test_kernels_are_chosen_on_as_many_cases_of_each_fold() -> None:
    folds = deal(80, 5)
    some = _spread_out(folds, 30)
    assert len(some) == 30
    assert [sum(i in fold for i in some) for fold in folds] == [6] * 5
    assert _spread_out(deal(11, 11), 30) == list(range(11))
    alone, seen = candidate("a", 0.0, [(1.0, 0.5)] * 4), candidate("k", 1.0, [(0.5, 0.5)] * 4)
    few = replace(seen, scores={0: seen.scores[0]}, volumes=({0: 0.1},))
    assert _chosen([alone, few], [0, 1, 2, 3]) is few
