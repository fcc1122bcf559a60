"""The evidence on made-up cases: what run does, rivals, few cases, pages, and going on."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from helpers.labelled_cases import miscalibrated_case
from lab.__main__ import main
from lab.evidence.evidence_page import describe_evidence, evidence_page, verdicts
from lab.evidence.learning import rank_dice, score_few
from lab.evidence.measuring import (
    BARE,
    DEFAULT,
    DISPLACED,
    FORCED,
    WHITE,
    MeasuredSet,
    RunEvidence,
    draw_run,
    measure_set,
    score_given,
)
from lab.evidence.sets import LabelledSet, atlas_case, read_hippocampus, read_set
from lab.evidence.tuning_page import count_inside, tuning_page
from lab.store import OtherSettingsError
from perturb_mpm.files import SCHEMES, Case, geometry_from_affine
from perturb_mpm.progress import Silent
from perturb_mpm.run import RunSettings, load_run, run_case
from perturb_mpm.tune import (
    ALONE,
    FIXED,
    LEARNED,
    METHODS,
    Candidate,
    Study,
    TuningOptions,
    find_candidates,
    learn_settings,
    means,
    prepare_study,
)

SHAPE = (12, 14, 10)
NAMES = ("one", "two", "three")


def write_case(data: Path, name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    radius = np.sqrt(((np.indices(SHAPE) - np.array([6, 7, 5]).reshape(3, 1, 1, 1)) ** 2).sum(0))
    truth = np.where(radius < 3.2, 1 + (np.indices(SHAPE)[1] > 6), 0).astype(np.uint8)
    hot = np.stack([truth == label for label in range(3)]).astype(float)
    logits = 3 * hot + rng.normal(0, 1.2, hot.shape)
    p = np.exp(logits) / np.exp(logits).sum(axis=0)
    image = 300 + 200 * (truth > 0) + rng.normal(0, 40, SHAPE)
    affine = np.diag([1.0, 1.0, 1.0, 1.0])
    nib.save(nib.Nifti1Image(image.astype(np.int16), affine), data / "images" / f"{name}.nii.gz")
    nib.save(nib.Nifti1Image(truth, affine), data / "labels" / f"{name}.nii.gz")
    stored = p.transpose(0, 3, 2, 1).astype(np.float16)
    np.savez(data / "probabilities" / f"{name}.npz", probabilities=stored)
    maps = np.stack([(logits + rng.gumbel(size=hot.shape)).argmax(0) for _ in range(4)])
    others = {f"labels_{key}": maps.astype(np.uint8) for key in ("ensemble", "tta", "mc")}
    np.savez(data / "others" / f"{name}.npz", mean_ensemble=p.astype(np.float16), **others)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("network")
    for part in ("images", "labels", "probabilities", "others"):
        (folder / part).mkdir()
    for seed, name in enumerate(NAMES):
        write_case(folder, name, seed)
    with (folder / "cases.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([["image"], *([f"images/{name}.nii.gz"] for name in NAMES)])
    return folder


def patient(seed: int, *, enhancing: bool = True) -> Case:
    """A ball of oedema around a core around what enhances, and probabilities that see less."""
    rng = np.random.default_rng(seed)
    shape = (12, 12, 12)
    centre = 5.5 + rng.uniform(-0.7, 0.7, size=(3, 1, 1, 1))
    radius = np.sqrt(((np.indices(shape) - centre) ** 2).sum(axis=0))
    inner = 3 if enhancing else 1
    truth = np.select([radius < 1.8, radius < 2.8, radius < 4.2], [inner, 1, 2], 0).astype(np.uint8)
    own = truth == np.arange(4)[:, None, None, None]
    logits = 2.0 * own + rng.normal(0, 1, (4, *shape))
    shares = np.exp(logits) / np.exp(logits).sum(axis=0)
    images = {name: truth + rng.normal(5, 0.5, shape) for name in ("t1", "t1ce", "t2", "flair")}
    return Case(
        images={name: image.astype(np.float32) for name, image in images.items()},
        probabilities=shares.astype(np.float32),
        mask=np.ones(shape, dtype=bool),
        mask_origin="given",
        labels=SCHEMES["brats2021"],
        geometry=geometry_from_affine(shape, np.diag([2.0, 2.0, 2.0, 1.0])),
        hashes={},
        truth=truth,
    )


class Recorder(Silent):
    def __init__(self) -> None:
        self.stages: list[str] = []

    def stage(self, words: str, /) -> None:
        self.stages.append(words)


def test_every_method_is_measured_once_and_kept(data: Path, tmp_path: Path) -> None:
    hippocampi = read_set(data, None, None, Silent())
    first = measure_set(hippocampi, tmp_path, 8, Silent())
    rows = means(first.scores, first.regions)
    rivals = ("ensemble of 5", "20 dropout samples", "8 flips")
    assert set(rows) == {*METHODS, *rivals, BARE, FORCED, WHITE, DISPLACED, DEFAULT}
    assert math.isnan(rows["8 flips"]["log_score_nats"])  # of shares of a few label maps
    assert 0 < rows["ensemble of 5"]["log_score_nats"] < 2
    told = Recorder()
    again = measure_set(hippocampi, tmp_path, 8, told)
    assert repr(again) == repr(first)  # NaN is not NaN
    assert told.stages == ["reading the true labels", "scoring what needs no label"]
    with pytest.raises(OtherSettingsError, match="samples is 8 there and 9 now"):
        measure_set(hippocampi, tmp_path, 9, Silent())
    given = {"atlas": score_given(hippocampi.cases, hippocampi.start)}
    text = evidence_page("Title", "Opening.", [first], given)
    assert "nan" not in text
    assert "atlas, 3 cases" in text


def test_regions_that_some_patients_lack_leave_no_hole(tmp_path: Path) -> None:
    cases = {f"p{seed}": patient(seed) for seed in range(3)}
    cases["p3"] = patient(3, enhancing=False)
    start = RunSettings(regions={"whole": (1, 2, 4), "core": (1, 4), "enhancing": (4,)})
    found = measure_set(
        LabelledSet("Made up", "tune-x", "", cases, start, 4), tmp_path, 8, Silent()
    )
    text = evidence_page("Title", "Opening.", [found], {})
    assert "nan" not in text
    assert "/3" in text  # three patients have enhancing tumour
    assert "of 4 cases" in describe_evidence(found.evidence)


def test_what_is_scored_is_what_run_writes(tmp_path: Path) -> None:
    case = patient(0)
    settings = RunSettings().changed(samples=8)
    found = draw_run(case, settings)
    finished = run_case(case, settings, tmp_path / "run", title="p")
    written = load_run(tmp_path / "run")
    np.testing.assert_array_equal(found.labels, written.labels)
    np.testing.assert_array_equal(found.posterior.volumes, written.posterior.volumes)
    assert found.settings.coupling.strength == written.settings.coupling.strength
    assert found.settings.has_kernels  # or the check of the kernels would not be compared
    assert found.agreement
    assert dict(finished.agreement) == dict(found.agreement)


def test_what_the_image_looks_like_goes_into_the_learned_settings(data: Path) -> None:
    found = read_set(data, None, None, Silent())
    assert {sequence for case in found.cases.values() for sequence in case.images} == {"t1"}
    assert found.sequences == ("t1",)


def test_an_atlas_is_the_share_of_the_other_cases(data: Path) -> None:
    cases = {name: read_hippocampus(data, name) for name in NAMES}
    whole = np.zeros((6, 7, 5), dtype=np.uint8)
    whole[3:] = 2  # a crop of half the size: stretched, the half of it stays the half
    cases["three"] = replace(cases["three"], truth=whole)
    found = atlas_case(cases, "one").probabilities
    assert found.shape == (3, *SHAPE)
    np.testing.assert_allclose(found.sum(axis=0), 1, rtol=1e-6)
    two = cases["two"].truth
    assert two is not None
    corner = tuple(np.argwhere(two[:6] == 0)[0])  # both others say background
    assert found[:, *corner] == pytest.approx([(2 + 1 / 3) / 3, 1 / 9, 1 / 9])
    assert found[2, 11, 0, 0] == pytest.approx((1 + 1 / 3) / 3)


def test_verdicts_follow_the_numbers(data: Path, tmp_path: Path) -> None:
    found = measure_set(read_set(data, None, None, Silent()), tmp_path, 8, Silent())

    def changed(method: str, crps: float) -> MeasuredSet:
        scores = [
            replace(s, volumes={n: replace(v, crps=crps) for n, v in (s.volumes or {}).items()})
            if s.method == method
            else s
            for s in found.scores
        ]
        return replace(found, scores=scores)

    def words(of: MeasuredSet) -> dict[str, str]:
        return {row[0]: row[-1] for row in verdicts(of)}

    question = f"CRPS of volumes: {LEARNED} beside {FIXED}"
    assert words(changed(LEARNED, 9.0))[question] == "worse / worse / worse"
    assert words(changed(LEARNED, 0.0))[question] == "better / better / better"
    assert words(found)[f"Dice: {DEFAULT} beside {ALONE}"]


def test_evidence_in_words() -> None:
    one = RunEvidence(0.6, 0.35, 0.35, 1.3, {"core": (0.5, 0.9, 0.7)})
    other = RunEvidence(0.8, 0.5, 0.25, 1.2, {"core": (0.5, 0.9, 0.95)})
    text = describe_evidence([one, other])
    assert "70 % of what the probabilities say (60–80 %)" in text
    assert (
        "in 2 of 2 cases, at 0.25–0.35 of their weight; the check of volumes weakened them in 1"
        in text
    )
    assert "core 1/2" in text


@pytest.fixture(scope="module")
def sampled() -> tuple[Study, list[Candidate]]:
    cases = {f"p{i}": miscalibrated_case(i, 1.5, 0.0) for i in range(6)}
    start = RunSettings(kernels=())
    study = prepare_study(cases, start, TuningOptions(folds=3, samples=8), Silent())
    return study, find_candidates(study, start)


def test_a_few_cases_are_scored_on_all_others(sampled: tuple[Study, list[Candidate]]) -> None:
    study, candidates = sampled
    found = score_few(study, candidates, few=4, draws=3)
    assert [each.draw for each in found] == [0, 1, 2]
    for each in found:
        assert each.volumes["ball"][0] in (0.0, 0.5, 1.0)  # two cases are left
        assert each.fixed_width["ball"][1] > 0
    assert score_few(study, candidates, few=4, draws=1) == found[:1]


def test_confidence_is_ranked_against_the_true_dice(
    sampled: tuple[Study, list[Candidate]],
) -> None:
    study, candidates = sampled
    ranks = rank_dice(study, candidates[0])
    assert len(ranks) == 3
    assert all(-1 <= each.rank_correlation <= 1 for each in ranks)
    risks = [1 - each.true_dice["ball"] for each in candidates[0].samples]
    assert all(min(risks) <= each.aurc <= max(risks) for each in ranks)


def test_the_page_of_tuning_has_no_holes(sampled: tuple[Study, list[Candidate]]) -> None:
    study, candidates = sampled
    tuned = learn_settings(study, candidates)
    few, ranks = score_few(study, candidates, draws=2), rank_dice(study, candidates[0])
    text = tuning_page("Title", "python -m lab network", 8, tuned, few, ranks)
    assert text.startswith("# Title\n")
    assert "nan" not in text
    inside, cases = count_inside(tuned, LEARNED, of_dice=False)["ball"]
    assert cases == 6
    assert f"| volume | learned | {inside}/6 |" in text
    assert np.all([len(line) <= 2000 for line in text.splitlines()])


def test_the_command_writes_the_pages(data: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ending:
        main(["network", "--data", str(data), "--output", str(tmp_path), "--quick", "--quiet"])
    assert ending.value.code == 0
    page = tmp_path / "reproduce-network.md"
    assert page.read_text().startswith("# What the CRF and its noise make")
    assert (tmp_path / "tune-hippocampi.md").read_text().startswith("# What tuning is worth on")


def test_a_folder_without_cases_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ending:
        main(["network", "--data", str(tmp_path), "--output", str(tmp_path / "o"), "--quiet"])
    assert ending.value.code == 2
    assert "--data must be the folder of the network's cases" in capfd.readouterr().err
