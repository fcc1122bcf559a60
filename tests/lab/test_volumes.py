"""The table of sampled volumes: unaries, rows, page and command, on made-up patients."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import shutil
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

import perturb_mpm as pm
from lab.__main__ import main
from lab.volumes import patients
from lab.volumes.measuring import (
    ASSUMED,
    LENGTHS,
    reproduce_volumes,
    sampled_volumes_ml,
)
from lab.volumes.volume_page import interval_coverage
from perturb_mpm.engines import prepare
from perturb_mpm.files import InputError
from perturb_mpm.phantom import glioblastoma
from perturb_mpm.sampling import Sampling

SPACING = (8.0, 8.0, 8.0)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two made-up patients as BraTS 2021 keeps them; the second has no enhancing voxel."""
    root = tmp_path_factory.mktemp("data")
    affine = np.diag([-8.0, -8.0, 8.0, 1.0])
    for number in range(2):
        made = glioblastoma(seed=number, spacing_mm=8.0)
        images = np.where(made.mask, made.images - made.images.min() + 1, 0)
        labels = np.array([0, 1, 2, 1, 4])[made.truth]
        if number == 1:
            labels[labels == 4] = 1
        folder = root / patients.DATASET / f"P{number}"
        folder.mkdir(parents=True)
        for sequence, image in zip(patients.SEQUENCES, images):
            _save(folder / f"P{number}_{sequence}.nii.gz", image.astype(np.float32), affine)
        _save(folder / f"P{number}_seg.nii.gz", labels.astype(np.uint8), affine)
    return root


def _save(path: Path, volume: np.ndarray, affine: np.ndarray) -> None:
    nib.Nifti1Image(volume, affine).to_filename(path)


@pytest.fixture(scope="module")
def output(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("out") / "new"
    arguments = ["--data", str(data), "--output", str(folder), "--quick", "--json"]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), pytest.raises(SystemExit) as ending:
        main(["volumes", *arguments])
    assert ending.value.code == 0
    summary = json.loads(printed.getvalue())
    assert summary["files"] == [str(folder / "volumes.csv"), str(folder / "volumes.md")]
    lengths = {row["noise_length_mm"] for row in summary["rows"] if row["noise"] != ASSUMED}
    assert lengths == {0.0, 10.0, 20.0, 40.0, 80.0, "inf"}
    return folder


@pytest.mark.slow
def test_the_command_writes_a_row_for_every_region_that_is_there(output: Path) -> None:
    assert sorted(path.name for path in output.iterdir()) == ["volumes.csv", "volumes.md"]
    with (output / "volumes.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    regions = 3 + 2  # of the two patients
    assert len(rows) == regions * len(patients.KINDS) * len(LENGTHS)
    assert {row["noise_length_mm"] for row in rows if row["noise"] == "inf"} == {"inf"}
    assumed = {row["noise_length_mm"] for row in rows if row["noise"] == ASSUMED}
    assert all(5 < float(length) < 50 for length in assumed)  # radii of tumours
    for row in rows:
        lower, upper, truth = (float(row[name]) for name in ("lower_ml", "upper_ml", "truth_ml"))
        assert lower <= upper
        assert row["truth_inside"] == str(int(lower <= truth <= upper))
        assert float(row["width_over_truth"]) == pytest.approx((upper - lower) / truth, abs=1e-3)


@pytest.mark.slow
def test_longer_noise_spreads_the_volumes_of_the_table(output: Path) -> None:
    with (output / "volumes.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["region"] == "whole tumour"]
    cv = {
        noise: np.median(
            [float(r["coefficient_of_variation"]) for r in rows if r["noise"] == noise]
        )
        for noise in ("0", "10", "40")
    }
    assert 2 * cv["0"] < cv["10"] < cv["40"]
    text = (output / "volumes.md").read_text()
    assert "`python -m lab volumes --quick`" in text
    assert f"{cv['0']:.1%}" in text


def test_the_volumes_are_those_of_the_sampler(data: Path) -> None:
    patient = patients.read_patient(data / patients.DATASET / "P0")
    assert patient.case.geometry.spacing == SPACING
    crf = patients.worsen(patient, "blurred").crf()
    solver = prepare(crf, compact=True, batch=2)
    for length in (0.0, 20.0, math.inf):
        law = Sampling(samples=5, iterations=3, seed=4, noise_length=length)
        ours = sampled_volumes_ml(crf, solver, law)
        theirs = pm.sample(crf, 5, iterations=3, seed=4, noise_length=length).volumes / 1000
        np.testing.assert_allclose(ours, theirs)


def test_erosion_takes_a_voxel_off_each_of_the_nested_regions() -> None:
    labels = np.zeros((13, 13, 13), dtype=np.uint8)
    for edge, label in ((1, 2), (3, 1), (5, 3)):
        labels[edge:-edge, edge:-edge, edge:-edge] = label
    left = patients.erode(labels, (2.0, 2.0, 2.0), 2.0)
    for edge, region in ((1, "whole tumour"), (3, "core"), (5, "enhancing")):
        expected = np.zeros(labels.shape, dtype=bool)
        expected[edge + 1 : -edge - 1, edge + 1 : -edge - 1, edge + 1 : -edge - 1] = True
        np.testing.assert_array_equal(np.isin(left, patients.REGIONS[region]), expected)
    # At 1 mm two voxels are lost, at 4 mm none.
    assert (patients.erode(labels, (1.0, 1.0, 1.0), 2.0) > 0).sum() == 7**3
    np.testing.assert_array_equal(patients.erode(labels, (4.0, 4.0, 4.0), 2.0), labels)


def test_a_shift_is_in_millimetres() -> None:
    labels = np.zeros((9, 2, 2), dtype=np.uint8)
    labels[3] = 2
    assert patients.shift(labels, (2.0, 1.0, 1.0), 4.0)[5].min() == 2
    assert patients.shift(labels, (1.0, 1.0, 1.0), 4.0)[7].min() == 2


def test_blurred_probabilities_sum_to_one_and_keep_their_floor() -> None:
    labels = np.zeros((9, 9, 9), dtype=np.uint8)
    labels[4:, 4:, 4:] = 3
    p = patients.blur(labels, (2.0, 2.0, 2.0))
    np.testing.assert_allclose(p.sum(axis=0), 1, atol=1e-6)
    assert p.min() == pytest.approx(patients.INDIFFERENCE / 4, abs=1e-6)
    assert p[3, 8, 8, 8] > 0.95


def test_labels_of_another_scheme_are_refused(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "P0"
    shutil.copytree(data / patients.DATASET / "P0", folder)
    labels = np.full(nib.load(folder / "P0_seg.nii.gz").shape, 3, dtype=np.uint8)
    _save(folder / "P0_seg.nii.gz", labels, np.diag([-8.0, -8.0, 8.0, 1.0]))
    with pytest.raises(InputError, match="label values 0, 1, 2, 4 alone, got 3: other years"):
        patients.read_patient(folder)


def test_the_coverage_of_an_interval_of_few_samples() -> None:
    draws = np.random.default_rng(0).normal(size=(20_000, 33))
    lower, upper = np.quantile(draws[:, 1:], [0.025, 0.975], axis=1)
    inside = ((lower <= draws[:, 0]) & (draws[:, 0] <= upper)).mean()
    assert interval_coverage(32) == pytest.approx(inside, abs=0.01)


def test_a_folder_without_patients_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ending:
        main(["volumes", "--data", str(tmp_path), "--output", str(tmp_path / "out")])
    assert ending.value.code == 2
    assert "--data must hold folders PATIENT/PATIENT_seg.nii.gz" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    with pytest.raises(InputError, match="`data` must hold folders"):
        reproduce_volumes(tmp_path, tmp_path)
