"""The network experiment on made-up cases: scores by hand, means, page, and going on."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from lab.__main__ import main
from lab.network import measure_network, summarise
from lab.network.measuring import (
    FIXED,
    LEARNED,
    RESIDUAL,
    Answer,
    CaseScore,
    log_loss,
    methods,
    read_network_case,
    residual_scores,
    scale_temperature,
    score,
)
from lab.network.network_page import PAGE_NAME, findings, page
from lab.store import OtherSettingsError
from perturb_mpm.progress import Silent
from perturb_mpm.run import assumed_length_mm

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


def test_a_perfect_answer_scores_perfectly(data: Path) -> None:
    case = read_network_case(data, "one")
    perfect = np.stack([case.truth == label for label in range(3)]).astype(float)
    true_ml = [float((case.truth == label).sum()) / 1000 for label in range(3)]
    found = score(case, "oracle", Answer(perfect, np.array([true_ml, true_ml])))
    assert found.dice == {"anterior": 1.0, "posterior": 1.0, "both": 1.0}
    assert found.log_score_nats == pytest.approx(0, abs=1e-5)
    assert found.inside == {"anterior": True, "posterior": True, "both": True}
    assert found.crps_log == pytest.approx(dict.fromkeys(found.dice, 0.0), abs=1e-12)
    assert math.isnan(found.auroc)  # there is no error to find


def test_the_length_is_the_radius_of_a_ball_of_the_expected_volume(data: Path) -> None:
    case = read_network_case(data, "one").case
    radius = assumed_length_mm(case)
    expected_mm3 = float(case.probabilities[1:, case.mask].sum())
    assert radius == pytest.approx(math.cbrt(3 * expected_mm3 / (4 * math.pi)), abs=0.05)


def test_temperature_and_loss_by_hand() -> None:
    p = np.array([[0.8], [0.2]])
    np.testing.assert_allclose(scale_temperature(p, 2.0)[:, 0], [2 / 3, 1 / 3], rtol=1e-6)
    assert log_loss(p, np.array([1])) == pytest.approx(-math.log(0.2))


class Recorder(Silent):
    def __init__(self) -> None:
        self.stages: list[str] = []
        self.steps: list[tuple[float, float]] = []

    def __call__(self, done: float, total: float, /) -> None:
        self.steps.append((done, total))

    def stage(self, words: str, /) -> None:
        self.stages.append(words)


def test_every_method_is_measured_once_and_kept(data: Path, tmp_path: Path) -> None:
    first = measure_network(data, tmp_path, samples=6)
    known = [*methods(6, 0), LEARNED]
    assert [each.method for each in first[: len(known)]] == known
    assert [each.method for each in first[-3:]] == [RESIDUAL] * 3
    assert {each.case for each in first} == set(NAMES)
    told = Recorder()
    again = measure_network(data, tmp_path, samples=6, progress=told)
    assert repr(again) == repr(first)  # NaN is not NaN
    assert told.steps[-1] == (3, 3)
    assert told.stages == ["scoring"]  # all was kept
    with pytest.raises(OtherSettingsError, match="samples is 6 there and 7 now"):
        measure_network(data, tmp_path, samples=7)
    means = summarise(first)
    assert all(0 <= m["dice both"] <= 1 for m in means.values())
    assert math.isnan(means["network alone"]["inside both"])
    assert math.isnan(means["8 flips"]["auroc"])  # of shares of a few label maps
    text = page(means, 3, 6)
    assert "nan" not in text
    assert findings(means).split(".")[0] in " ".join(text.split())


def test_residuals_are_those_of_other_folds_by_hand() -> None:
    def alone(case: str, error: float) -> CaseScore:
        every = dict.fromkeys(("anterior", "posterior", "both"), error)
        return CaseScore(case, "network alone", every, 0.0, 0.0, 0.5, every)

    names = ["a", "b", "c"]  # three folds of one
    every = residual_scores([alone("a", 0.0), alone("b", -0.2), alone("c", 0.4)], names)
    found = [each for each in every if each.method == RESIDUAL]
    wide = [each for each in every if each.method == FIXED]
    assert wide[1].inside == dict.fromkeys(("anterior", "posterior", "both"), True)  # t of 2 cases
    # The truth of a lies 0 away; b and c say +0.2 and −0.4: E|X − y| = .3, ½E|X − X'| = .15.
    assert found[0].crps_log is not None
    assert found[0].crps_log["both"] == pytest.approx(0.15)
    assert found[0].inside == dict.fromkeys(("anterior", "posterior", "both"), True)
    assert found[1].inside == dict.fromkeys(("anterior", "posterior", "both"), False)


def test_the_command_writes_the_page(data: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ending:
        main(["network", "--data", str(data), "--output", str(tmp_path), "--quick", "--quiet"])
    assert ending.value.code == 0
    assert (tmp_path / PAGE_NAME).read_text().startswith("# What the CRF and its noise make")


def test_a_folder_without_cases_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ending:
        main(["network", "--data", str(tmp_path), "--output", str(tmp_path / "o"), "--quiet"])
    assert ending.value.code == 2
    assert "--data must be the folder of the network's cases" in capfd.readouterr().err
