"""Random fields chosen by scores of volumes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import perturb_mpm as pm
from lab.segmentation.summary import normal_crps
from perturb_mpm.engines import prepare
from perturb_mpm.learning.fields import (
    NO_FIELDS,
    FieldScore,
    FieldSetting,
    best_setting,
    learn_fields,
    log_volume,
    score,
)
from perturb_mpm.sampling import Sampling

REGIONS = {"both": (1, 2), "second": (2,)}
WIDE = FieldSetting(math.inf, 2.0, 1.0)


def blob(seed: int, shift: float) -> tuple[pm.DenseCRF, NDArray[np.int64]]:
    """A disc of two labels whose unaries prefer foreground by ``shift`` nats too much."""
    rng = np.random.default_rng(seed)
    place = np.indices((24, 24)) - 11.5
    radius = np.sqrt((place**2).sum(axis=0))
    truth = np.where(radius < 4, 2, np.where(radius < 8, 1, 0))
    logits = np.stack([radius - 8, np.minimum(8 - radius, radius - 4), 4 - radius]) / 2.0
    logits += rng.normal(0, 0.3, logits.shape)
    logits[1:] += shift
    return pm.DenseCRF(pm.unary_from_logits(logits), [pm.SpatialKernel(2.0, 0.5)]), truth


def test_a_setting_is_a_shared_field_and_one_for_each_label() -> None:
    fields = FieldSetting(30.0, 1.5, 0.5).fields(4)
    assert [each.labels for each in fields] == [(1, 2, 3), (1,), (2,), (3,)]
    assert [each.scale for each in fields] == [1.5, 0.5, 0.5, 0.5]
    assert {each.length_mm for each in fields} == {30.0}
    each = FieldSetting(30.0, 0.0, (1.0, 0.0, 2.0)).fields(4)
    assert [(field.labels, field.scale) for field in each] == [((1,), 1.0), ((3,), 2.0)]
    assert NO_FIELDS.fields(4) == ()
    with pytest.raises(ValueError, match=r"one for each label but 0 \(3\), got 2"):
        FieldSetting(30.0, 0.0, (1.0, 2.0)).fields(4)


def test_a_score_is_that_of_the_samples_of_pm_sample() -> None:
    crf, truth = blob(0, 0.0)
    solver = prepare(crf, compact=True)
    found = score(crf, solver, truth, REGIONS, WIDE, Sampling(samples=12, iterations=3, seed=5))
    posterior = pm.sample(crf, 12, 5, iterations=3, fields=WIDE.fields(3))
    np.testing.assert_allclose(found.volumes_ml, posterior.volumes / 1000.0)
    shares = (posterior.counts + 0.5) / (12 + 1.5)  # (L, X, Y)
    own = np.take_along_axis(shares, truth[np.newaxis], axis=0)
    assert found.log_score == pytest.approx(-np.log(own).mean())
    x = log_volume(posterior.volumes[:, 2] / 1000.0)
    y = log_volume(np.count_nonzero(truth == 2) / 1000.0)
    spread = np.abs(x[:, np.newaxis] - x).mean() / 2
    low, high = np.quantile(posterior.volumes[:, 2] / 1000.0, [0.025, 0.975])
    assert found.inside["second"] == (low <= np.count_nonzero(truth == 2) / 1000.0 <= high)
    assert found.crps["second"] == pytest.approx(np.abs(x - y).mean() - spread)


@pytest.mark.parametrize(
    "changes",
    [
        {"estimator": "conditional", "noise_scale": 0.3},
        {"noise_scale": 0.4},
        {"start": "warm"},
        {"antithetic": True},
    ],
)
def test_a_score_follows_the_law_of_sampling(changes: dict[str, Any]) -> None:
    crf, truth = blob(1, 0.0)
    law = {"samples": 6, "seed": 5, "iterations": 3, **changes}
    found = score(crf, prepare(crf, compact=True), truth, REGIONS, WIDE, Sampling(**law))
    posterior = pm.sample(crf, **law, fields=WIDE.fields(3))
    np.testing.assert_allclose(found.volumes_ml, posterior.volumes / 1000.0)
    kind = changes.get("estimator", "votes")
    shares = (posterior.marginals_of(kind) * 6 + 0.5) / (6 + 1.5)  # (L, X, Y)
    own = np.take_along_axis(shares, truth[np.newaxis], axis=0)
    assert found.log_score == pytest.approx(-np.log(own).mean(), rel=1e-6)


def test_biased_unaries_ask_for_fields_and_unbiased_ones_for_less() -> None:
    # One disc too large, the next too small: only a common offset makes up for that. Large voxels,
    # so that one ml more or less matters.
    cases = [blob(seed, shift) for seed, shift in enumerate((2.5, -2.5, 2.0, -2.0))]
    big = [(enlarged(crf), truth) for crf, truth in cases]
    crfs, truths = [crf for crf, _ in big], [truth for _, truth in big]
    few = Sampling(samples=24, iterations=3)
    found = learn_fields(crfs, truths, REGIONS, settings=[WIDE], sampling=few)
    assert found.setting == WIDE
    exact = [blob(seed, 0.0) for seed in range(3)]
    unbiased = learn_fields(
        [enlarged(crf) for crf, _ in exact],
        [truth for _, truth in exact],
        REGIONS,
        settings=[FieldSetting(math.inf, 6.0, 6.0)],
        sampling=few,
    )
    assert unbiased.setting == NO_FIELDS
    assert unbiased.fields == ()


def enlarged(crf: pm.DenseCRF) -> pm.DenseCRF:
    return pm.DenseCRF(
        crf.grid.scatter(crf.energies, 0.0), [pm.SpatialKernel(20.0, 0.5)], spacing=10.0
    )


def test_volumes_choose_voxels_veto_and_intervals_must_hold() -> None:
    other, third = FieldSetting(20.0, 1.0, 0.0), FieldSetting(20.0, 2.0, 0.0)

    def row(*found: tuple[float, float, bool]) -> list[FieldScore]:
        settings = (NO_FIELDS, other, third)
        return [
            FieldScore(setting, np.empty((0, 3)), {"all": volumes}, {"all": held}, voxels)
            for setting, (volumes, voxels, held) in zip(settings, found, strict=True)
        ]

    none = (1.0, 0.5, False)
    # The last predicts volumes best, but is worse voxel by voxel than no fields at all.
    assert best_setting([row(none, (0.5, 0.5, True), (0.4, 0.6, True))]) == other
    assert best_setting([row(none, (0.5, 0.5, True), (0.4, 0.45, True))]) == third
    # It predicts volumes best, but its interval does not hold the truth.
    assert best_setting([row(none, (0.5, 0.5, True), (0.4, 0.45, False))]) == other
    # Where no interval does, volumes choose.
    assert best_setting([row(none, (0.5, 0.5, False), (0.4, 0.45, False))]) == third
    assert best_setting([row(none, (1.5, 0.5, False), (1.2, 0.5, False))]) == NO_FIELDS


def test_the_crps_of_a_normal_is_that_of_many_samples_of_it() -> None:
    x = np.random.default_rng(0).normal(2.0, 0.7, size=4000)
    spread = np.abs(np.subtract.outer(x[:2000], x[2000:])).mean() / 2
    wanted = np.abs(x - 3.1).mean() - spread
    assert normal_crps(2.0, 0.7, 3.1) == pytest.approx(wanted, abs=0.02)
    assert normal_crps(2.0, 0.0, 3.1) == pytest.approx(1.1)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"crfs": []}, "crfs and truths must be as many"),
        ({"truths": []}, "crfs and truths must be as many"),
        ({"truths": [np.full((24, 24), 7)]}, "truths must lie between 0 and 2"),
        ({"sampling": Sampling(samples=1)}, "samples must be at least 2"),
    ],
)
def test_bad_input_is_refused(changes: dict[str, Any], words: str) -> None:
    crf, truth = blob(0, 0.0)
    good: dict[str, Any] = {"crfs": [crf], "truths": [truth], "regions": REGIONS}
    with pytest.raises(ValueError, match=words):
        learn_fields(**{**good, **changes})
