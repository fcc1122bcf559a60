"""Priors, temperature, overlap and calibration error against closed forms."""

from __future__ import annotations

import numpy as np
import pytest

from perturb_mpm.evaluation import dice
from perturb_mpm.segmenter.calibration import (
    Calibration,
    HeldOut,
    calibration_error,
    fit_calibration,
    log_loss,
)
from perturb_mpm.segmenter.training import EnsembleSettings, label_shares


def gaussian_patient(
    seed: int, voxels: int, rare: float, sharpen: float = 1.0
) -> tuple[HeldOut, np.ndarray]:
    """Return a patient whose two labels are known by Bayes' rule, as balanced training sees them.

    Label 1 has the share ``rare``. The answers are the posterior under equal shares, taken to the
    power ``sharpen``; the second value is the true posterior of label 1.
    """
    rng = np.random.default_rng(seed)
    labels = (rng.random(voxels) < rare).astype(np.uint8)
    evidence = rng.normal(loc=2.0 * labels - 1.0)
    odds = np.exp(2.0 * evidence)  # of the two likelihoods
    answers = np.stack([1 / (1 + odds**sharpen), odds**sharpen / (1 + odds**sharpen)], axis=1)
    true = odds * rare / (odds * rare + 1 - rare)
    return HeldOut(answers.astype(np.float32), labels), true


def test_the_full_prior_gives_the_true_posterior() -> None:
    patient, true = gaussian_patient(0, 5000, rare=0.1)
    found = Calibration((0.9 / 0.5, 0.1 / 0.5), exponent=1.0).apply(patient.probabilities)
    assert np.allclose(found[:, 1], true, atol=1e-3)
    assert np.allclose(found.sum(axis=1), 1)


def test_nothing_to_put_right_changes_nothing() -> None:
    patient, _ = gaussian_patient(0, 500, rare=0.5)
    found = Calibration((0.5, 3.0)).apply(patient.probabilities)
    assert np.allclose(found, patient.probabilities, atol=1e-5)


def test_temperature_undoes_overconfidence() -> None:
    patient, _ = gaussian_patient(1, 40_000, rare=0.5, sharpen=2.5)
    found = fit_calibration([patient], (1.0, 1.0))
    assert found.temperature == pytest.approx(2.5, rel=0.05)
    before, after = Calibration((1.0, 1.0)), found
    assert log_loss([patient], after) < log_loss([patient], before)
    errors = [calibration_error(patient, each) for each in (before, after)]
    assert errors[0] > 0.05
    assert errors[1] < 0.01


def test_the_power_of_the_prior_is_the_one_with_the_best_overlap() -> None:
    patients = [gaussian_patient(seed, 20_000, rare=0.05)[0] for seed in range(2)]
    ratio = (0.95 / 0.5, 0.05 / 0.5)
    found = fit_calibration(patients, ratio)
    chosen = found.prior_power
    assert found.without_temperature() == Calibration(ratio, chosen)

    def overlap(exponent: float) -> float:
        calibration = Calibration(ratio, exponent)
        found = [calibration.apply(p.probabilities).argmax(axis=1) == 1 for p in patients]
        return float(np.mean([dice(f, p.labels == 1) for f, p in zip(found, patients)]))

    assert 0 < chosen < 1
    # The temperature changes no label.
    for patient in patients:
        labels = [
            c.apply(patient.probabilities).argmax(axis=1)
            for c in (found, found.without_temperature())
        ]
        assert np.array_equal(*labels)
    assert overlap(chosen) >= max(overlap(0.0), overlap(1.0), overlap(0.4), overlap(0.6))


def test_a_patient_without_tumour_wants_none() -> None:
    healthy = HeldOut(np.tile(np.float32([0.45, 0.55]), (50, 1)), np.zeros(50, np.uint8))
    assert fit_calibration([healthy], (1.9, 0.1)).prior_power > 0


def test_bad_calibrations_are_refused() -> None:
    for arguments in (((1.0, 0.0),), ((1.0,), -0.1), ((1.0,), 0.5, 0.0)):
        with pytest.raises(ValueError, match="must be"):
            Calibration(*arguments)


def test_voxels_are_drawn_of_every_label_there_is() -> None:
    labels = np.repeat(np.uint8([0, 1, 3]), [1000, 40, 5])
    settings = EnsembleSettings(label_voxels=20, background_voxels=100)
    drawn = settings.draw_voxels(labels, 4, np.random.default_rng(0))
    assert np.bincount(labels[drawn], minlength=4).tolist() == [100, 20, 0, 5]
    assert len(set(drawn.tolist())) == len(drawn)
    again = settings.draw_voxels(labels, 4, np.random.default_rng(0))
    assert np.array_equal(drawn, again)
    assert label_shares(labels, 4)[1] == 40 / 1045
    with pytest.raises(ValueError, match="label_voxels must be at least 1"):
        EnsembleSettings(label_voxels=0)
