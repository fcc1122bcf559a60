"""One case from prediction to rows: the right numbers, and what is not defined."""

from __future__ import annotations

import math

import numpy as np
import pytest

import perturb_mpm as pm
from perturb_mpm.evaluation import (
    ALL,
    Measurement,
    default_regions,
    evaluate_case,
    from_marginals,
    from_posterior,
    from_samples,
    summarise,
)
from perturb_mpm.evaluation.case import domain_mask

SHAPE = (6, 5, 4)


def sampled(seed: int = 0, samples: int = 8, labels: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).integers(labels, size=(samples, *SHAPE))


def value(rows: list[Measurement], metric: str, region: str, domain: str = "brain") -> float:
    found = [r for r in rows if (r.metric, r.region, r.domain) == (metric, region, domain)]
    assert len(found) == 1
    return found[0].value


def test_samples_are_counted() -> None:
    maps = sampled()
    prediction = from_samples(maps, 3, (1.0, 1.0, 2.0))
    expected = np.stack([(maps == label).mean(axis=0).ravel() for label in range(3)])
    assert prediction.marginals == pytest.approx(expected)
    assert prediction.volumes_mm3 is not None
    assert prediction.volumes_mm3[2, 1] == 2 * (maps[2] == 1).sum()
    ml = prediction.region_volumes_ml((1, 2))
    assert ml is not None
    assert ml[0] == pytest.approx(2 * (maps[0] > 0).sum() / 1000)


def test_a_posterior_gives_three_predictions_of_one_segmentation() -> None:
    generator = np.random.default_rng(1)
    p = generator.dirichlet([1, 1, 1], size=SHAPE).transpose(3, 0, 1, 2)
    crf = pm.DenseCRF(
        unary=pm.unary_from_probabilities(p),
        kernels=[pm.SpatialKernel(sigma=1.0, weight=1.0)],
        spacing=(1.0, 1.0, 1.0),
    )
    posterior = pm.sample(crf, samples=12, seed=3, estimator="conditional", engine="reference")
    names = ("votes", "conditional", "mean_field")
    found = [from_posterior(posterior, name, labels_from="votes") for name in names]  # type: ignore[arg-type]
    assert [each.name for each in found] == list(names)
    assert all(np.array_equal(each.labels, found[0].labels) for each in found)
    assert found[0].samples == 12
    assert found[1].samples is None
    assert found[2].volumes_mm3 is None
    assert found[0].entropy_bits == pytest.approx(posterior.estimate_entropy("votes").ravel())


def test_perfect_prediction() -> None:
    truth = sampled(samples=1)[0]
    one_hot = np.stack([truth == label for label in range(3)]).astype(float)
    rows = evaluate_case(from_marginals(one_hot, (1, 1, 1)), truth, {"one": (1,), "any": (1, 2)})
    assert value(rows, "dice", "any") == 1
    assert value(rows, "hausdorff95_mm", "one") == 0
    assert value(rows, "brier", "all labels") == 0
    assert value(rows, "ece_top_label", "all labels") == 0
    # There is no error to be found.
    assert math.isnan(value(rows, "auroc", "one"))
    assert math.isnan(value(rows, "sensitivity_above_0_bits", "all labels"))
    assert value(rows, "specificity_above_0_bits", "all labels") == 1


def test_votes_that_share_a_region_out_leave_it_certain() -> None:
    # Every sample has label 1 or 2 at each of 49 voxels, k of 49 samples label 1 at voxel k.
    maps = (np.arange(49)[:, np.newaxis] >= np.arange(1, 50)) + 1
    prediction = from_samples(maps, 3, (1.0,))
    np.testing.assert_array_equal(prediction.share((1, 2)), 1.0)
    truth = np.ones(49, dtype=int)
    truth[:5] = 0  # where the region is wrong, and no sample says so
    rows = evaluate_case(prediction, truth, {"any": (1, 2)})
    assert value(rows, "sensitivity_above_0_bits", "any") == 0
    assert value(rows, "specificity_above_0_bits", "any") == 1
    assert value(rows, "auroc", "any") == 0.5  # equal uncertainties are ties


def test_marginals_that_share_a_region_out_leave_it_certain() -> None:
    p = np.random.default_rng(3).random(200).astype(np.float32)
    prediction = from_marginals(np.stack([np.zeros(200), p, 1 - p]).astype(np.float32), (1.0,))
    np.testing.assert_array_equal(prediction.share((1, 2)), 1.0)
    np.testing.assert_array_equal(prediction.share((1,)), p)


def test_nothing_but_errors() -> None:
    truth = np.ones(SHAPE, dtype=int)
    wrong = np.stack([np.ones(SHAPE), np.zeros(SHAPE)])
    rows = evaluate_case(from_marginals(wrong, (1, 1, 1)), truth, {"one": (1,)})
    assert value(rows, "dice", "one") == 0
    assert value(rows, "sensitivity_above_0_bits", "one") == 0
    assert math.isnan(value(rows, "specificity_above_0_bits", "one"))
    assert value(rows, "auprc", "one") == 1  # every voxel is an error
    assert value(rows, "negative_log_likelihood_nats", "all labels") == math.inf


def test_an_empty_class_and_a_constant_map() -> None:
    maps = np.zeros((4, *SHAPE), dtype=int)
    rows = evaluate_case(from_samples(maps, 3, (1, 1, 1)), maps[0], {"one": (1,), "two": (2,)})
    assert value(rows, "dice", "one") == 1
    assert value(rows, "volume_true_ml", "two") == 0
    assert value(rows, "volume_covered", "two") == 1
    assert math.isnan(value(rows, "volume_cv", "one"))
    assert math.isnan(value(rows, "auroc", "one", "union"))
    assert math.isnan(value(rows, "ece_region", "one", "union"))


def test_only_the_mask_counts() -> None:
    mask = np.zeros(SHAPE, dtype=bool)
    mask[1:4] = True
    truth = sampled(2, 1)[0]
    maps = np.repeat(truth[np.newaxis], 4, axis=0)
    truth_outside = np.where(mask, truth, 0)
    maps[:, ~mask] = 0
    rows = evaluate_case(from_samples(maps, 3, (1, 1, 1), mask), truth_outside, {"one": (1,)})
    assert value(rows, "dice", "one") == 1
    assert value(rows, "volume_ml", "one") == pytest.approx((truth_outside == 1).sum() / 1000)


def test_volume_coverage_by_hand() -> None:
    maps = np.zeros((40, 100, 1, 1), dtype=int)
    for row, size in enumerate(range(20, 60)):
        maps[row, :size] = 1
    truth = np.zeros((100, 1, 1), dtype=int)
    truth[:30] = 1
    prediction = from_samples(maps, 2, (10.0, 10.0, 10.0))
    rows = evaluate_case(prediction, truth, {"one": (1,)})
    assert value(rows, "volume_true_ml", "one") == 30
    assert value(rows, "volume_covered", "one") == 1
    assert value(rows, "volume_interval_width_ml", "one") == pytest.approx(39 * 0.95)
    truth[:10] = 1
    truth[10:] = 0
    assert value(evaluate_case(prediction, truth, {"one": (1,)}), "volume_covered", "one") == 0


def test_bad_input() -> None:
    prediction = from_samples(sampled(), 3, (1, 1, 1))
    with pytest.raises(ValueError, match=r"truth must have the prediction's shape \(6, 5, 4\)"):
        evaluate_case(prediction, np.zeros((2, 2, 2), dtype=int), {"one": (1,)})
    with pytest.raises(ValueError, match="truth must lie between 0 and 2"):
        evaluate_case(prediction, np.full(SHAPE, 3), {"one": (1,)})
    truth = np.zeros(SHAPE, dtype=int)
    with pytest.raises(ValueError, match="regions must name at least one"):
        evaluate_case(prediction, truth, {})
    with pytest.raises(ValueError, match=r"regions\['one'\] must be different labels"):
        evaluate_case(prediction, truth, {"one": (1, 1)})
    with pytest.raises(ValueError, match=r"regions\['none'\] must be at least 1, got 0"):
        evaluate_case(prediction, truth, {"none": (0,)})
    with pytest.raises(ValueError, match="label_maps must lie between 0 and 1"):
        from_samples(sampled(), 2, (1, 1, 1))
    with pytest.raises(ValueError, match="sum to 1"):
        from_marginals(np.full((2, *SHAPE), 0.2), (1, 1, 1))


def test_default_regions() -> None:
    assert default_regions(["background", "a", "b"]) == {"a": (1,), "b": (2,), "foreground": (1, 2)}
    assert default_regions(["background", "a"]) == {"a": (1,)}


def test_summaries_leave_undefined_cases_out() -> None:
    rows = [
        Measurement(str(i), "votes", "a", "brain", "dice", v)
        for i, v in enumerate([0.2, 0.6, math.nan])
    ]
    (summary,) = summarise(rows)
    assert (summary.mean, summary.cases, summary.undefined) == (pytest.approx(0.4), 2, 1)
    assert summary.sd == pytest.approx(np.std([0.2, 0.6], ddof=1))
    (single,) = summarise(rows[:1])
    assert math.isnan(single.sd)


def test_truth_outside_the_mask_does_not_count() -> None:
    mask = np.ones((6, 6, 6), dtype=bool)
    mask[0] = False
    truth = np.zeros((6, 6, 6), dtype=int)
    truth[2:4, 2:4, 2:4] = 1
    prediction = from_samples(np.stack([truth, truth]), 2, (1.0, 1.0, 1.0), mask)
    known = evaluate_case(prediction, truth, {"lesion": (1,)})
    beyond = truth.copy()
    beyond[0, :2, 0] = 1
    found = evaluate_case(prediction, beyond, {"lesion": (1,)})
    assert value(found, "dice", "lesion") == 1
    assert value(found, "hausdorff95_mm", "lesion") == 0
    assert value(found, "truth_outside_mask_voxels", ALL, "image") == 2
    assert value(known, "truth_outside_mask_voxels", ALL, "image") == 0


def test_domains() -> None:
    brain = np.array([True] * 9 + [False])
    predicted = np.zeros(10, dtype=bool)
    true = np.zeros(10, dtype=bool)
    predicted[[3, 4]] = True
    true[[4, 5]] = True

    def voxels(domain: str) -> list[int]:
        mask = domain_mask(domain, predicted, true, brain, (2.0,), margin_mm=4.0)  # type: ignore[arg-type]
        return np.flatnonzero(mask).tolist()

    assert voxels("brain") == list(range(9))
    assert voxels("prediction") == [3, 4]
    assert voxels("truth") == [4, 5]
    assert voxels("union") == [3, 4, 5]
    assert voxels("dilated") == [1, 2, 3, 4, 5, 6, 7]
    with pytest.raises(ValueError, match="domain must be one of brain, union"):
        voxels("tumour")
