"""The engines on a real patient: which voxels' most frequent label depends on them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import perturb_mpm as pm
from lab.patients import Patient, labelled_case
from lab.volumes.patients import DATASET, SCHEME, read_patient, worsen

ROOT = Path(__file__).resolve().parents[2]
PATIENT = "BraTS2021_01658"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def patient() -> Patient:
    data = Path(os.environ.get("PERTURB_MPM_DATA") or ROOT.parent / "shared" / "data")
    folder = data / DATASET / PATIENT
    if not folder.is_dir():
        pytest.skip(f"the patients of {DATASET} are not in {data}: set PERTURB_MPM_DATA")
    return read_patient(folder)


def tumour_crop(patient: Patient, shape: tuple[int, int, int]) -> pm.DenseCRF:
    """Return the CRF of a box around the middle of the tumour."""
    whole = patient.case
    middle = np.argwhere(patient.truth > 0).mean(axis=0).round().astype(int)
    box = tuple(slice(m - n // 2, m - n // 2 + n) for m, n in zip(middle, shape))
    images = {name: image[box] for name, image in whole.images.items()}
    affine = whole.geometry.affine
    crop = labelled_case(images, whole.mask[box], patient.truth[box], SCHEME, affine)
    return worsen(Patient(patient.name, crop), "shifted").crf()


def modal_difference(a: pm.Posterior, b: pm.Posterior) -> float:
    """The share of the voxels in the mask whose most frequent label differs."""
    inside = a.grid.mask
    return float((a.labels != b.labels)[inside].mean())


def test_exact_engines_give_the_same_labels(patient: Patient) -> None:
    crf = tumour_crop(patient, (10, 10, 10))
    assert crf.grid.voxels == 1000
    options = {"samples": 200, "iterations": 10}
    truth = pm.sample(crf, seed=1, engine="reference", batch=50, **options)
    ours = pm.sample(crf, seed=1, engine="cpu", accuracy="exact", **options)
    assert set(np.unique(truth.labels)) == {0, 1, 2, 3}
    assert modal_difference(ours, truth) <= 0.001
    # The measure sees what another seed does.
    other = pm.sample(crf, seed=2, engine="cpu", accuracy="exact", **options)
    assert modal_difference(other, truth) > 0.002


def test_the_lattice_changes_no_more_labels_than_another_seed_does(patient: Patient) -> None:
    crf = tumour_crop(patient, (20, 20, 16))
    options = {"samples": 20, "iterations": 5, "engine": "cpu"}
    exact = pm.sample(crf, seed=1, accuracy="exact", **options)
    lattice = pm.sample(crf, seed=1, accuracy="calibrated", **options)
    another = pm.sample(crf, seed=2, accuracy="exact", **options)
    assert modal_difference(lattice, exact) < modal_difference(another, exact)
