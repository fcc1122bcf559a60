"""``perturb-mpm run`` on a real patient at 2 mm: geometry to the last bit, values in range."""

from __future__ import annotations

import math
import os
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from scipy.ndimage import distance_transform_edt, gaussian_filter, label

import perturb_mpm as pm
from helpers.small_case import call
from perturb_mpm.run import load_run

ROOT = Path(__file__).resolve().parents[2]
PATIENT = "brats2021_2mm/BraTS2021_00006"
VALUES = (0, 1, 2, 4)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def patient() -> Path:
    data = Path(os.environ.get("PERTURB_MPM_DATA") or ROOT.parent / "shared" / "data")
    if not (data / PATIENT).is_dir():
        pytest.skip(f"the patient {PATIENT} is not in {data}: set PERTURB_MPM_DATA")
    return data / PATIENT


@pytest.fixture(scope="module")
def folder(patient: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("real")
    truth = nib.load(next(patient.glob("*_seg.nii.gz")))
    label_map = np.asanyarray(truth.dataobj)
    blurred = [gaussian_filter((label_map == v).astype(np.float32), 2.0) for v in VALUES]
    p = np.stack(blurred, axis=-1)
    p /= p.sum(axis=-1, keepdims=True)
    nib.save(nib.Nifti1Image(p, truth.affine), folder / "p.nii")
    images = [str(next(patient.glob(f"*_{name}.nii.gz"))) for name in ("t1ce", "flair")]
    given = ["--image", *images, "--probabilities", str(folder / "p.nii"), "--labels"]
    given += [*map(str, VALUES), "--samples", "4", "--iterations", "2", "--accuracy", "plain"]
    assert call("run", *given, "--output", str(folder / "out"), "--quiet") == 0
    return folder / "out"


def test_every_output_lies_where_the_input_lies(folder: Path, patient: Path) -> None:
    image = nib.load(next(patient.glob("*_t1ce.nii.gz")))
    for name in ("labels", "marginals", "entropy", "uncertainty"):
        written = nib.load(folder / f"{name}.nii.gz")
        assert written.shape[:3] == image.shape
        assert written.affine.tobytes() == image.affine.tobytes()
        for form in ("sform", "qform"):
            ours, codes = getattr(written, f"get_{form}")(coded=True)
            theirs, code = getattr(image, f"get_{form}")(coded=True)
            assert codes == code
            np.testing.assert_array_equal(ours, theirs)
    assert nib.load(folder / "marginals.nii.gz").shape[3] == 4


def test_values_are_what_they_must_be(folder: Path, patient: Path) -> None:
    labels = np.asanyarray(nib.load(folder / "labels.nii.gz").dataobj)
    entropy = np.asanyarray(nib.load(folder / "entropy.nii.gz").dataobj)
    truth = np.asanyarray(nib.load(next(patient.glob("*_seg.nii.gz"))).dataobj)
    assert labels.dtype == np.uint8
    assert set(np.unique(labels)) == set(VALUES)
    overlap = 2 * ((labels > 0) & (truth > 0)).sum() / ((labels > 0).sum() + (truth > 0).sum())
    assert overlap > 0.9
    assert entropy.min() >= 0.0
    assert 1.0 <= entropy.max() <= math.log2(4)
    assert (entropy[labels != truth]).mean() > 3 * (entropy[labels == truth]).mean()


def test_measures_are_those_recomputed_from_kept_samples(folder: Path) -> None:
    sitk = pytest.importorskip("SimpleITK")
    run = load_run(folder)
    name = run.case.labels.names[3]
    image = next(iter(run.case.images))
    words = ["volume", "diameter", "components", "dice", f"mean:{image}", "margin"]
    found = pm.measure(run, words, [name])
    mapped = run.labels == 3
    away = distance_transform_edt(~mapped, sampling=run.case.geometry.spacing)
    assert len(run.sampled_labels) == found.samples == 4
    for number, labels in enumerate(run.sampled_labels):
        mask = labels == 3
        shape = sitk.LabelShapeStatisticsImageFilter()
        shape.ComputeFeretDiameterOn()
        volume = sitk.GetImageFromArray(mask.T.astype(np.uint8))
        volume.SetSpacing(run.case.geometry.spacing)
        shape.Execute(volume)
        expected = [
            shape.GetPhysicalSize(1) / 1000,
            shape.GetFeretDiameter(1),
            label(mask, np.ones((3, 3, 3)))[1],
            2 * (mask & mapped).sum() / (mask.sum() + mapped.sum()),
            run.case.images[image][mask].mean(dtype=np.float64),
            away[mask].max(),
        ]
        np.testing.assert_allclose(found.values[number], expected, rtol=1e-5)
