"""A case through the pipeline: what is written, and what it equals."""

from __future__ import annotations

import csv
import json
import math
import os
import re
from dataclasses import replace
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

import perturb_mpm as pm
from helpers.small_case import AFFINE, FILES, SHAPE, content, read, write_files
from perturb_mpm.files import Case, LabelScheme, Source, read_volume
from perturb_mpm.run import load_run
from perturb_mpm.run.folder import BidsNames
from perturb_mpm.run.model import build_crf, overconfidence
from perturb_mpm.run.running import planned_bytes, run_case
from perturb_mpm.run.settings import OutputError, RunSettings, SettingsError

SETTINGS = RunSettings.of_paper().changed(
    samples=40, seed=5, iterations=4, temperature=1.3, clip=1e-4
)


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder = tmp_path_factory.mktemp("patient")
    write_files(folder)
    return read(folder, labels=LabelScheme((0, 2, 400), ("none", "oedema", "core")))


def test_tissues_without_background_are_nowhere_outside_the_mask(tmp_path: Path) -> None:
    write_files(tmp_path / "in")
    tissues = read(tmp_path / "in", labels=[1, 2, 3])
    run_case(tissues, SETTINGS.changed(samples=2), tmp_path / "out", title="tissues")
    labels = np.asarray(nib.load(tmp_path / "out" / "labels.nii.gz").dataobj)
    assert set(np.unique(labels[~tissues.mask])) == {0}
    assert set(np.unique(labels[tissues.mask])) == {1, 2, 3}
    marginals = np.asarray(nib.load(tmp_path / "out" / "marginals.nii.gz").dataobj)
    assert marginals[~tissues.mask].max() == 0
    np.testing.assert_allclose(marginals[tissues.mask].sum(axis=-1), 1, atol=1e-6)
    told = read(tmp_path / "in", labels=[1, 2, 3], background=9)
    run_case(told, SETTINGS.changed(samples=2), tmp_path / "told", title="tissues")
    assert load_run(tmp_path / "told").case.labels.outside == 9
    labels = np.asarray(nib.load(tmp_path / "told" / "labels.nii.gz").dataobj)
    assert set(np.unique(labels[~told.mask])) == {9}


@pytest.fixture(scope="module")
def folder(case: Case, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("out") / "made" / "here"
    run_case(case, SETTINGS, folder, title="a patient")
    return folder


def test_names_that_are_no_utf8_are_written_as_they_can_be(case: Case, tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9")
    images = {f"{name} {n}": image for n, image in enumerate(case.images.values())}
    given = replace(case, images=images, warnings=(f"{name} is far away",))
    settings = SETTINGS.changed(samples=2, iterations=2)
    run_case(given, settings, tmp_path / name, title=name, also=("slicer", "itksnap"))
    run = load_run(tmp_path / name)
    assert run.title == name
    assert b"caf\\udce9" in run.files["report"].read_bytes()


@pytest.fixture(scope="module")
def posterior(case: Case) -> pm.Posterior:
    """The same, by the library alone."""
    crf = pm.DenseCRF(
        unary=pm.unary_from_probabilities(case.probabilities, temperature=1.3, clip=1e-4),
        kernels=[
            pm.SpatialKernel(sigma=3.0, weight=1.0),
            pm.BilateralKernel(
                np.stack(list(case.images.values())),
                sigma_space=20.0,
                sigma_intensity=0.5,
                weight=3.0,
            ),
        ],
        spacing=case.geometry.spacing,
        mask=case.mask,
    )
    return pm.sample(crf, 40, seed=5, iterations=4)


def load(folder: Path, name: str) -> np.ndarray:
    return np.asanyarray(nib.load(folder / f"{name}.nii.gz").dataobj)


def test_all_files_are_there_and_no_others(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == sorted([*FILES, "state"])
    assert (folder / "report.html").read_text().lstrip().lower().startswith("<!doctype html>")


def test_the_maps_are_those_of_the_library(folder: Path, posterior: pm.Posterior) -> None:
    np.testing.assert_array_equal(load(folder, "labels"), np.array([0, 2, 400])[posterior.labels])
    assert load(folder, "labels").dtype == np.uint16
    marginals = np.moveaxis(load(folder, "marginals"), -1, 0)
    np.testing.assert_array_equal(marginals, posterior.marginals.astype(np.float32))
    np.testing.assert_array_equal(load(folder, "entropy"), posterior.entropy.astype(np.float32))
    np.testing.assert_array_equal(load(folder, "uncertainty"), posterior.uncertainty_map())


def test_the_geometry_is_the_inputs_to_the_last_bit(folder: Path) -> None:
    for name in ("labels", "marginals", "entropy", "uncertainty"):
        image = nib.load(folder / f"{name}.nii.gz")
        assert image.shape[:3] == SHAPE
        assert image.affine.tobytes() == AFFINE.astype(np.float32).astype(np.float64).tobytes()
        assert image.header["sform_code"] == 2  # what nibabel gave the input


def test_volumes_have_a_row_a_sample_and_label(folder: Path, posterior: pm.Posterior) -> None:
    with (folder / "volumes.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["sample"], row["label"], row["name"]) for row in rows[:4]] == [
        ("0", "0", "none"),
        ("0", "2", "oedema"),
        ("0", "400", "core"),
        ("1", "0", "none"),
    ]
    found = np.array([float(row["volume_ml"]) for row in rows]).reshape(40, 3)
    np.testing.assert_allclose(found, posterior.volumes / 1000, rtol=1e-12)


def test_the_summary_says_what_was_found_and_how(
    folder: Path, case: Case, posterior: pm.Posterior
) -> None:
    summary = json.loads((folder / "summary.json").read_text())
    voxel_ml = math.prod(case.geometry.spacing) / 1000
    core = summary["labels"][2]
    where = (posterior.labels == 2) & case.mask
    assert (core["value"], core["name"]) == (400, "core")
    assert core["volume_ml"] == pytest.approx(where.sum() * voxel_ml)
    assert core["sampled_mean_ml"] == pytest.approx(posterior.volumes[:, 2].mean() / 1000)
    assert core["interval_lower_ml"] is core["interval_upper_ml"] is None  # the noise is white
    assert core["mean_entropy_bits"] == pytest.approx(posterior.entropy[where].mean(), rel=1e-5)
    shares = [core[f"{word}_frac"] for word in ("certain", "undecided", "uncertain")]
    assert sum(shares) == pytest.approx(1)
    assert summary["samples"] == 40
    assert summary["seed"] == 5
    assert summary["parameters"]["temperature"] == 1.3
    assert summary["volumes_reflect_voxel_noise_alone"] is True
    assert set(summary["inputs_sha256"]) == {"t1.nii.gz", "flair.nii.gz", "p.nii.gz"}
    assert summary["versions"]["perturb-mpm"] == pm.__version__
    assert summary["timings_s"]["total"] >= summary["timings_s"]["sampling"] > 0
    assert summary["entropy"]["largest_possible_bits"] == pytest.approx(math.log2(3))


def test_the_same_case_gives_the_same_bytes(case: Case, folder: Path, tmp_path: Path) -> None:
    other = SETTINGS.changed(threads=1, memory="1 GB")
    run_case(case, other, tmp_path / "again", title="another title")
    assert content(tmp_path / "again") == content(folder)


def test_the_noises_lengths_are_told_of(case: Case, tmp_path: Path) -> None:
    settings = SETTINGS.changed(samples=3, noise_length=[(30.0, 0.75), (math.inf, 0.25)])
    result = run_case(case, settings, tmp_path / "o", title="f")
    assert result.summary["volumes_reflect_voxel_noise_alone"] is False
    words = result.summary["perturbation"]
    assert "correlated over the whole image (25 %) and 30 mm (75 %)" in words


def test_until_stops_where_the_library_stops(case: Case, tmp_path: Path) -> None:
    until = pm.Precision(0.06)
    most = until.samples_to_reach(3)
    # So sure that nearly all samples agree, which takes fewer of them.
    sure = (case.probabilities == case.probabilities.max(axis=0)).astype(np.float32)
    case = replace(case, probabilities=sure)
    settings = SETTINGS.changed(until=0.06, samples=most, temperature=1.0, iterations=1)
    settings = settings.changed(kernels=(), clip=1e-3)
    result = run_case(case, settings, tmp_path / "out", title="until")
    expected = pm.sample(build_crf(case, settings), most, seed=5, iterations=1, until=until)
    assert 25 < expected.samples < most / 2
    assert result.summary["samples"] == expected.samples
    marginals = np.moveaxis(load(tmp_path / "out", "marginals"), -1, 0)
    np.testing.assert_array_equal(marginals, expected.marginals.astype(np.float32))
    before = content(tmp_path / "out")
    (tmp_path / "out" / "summary.json").unlink()
    run_case(case, settings, tmp_path / "out", title="until", resume=True)
    assert content(tmp_path / "out") == before


def test_a_bias_moves_the_log_probabilities(case: Case) -> None:
    plain = build_crf(case, SETTINGS).energies
    moved = build_crf(case, SETTINGS.changed(bias=(0.0, 0.5, -1.0))).energies
    expected = np.array([0.0, -0.5, 1.0])[:, np.newaxis]
    np.testing.assert_allclose(moved - plain, np.broadcast_to(expected, plain.shape), atol=1e-5)


def test_kernels_of_no_weight_are_left_out(case: Case) -> None:
    kernels = tuple(replace(kernel, weight=0.0) for kernel in SETTINGS.kernels)
    assert build_crf(case, SETTINGS.changed(kernels=kernels)).kernels == ()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"bias": (0.0, 1.0)}, "bias must have one number for each of the 3 labels, got 2"),
        ({"until": 0.01}, "must be reachable within 40 samples, got one that takes up to"),
        (
            {"kernels": (replace(SETTINGS.kernels[1], sigma_intensity_sd=(1.0, 2.0, 3.0)),)},
            r"sigma_intensity of BilateralKernel must be one number or one for each channel \(2\)",
        ),
    ],
)
def test_settings_that_do_not_fit_are_refused_and_nothing_is_written(
    changed: dict[str, object], message: str, case: Case, tmp_path: Path
) -> None:
    with pytest.raises(SettingsError, match=message):
        run_case(case, SETTINGS.changed(**changed), tmp_path / "out", title="bad")
    assert list(tmp_path.iterdir()) == []


def test_what_does_not_fit_into_memory_leaves_no_folder(case: Case, tmp_path: Path) -> None:
    with pytest.raises(MemoryError, match="memory allows"):
        run_case(case, SETTINGS.changed(memory="10 kB"), tmp_path / "out", title="big")
    assert list(tmp_path.iterdir()) == []


def test_overconfident_probabilities_are_warned_of(case: Case) -> None:
    assert overconfidence(case, SETTINGS) is None
    sure = np.zeros_like(case.probabilities)
    sure[0] = 1.0
    overconfident = replace(case, probabilities=sure)
    warning = overconfidence(overconfident, SETTINGS.changed(temperature=1.0))
    assert warning is not None
    assert "above 0.999 in 100.0 % of the voxels" in warning
    assert "a temperature above 1, such as 2" in warning
    assert overconfidence(overconfident, SETTINGS.changed(temperature=2.0)) is None


def test_bids_names_keep_subjects_apart(case: Case, folder: Path, tmp_path: Path) -> None:
    dataset = tmp_path / "derivatives"
    first = run_case(case, SETTINGS, dataset, title="x", bids=BidsNames("01", "pre"))
    labels = dataset / "sub-01" / "ses-pre" / "anat"
    assert first.files["labels"].parent == labels
    assert first.files["labels"].read_bytes() == (folder / "labels.nii.gz").read_bytes()
    assert (dataset / "dataset_description.json").is_file()
    run_case(case, SETTINGS, dataset, title="x", bids=BidsNames("02"))
    assert (dataset / "sub-02" / "state" / "run.json").is_file()
    with pytest.raises(OutputError, match=r"must be an empty folder, got .*sub-02, which is not"):
        run_case(case, SETTINGS, dataset, title="x", bids=BidsNames("02"))
    run_case(case, SETTINGS, dataset, title="x", bids=BidsNames("02"), resume=True)


def test_the_room_that_is_planned_is_not_less_than_what_is_taken(case: Case, folder: Path) -> None:
    taken = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    assert taken < planned_bytes(case, SETTINGS) < taken + 200e6


def test_spreads_are_those_of_a_sample_from_a_law(folder: Path, posterior: pm.Posterior) -> None:
    summary = json.loads((folder / "summary.json").read_text())
    spread_ml = (posterior.volumes / 1000).std(axis=0, ddof=1)  # (L,)
    found = [row["sampled_sd_ml"] for row in summary["labels"]]
    assert found == pytest.approx(spread_ml.tolist(), rel=1e-12)


def test_maps_can_be_the_mean_fields_and_volumes_the_samples(
    case: Case, posterior: pm.Posterior, tmp_path: Path
) -> None:
    run = run_case(case, SETTINGS.changed(marginals="mean_field"), tmp_path / "out", title="mf")
    assert run.posterior == posterior  # the samples are those of any other run
    marginals = posterior.estimate_marginals("mean_field")
    np.testing.assert_array_equal(run.marginals, marginals.astype(np.float32))
    np.testing.assert_array_equal(run.labels, marginals.argmax(axis=0) * case.mask)
    uncertain = (1 - marginals.max(axis=0) > 0.05) & case.mask
    np.testing.assert_array_equal(run.uncertainty == 2, uncertain)
    assert set(np.unique(run.uncertainty)) == {0, 2}
    assert run.entropy_after == {}
    assert run.summary["marginals"] == "mean_field"
    page = (tmp_path / "out" / "report.html").read_text()
    assert "other labels are likely too" in " ".join(page.split())
    assert "How the map settles" not in page
    np.testing.assert_array_equal(load_run(tmp_path / "out").labels, run.labels)


def test_conditional_maps_need_their_estimator() -> None:
    with pytest.raises(ValueError, match='marginals "conditional" needs estimator "conditional"'):
        SETTINGS.changed(marginals="conditional")


def test_the_default_correlation_length_is_the_radius_of_what_is_found(
    case: Case, tmp_path: Path
) -> None:
    run = run_case(case, RunSettings().changed(samples=8), tmp_path / "a", title="defaults")
    voxel_mm3 = float(np.prod(case.geometry.spacing))
    expected_mm3 = float(case.probabilities[1:, case.mask].sum()) * voxel_mm3
    radius = np.cbrt(3 * expected_mm3 / (4 * np.pi))
    assert run.settings.sampling.noise_length == pytest.approx(radius, abs=0.051)
    assert run.summary["intervals"] == {
        "rest_on": "assumed",
        "learned_cases": 0,
        "note": None,
    }
    page = " ".join((tmp_path / "a" / "report.html").read_text().split())
    assert "Intervals are 95 % and assumed" in page
    learned = RunSettings().changed(samples=8, noise_length=5.0, learned_cases=11, note="shown")
    again = run_case(case, learned, tmp_path / "b", title="learned")
    assert again.summary["intervals"] == {
        "rest_on": "learned",
        "learned_cases": 11,
        "note": "shown",
    }
    page = " ".join((tmp_path / "b" / "report.html").read_text().split())
    assert "learned from 11 labelled cases" in page


def test_the_papers_noise_shows_no_interval_on_the_front_page(folder: Path) -> None:
    page = (folder / "report.html").read_text()
    head = page[: page.index('<section id="slices"')] if '<section id="slices"' in page else page
    assert not re.search(r" ml \([\d.]", head)
    assert "No intervals are given" in " ".join(head.split())


@pytest.mark.parametrize("ending", [".nrrd", ".mha", ".mgz"])
def test_outputs_have_the_format_of_the_images(case: Case, tmp_path: Path, ending: str) -> None:
    expected = tmp_path / "nifti"
    run_case(case, SETTINGS.changed(samples=4), expected, title="x")
    other = replace(case, geometry=replace(case.geometry, ending=ending))
    finished = run_case(other, SETTINGS.changed(samples=4), tmp_path / "out", title="x")
    for name in ("labels", "marginals", "entropy", "uncertainty"):
        written = read_volume(Source("image", tmp_path / "out" / f"{name}{ending}"))
        nifti = read_volume(Source("image", expected / f"{name}.nii.gz"))
        np.testing.assert_array_equal(written.voxels, nifti.voxels)
        np.testing.assert_allclose(written.geometry.affine, nifti.geometry.affine, atol=1e-5)
    assert finished.files["labels"].name == f"labels{ending}"
    again = load_run(tmp_path / "out")
    assert again.case.geometry.ending == ending
    assert again.files["entropy"].exists()
