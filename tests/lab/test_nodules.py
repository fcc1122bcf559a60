"""Samples of some readers' outlines held against other readers; real patients at two dates."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from lab.__main__ import main
from lab.clinical import bias, nodules, progression
from perturb_mpm.files import InputError, save_nifti
from perturb_mpm.segmenter import EnsembleSettings, RandomForest

SHAPE = (14, 14, 10)


def ball(radius: float, shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    middle = np.reshape([(n - 1) / 2 for n in shape], (3, 1, 1, 1))
    return np.sqrt(((np.indices(shape) - middle) ** 2).sum(axis=0)) < radius


def write_nodules(folder: Path) -> None:
    """Three nodules, whose four readers differ ever less."""
    folder.mkdir(parents=True)
    for number, apart in enumerate((0.9, 0.4, 0.1)):
        drawn = np.stack([ball(3.5 + apart * step) for step in (-1.5, -0.5, 0.5, 1.5)], axis=-1)
        save_nifti(folder / f"nodule0{number}_x.nii.gz", drawn.astype(np.uint8), np.eye(4))


def test_the_rank_correlation_is_spearmans_with_its_exact_p() -> None:
    found, p = nodules.rank_correlation([1.0, 2.0, 3.0, 4.0], [10.0, 30.0, 20.0, 40.0])
    assert found == pytest.approx(0.8)
    assert p == pytest.approx(4 / 24)  # the identity, and one swap of neighbours, of three
    assert nodules.rank_correlation([1, 2, 3], [3, 2, 1]) == (pytest.approx(-1), 1.0)


def test_the_softness_is_the_distance_at_which_readers_differ(tmp_path: Path) -> None:
    write_nodules(tmp_path / "lidc")
    soft, middle, sharp = nodules.read_nodules(tmp_path / "lidc")
    assert nodules.learn_softness([soft]) > nodules.learn_softness([sharp])
    assert soft.spread > middle.spread > sharp.spread
    assert soft.volumes_ml[0] == pytest.approx(ball(3.5 - 1.35).sum() / 1000)
    distance = middle.distance_mm(0)
    assert ((distance < 0) == middle.drawings[0]).all()
    patient = nodules.reader_patient(middle, (0, 1), 0.5, 0)
    p = patient.case.probabilities[1]
    assert (p[middle.drawings[0]] > 0.5).all()  # the smaller of two balls: both agree


@pytest.mark.slow
def test_raters_are_held_against_samples(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    write_nodules(tmp_path / "lidc_multirater_masks")
    with pytest.raises(SystemExit) as stop:
        main(
            [
                "raters",
                "--data",
                str(tmp_path),
                "--quick",
                "--json",
                "--output",
                str(tmp_path / "o"),
            ]
        )
    assert not stop.value.code
    found = json.loads(capsys.readouterr().out)["nodules"]
    assert len(found) == 3 * (4 + 6) * 3  # nodules, readers and pairs, methods
    spreads = {
        method: np.mean([row["spread"] for row in found if row["method"] == method])
        for method in (nodules.DEFAULT, nodules.WHITE)
    }
    assert spreads[nodules.DEFAULT] > 2 * spreads[nodules.WHITE]  # the control: white noise
    text = (tmp_path / "o" / "reproduce-raters.md").read_text(encoding="utf-8")
    assert "rank correlation with the raters' spread" in text
    assert "Probabilities and images are made up" in " ".join(text.split())


def test_patients_at_two_dates_are_segmented_by_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = EnsembleSettings(folds=3, label_voxels=200, background_voxels=500, trees=RandomForest(4))
    monkeypatch.setattr(progression, "SETTINGS", few)
    rng = np.random.default_rng(0)
    shape = (20, 20, 8)
    for number in range(4):
        (tmp_path / f"0{number}").mkdir()
        for date, radius in (("Pre", 4.0), ("Post", 3.0 + 0.5 * number)):
            drawn = ball(radius, shape)
            image = 100 + 60 * drawn + rng.normal(0, 5, shape)
            folder = tmp_path / f"0{number}"
            save_nifti(folder / f"{date}_mask.nii.gz", drawn.astype(np.uint8), np.eye(4))
            save_nifti(folder / f"{date}_T1post.nii.gz", image.astype(np.float32), np.eye(4))
    found = list(progression.progression_patients(tmp_path, 0))
    assert [each.after.name for each in found] == ["00", "02", "01", "03"]
    raised = bias.Segmenter(2.0, region=progression.REGION)
    for each in found:
        p, true = each.after.case.probabilities[1], each.after.truth > 0
        assert p[true].mean() > 0.4
        assert p[~true].mean() < 0.1
        scan = bias.scanners([raised], 4, 0)[raised.name](each.after)
        assert scan.original_ml >= scan.certain_ml
    with pytest.raises(InputError, match="four folders or more"):
        next(progression.progression_patients(tmp_path, 0, most=3))
