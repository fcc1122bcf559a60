"""Calibration and scores: by hand, and as TorchMetrics, torch-uncertainty and netcal have them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from perturb_mpm.evaluation import (
    reliability as calibration,
)
from perturb_mpm.evaluation import risk_coverage


def test_calibration_by_hand() -> None:
    curve = calibration.reliability([0.1, 0.15, 0.9, 1.0], [False, True, True, True], bins=2)
    assert curve.confidence == pytest.approx([0.125, 0.95])
    assert curve.accuracy == pytest.approx([0.5, 1.0])
    assert curve.expected_error == pytest.approx((0.375 + 0.05) / 2)
    assert curve.average_error == pytest.approx((0.375 + 0.05) / 2)
    assert curve.largest_error == pytest.approx(0.375)


def test_votes_on_the_edge_of_a_bin_fall_into_the_upper_one() -> None:
    votes = np.arange(101) / 100
    curve = calibration.reliability(votes, np.zeros(101, dtype=bool), bins=100)
    assert curve.voxels[:99].tolist() == [1] * 99
    assert curve.voxels[99] == 2  # 0.99 and 1


def test_pooled_curves_are_those_of_all_voxels() -> None:
    generator = np.random.default_rng(2)
    p = generator.random(300)
    event = generator.random(300) < p
    first = calibration.reliability(p[:100], event[:100], 10)
    whole = calibration.reliability(p, event, 10)
    pooled = first.merge(calibration.reliability(p[100:], event[100:], 10))
    assert pooled.expected_error == pytest.approx(whole.expected_error)


def test_calibration_without_voxels() -> None:
    nothing = calibration.reliability(np.zeros(0), np.zeros(0, dtype=bool), 10)
    assert math.isnan(nothing.expected_error)
    assert math.isnan(nothing.average_error)
    assert math.isnan(nothing.largest_error)


def test_scores_by_hand() -> None:
    marginals = np.array([[1.0, 0.5], [0.0, 0.5]])
    truth = np.array([1, 0])
    assert calibration.brier(marginals, truth) == pytest.approx((2 + 0.5) / 2)
    expected = -(math.log(0.5 / 11) + math.log(5.5 / 11)) / 2
    assert calibration.negative_log_likelihood(marginals, truth, 10) == pytest.approx(expected)
    assert calibration.negative_log_likelihood(marginals, truth, None) == math.inf
    with pytest.raises(ValueError, match="truth must lie between 0 and 1"):
        calibration.brier(marginals, np.array([0, 2]))


def overconfident(seed: int = 3, n: int = 2000) -> tuple[np.ndarray, np.ndarray]:
    """Return marginals (3, n) that are too sure of themselves, and a truth (n,)."""
    generator = np.random.default_rng(seed)
    p = generator.dirichlet([2.0, 1.5, 1.0], size=n).T  # never 1, which some put into a bin apart
    truth = (generator.random(n) > np.cumsum(p, axis=0)[:2]).sum(axis=0)
    sure = p**2 / (p**2).sum(axis=0)
    return sure, truth


def test_top_label_calibration_as_torchmetrics() -> None:
    torch = pytest.importorskip("torch")
    functional = pytest.importorskip("torchmetrics.functional.classification")
    p, truth = overconfident()
    curve = calibration.top_label(p, truth)
    for norm, ours in (("l1", curve.expected_error), ("max", curve.largest_error)):
        theirs = functional.multiclass_calibration_error(
            torch.tensor(p.T), torch.tensor(truth), num_classes=3, n_bins=15, norm=norm
        )
        assert ours == pytest.approx(float(theirs), abs=1e-6)
    assert curve.expected_error > 0.05


@pytest.mark.filterwarnings("ignore")  # what its own dependencies have to say
def test_calibration_scores_and_risk_as_torch_uncertainty() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    pytest.importorskip("torch_uncertainty", reason="torch-uncertainty is not installed")
    from torch_uncertainty.metrics import classification as theirs

    p, truth = overconfident()
    given = torch.tensor(p.T), torch.tensor(truth)
    curve = calibration.top_label(p, truth)
    labels = calibration.class_wise(p, truth)
    risk = risk_coverage(p.max(axis=0), p.argmax(axis=0) != truth).risk
    trapezoids = (risk[1:] + risk[:-1]).mean() / 2  # where our AURC is the mean of the curve
    for metric, ours in (
        (theirs.CalibrationError("multiclass", num_bins=15, num_classes=3), curve.expected_error),
        (
            theirs.CalibrationError("multiclass", num_bins=15, num_classes=3, norm="max"),
            curve.largest_error,
        ),
        (
            theirs.ClasswiseCalibrationError(3, num_bins=20),
            np.mean([each.expected_error for each in labels]),
        ),
        (theirs.BrierScore(3), calibration.brier(p, truth)),
        (theirs.CategoricalNLL(), calibration.negative_log_likelihood(p, truth, None)),
        (theirs.AURC(), trapezoids),
    ):
        assert float(metric(*given)) == pytest.approx(ours, rel=1e-5), metric


@pytest.mark.filterwarnings("ignore")  # what its own dependencies have to say
@pytest.mark.parametrize("seed", range(3))
def test_calibration_as_netcal(seed: int) -> None:
    theirs = pytest.importorskip("netcal.metrics", reason="netcal is not installed")
    p, truth = overconfident(seed)
    curve = calibration.top_label(p, truth)
    for metric, ours in (
        (theirs.ECE, curve.expected_error),
        (theirs.ACE, curve.average_error),
        (theirs.MCE, curve.largest_error),
    ):
        assert metric(calibration.TOP_LABEL_BINS).measure(p.T, truth) == pytest.approx(ours)
