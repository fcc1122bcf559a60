"""A perfect uncertainty, a useless one and an inverted one are ranked so by every measure."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perturb_mpm.evaluation import (
    auroc,
    detection_curve,
    error_overlap,
    filtered_curve,
    generalized_energy_distance,
    matched_iou,
    patch_counts,
    rater_correlation,
    risk_coverage,
)
from perturb_mpm.evaluation import (
    reliability as calibration,
)

Measure = Callable[[np.ndarray, np.ndarray, np.ndarray], float]
N = 4000


def filtered_score(u: np.ndarray, predicted: np.ndarray, true: np.ndarray) -> float:
    return filtered_curve(predicted, true, 100 * u).score


def confidence_brier(u: np.ndarray, predicted: np.ndarray, true: np.ndarray) -> float:
    p = np.where(predicted, 1 - u / 2, u / 2)
    return -calibration.brier(np.stack([1 - p, p]), true.astype(int))


def log_score(u: np.ndarray, predicted: np.ndarray, true: np.ndarray) -> float:
    p = np.where(predicted, 1 - u / 2, u / 2)
    return -calibration.negative_log_likelihood(np.stack([1 - p, p]), true.astype(int), 200)


def pavpu(u: np.ndarray, predicted: np.ndarray, true: np.ndarray) -> float:
    return patch_counts(u, predicted == true, np.ones(N, dtype=bool), 0.5, width=1).pavpu


MEASURES: dict[str, Measure] = {
    "auroc": lambda u, p, t: auroc(u, p != t),
    "average precision": lambda u, p, t: detection_curve(u, p != t).average_precision,
    "sensitivity at 80 %": lambda u, p, t: detection_curve(u, p != t).sensitivity_at(0.8),
    "error overlap": lambda u, p, t: error_overlap(u, p != t).best,
    "filtered score": filtered_score,
    "brier": confidence_brier,
    "log score": log_score,
    "pavpu": pavpu,
}


@pytest.mark.parametrize("name", MEASURES)
@settings(max_examples=15, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10_000), error_rate=st.floats(0.05, 0.4))
def test_perfect_useless_inverted(name: str, seed: int, error_rate: float) -> None:
    generator = np.random.default_rng(seed)
    true = generator.random(N) < 0.4
    wrong = generator.random(N) < error_rate
    predicted = true ^ wrong
    perfect = (wrong + generator.random(N)) / 2
    useless = generator.permutation(perfect)
    measure = MEASURES[name]
    best, middle, worst = (measure(u, predicted, true) for u in (perfect, useless, 1 - perfect))
    assert best > middle > worst


@settings(max_examples=15, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10_000))
def test_confidence_in_images(seed: int) -> None:
    generator = np.random.default_rng(seed)
    risk = generator.random(40)
    best, middle, worst = (
        risk_coverage(confidence, risk).aurc for confidence in (-risk, generator.random(40), risk)
    )
    assert best < middle < worst


@settings(max_examples=15, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10_000))
def test_samples_like_the_raters_are_better_than_others(seed: int) -> None:
    generator = np.random.default_rng(seed)
    position = np.linspace(-1, 1, 300)

    def drawn(shift: float, spread: float, count: int) -> np.ndarray:
        radii = 0.5 + shift + spread * generator.normal(size=count)
        return np.abs(position) < radii[:, np.newaxis]

    raters = drawn(0.0, 0.08, 4)
    alike, shifted = drawn(0.0, 0.08, 16), drawn(0.35, 0.08, 16)
    assert generalized_energy_distance(alike, raters) < generalized_energy_distance(shifted, raters)
    assert matched_iou(alike, raters) > matched_iou(shifted, raters)
    spread = raters.std(axis=0)
    useless = generator.permutation(spread)
    correlations = [rater_correlation(u, raters) for u in (spread, useless, -spread)]
    assert correlations[0] > correlations[1] > correlations[2]
