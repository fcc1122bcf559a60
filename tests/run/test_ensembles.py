"""Several whole distributions are an ensemble: their mean, their disagreement, their samples."""

from __future__ import annotations

import json
import math
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from helpers import small_case
from perturb_mpm.files import Case, InputError, read_case
from perturb_mpm.run import RunSettings, SettingsError, build_crf, load_run, run_case
from perturb_mpm.sampling import Sampler

SETTINGS = RunSettings().changed(samples=30, seed=5)
UNCOUPLED = SETTINGS.changed(kernels=(), noise_length=0.0)


def member(seed: int) -> np.ndarray:
    """(L, X, Y, Z)."""
    rng = np.random.default_rng(seed)
    p = small_case.probabilities() * np.exp(rng.normal(0, 1.0, (3, *small_case.SHAPE)))
    return np.asarray(p / p.sum(axis=0), dtype=np.float32)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ensemble")
    small_case.write_files(folder)
    for number in range(3):
        small_case.save(folder / f"fold{number}.nii.gz", np.moveaxis(member(number), 0, -1))
    return folder


def read(files: Path, count: int = 3, *, keep: bool = False) -> Case:
    folds = [files / f"fold{number}.nii.gz" for number in range(count)]
    return read_case(files / "t1.nii.gz", folds, keep_members=keep)


def bits(p: np.ndarray) -> np.ndarray:
    return -(p * np.log2(p)).sum(axis=0)


def test_the_mean_is_the_unary_and_their_information_a_map(files: Path) -> None:
    case = read(files)
    each = np.stack([member(number) for number in range(3)]).astype(np.float64)
    mean = each.mean(axis=0)
    np.testing.assert_allclose(case.probabilities, mean, atol=1e-6)
    assert case.ensemble is not None
    assert case.ensemble.count == 3
    assert case.ensemble.members is None
    expected = bits(mean) - np.mean([bits(one) for one in each], axis=0)
    np.testing.assert_allclose(case.ensemble.mutual_information, expected, atol=1e-5)
    assert len(case.hashes) == 4
    kept = read(files, keep=True).ensemble
    assert kept is not None
    assert kept.members is not None
    np.testing.assert_allclose(kept.members, each, atol=1e-6)


def test_members_that_contradict_each_other_say_one_bit(tmp_path: Path) -> None:
    small_case.write_files(tmp_path)
    sure = np.zeros((2, 3, *small_case.SHAPE), dtype=np.float32)
    sure[0, 0], sure[1, 1] = 1, 1  # two members, certain of different labels
    sure[1, 0, 6:], sure[1, 1, 6:] = 1, 0  # and here of the same
    for number, one in enumerate(sure):
        small_case.save(tmp_path / f"m{number}.nii.gz", np.moveaxis(one, 0, -1))
    case = read_case(tmp_path / "t1.nii.gz", [tmp_path / "m0.nii.gz", tmp_path / "m1.nii.gz"])
    assert case.ensemble is not None
    np.testing.assert_allclose(case.ensemble.mutual_information[:6], 1.0)
    np.testing.assert_allclose(case.ensemble.mutual_information[6:], 0.0)


def test_one_file_and_one_file_a_label_are_no_ensemble(files: Path, tmp_path: Path) -> None:
    assert read(files, 1).ensemble is None
    for label, one in enumerate(member(0)):
        small_case.save(tmp_path / f"p{label}.nii.gz", one)
    paths = [tmp_path / f"p{label}.nii.gz" for label in range(3)]
    single = read_case(files / "t1.nii.gz", paths)
    assert single.ensemble is None
    np.testing.assert_allclose(single.probabilities, member(0), atol=1e-6)


def test_members_that_do_not_fit_together(files: Path, tmp_path: Path) -> None:
    small_case.save(tmp_path / "two.nii.gz", np.full((*small_case.SHAPE, 2), 0.5, np.float32))
    image = files / "t1.nii.gz"
    with pytest.raises(InputError, match=r"two.nii.gz: must have the 3 labels of .*fold0.nii.gz"):
        read_case(image, [files / "fold0.nii.gz", tmp_path / "two.nii.gz"])
    with pytest.raises(InputError, match=r"`probabilities` .*t1.nii.gz: "):
        read_case(image, [files / "fold0.nii.gz", image])


def test_every_output_tells_of_the_ensemble(files: Path, tmp_path: Path) -> None:
    case = read(files)
    run = run_case(case, SETTINGS.changed(samples=4), tmp_path / "o", title="t")
    written = nib.load(run.files["mutual_information"]).get_fdata()
    assert case.ensemble is not None
    np.testing.assert_allclose(written, case.ensemble.mutual_information * case.mask, atol=1e-6)
    assert run.summary["ensemble"]["members"] == 3
    assert run.summary["files"]["mutual_information"] == "mutual_information.nii.gz"
    assert "mean of 3 members" in run.files["report"].read_text()
    again = load_run(run.folder).case.ensemble
    assert again is not None
    assert again.count == 3
    np.testing.assert_array_equal(again.mutual_information[case.mask], written[case.mask])
    alone = run_case(read(files, 1), SETTINGS.changed(samples=4), tmp_path / "a", title="t")
    assert not (tmp_path / "a" / "mutual_information.nii.gz").exists()
    assert alone.summary["ensemble"] is None
    assert 'id="ensemble"' not in alone.files["report"].read_text()


def test_sample_s_is_drawn_with_member_s_mod_m(files: Path, tmp_path: Path) -> None:
    case = read(files, keep=True)
    run = run_case(case, UNCOUPLED.changed(samples=9, members="cycle"), tmp_path / "o", title="t")
    assert run.first_samples is not None
    for sample, labels in enumerate(run.first_samples):
        alone = read(files, 3, keep=True)
        only = Case(**{**vars(alone), "probabilities": member(sample % 3), "ensemble": None})
        sampler = Sampler(build_crf(only, UNCOUPLED), UNCOUPLED.sampling, UNCOUPLED.compute)
        votes = sampler.draw(range(sample, sample + 1)).voxel_counts  # (L, N), of one sample
        # Half precision on one way and not on the other may break a tie.
        assert (votes.argmax(axis=0) != labels).mean() < 0.005


def test_votes_of_a_cycle_follow_the_mean(files: Path, tmp_path: Path) -> None:
    case = read(files, keep=True)
    settings = UNCOUPLED.changed(samples=600, members="cycle", marginals="votes")
    run = run_case(case, settings, tmp_path / "o", title="t")
    votes = run.posterior.voxel_marginals("votes")
    expected = run.posterior.grid.gather(case.probabilities)
    error = np.abs(votes - expected).mean()
    each = np.stack([run.posterior.grid.gather(member(number)) for number in range(3)])
    # A third of the samples from each member: their variances are averaged.
    chance = np.sqrt(2 / math.pi * (each * (1 - each)).mean(axis=0) / 600).mean()
    assert error == pytest.approx(chance, rel=0.05)
    assert np.abs(votes - each[0]).mean() > 3 * chance  # one member alone would be seen


def test_a_cycle_depends_on_no_batch_and_goes_on_after_a_stop(files: Path, tmp_path: Path) -> None:
    case = read(files, keep=True)
    settings = SETTINGS.changed(members="cycle", batch=4)
    whole = run_case(case, settings, tmp_path / "whole", title="t")
    run_case(case, settings.changed(batch=7), tmp_path / "other", title="t")
    names = [*small_case.SAME_BYTES, "mutual_information.nii.gz"]
    before = small_case.content(whole.folder, names)
    assert small_case.content(tmp_path / "other", names) == before
    half = run_case(case, settings.changed(samples=13), tmp_path / "half", title="t")
    for name in ("posterior.npz", "samples.npz", "snapshots.npz"):
        (whole.state / name).write_bytes((half.state / name).read_bytes())
    whole.files["summary"].unlink()
    run_case(case, settings, whole.folder, title="t", resume=True)
    assert small_case.content(whole.folder, names) == before
    mean = run_case(case, SETTINGS, tmp_path / "mean", title="t")
    assert (mean.files["volumes"]).read_bytes() != before["volumes.csv"]


def test_a_cycle_needs_members_and_votes(files: Path, tmp_path: Path) -> None:
    cycle = SETTINGS.changed(members="cycle")
    with pytest.raises(SettingsError, match='`members="cycle"` needs several whole'):
        run_case(read(files, 1), cycle, tmp_path / "o", title="t")
    conditional = cycle.changed(estimator="conditional")
    with pytest.raises(SettingsError, match='members need estimator "votes"'):
        run_case(read(files, keep=True), conditional, tmp_path / "o", title="t")
    assert not (tmp_path / "o").exists()


def test_the_command_takes_members(files: Path, tmp_path: Path) -> None:
    folds = [str(files / f"fold{number}.nii.gz") for number in range(3)]
    start = ["run", "--image", str(files / "t1.nii.gz"), "--probabilities", *folds]
    out = tmp_path / "out"
    rest = ["--samples", "3", "--members", "cycle", "--quiet", "--output", str(out)]
    assert small_case.call(*start, *rest) == 0
    summary = json.loads((out / "summary.json").read_text())
    assert summary["ensemble"]["samples_from"] == "cycle"
    assert summary["parameters"]["members"] == "cycle"
