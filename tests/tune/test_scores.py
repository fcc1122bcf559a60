"""Scores of volumes, and the plain baselines they are compared with."""

from __future__ import annotations

import math

import numpy as np
import pytest

from perturb_mpm.biomarkers import ConformalWidening
from perturb_mpm.tune.baselines import Residuals
from perturb_mpm.tune.scores import score_volume


def test_a_volume_is_scored_as_by_hand() -> None:
    found = score_volume(np.array([0.9, 1.9]), 0.9)
    # log 1 = 0 and log 2: E|X − y| = log 2 / 2, half of E|X − X'| is log 2 / 4.
    assert found.crps == pytest.approx(math.log(2) / 4)
    assert found.inside is False
    assert found.widen(ConformalWidening(0.1, 0.1, 0.95, cases=19)).inside


def test_residuals_move_a_volume_by_what_others_missed() -> None:
    past = Residuals((0.0, math.log(2)))
    np.testing.assert_allclose(past.shift(0.9), [0.9, 1.9])
    normal = past.normal(0.9)
    assert np.median(normal) == pytest.approx(math.sqrt(2) - 0.1, rel=0.01)
