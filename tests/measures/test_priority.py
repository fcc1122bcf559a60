"""Priority: equal to the formula on enumerated grids, greedy, honest on samples left out."""

from __future__ import annotations

import numpy as np
import pytest

import perturb_mpm as pm
from helpers.shapes import every_labelling
from perturb_mpm.measures import CubeLaw, MeasuredPatient, PriorityFinder, find_measures
from perturb_mpm.measures.measurements import (
    OWN_ERRORS,
    explained_elsewhere,
    explained_share,
    greedy_order,
)

SHAPE = (4, 2, 1)


def find(samples: np.ndarray, measure: str = "volume", patch_mm: float = 1.0) -> PriorityFinder:
    patient = MeasuredPatient(
        pm.Grid(SHAPE, 1.0), {"core": (1,)}, samples[0].reshape(SHAPE).astype(np.uint8)
    )
    votes = np.stack([(samples == label).sum(axis=0) for label in (0, 1)])
    measures = find_measures([measure], patient)
    finder = PriorityFinder(patient.with_votes(votes), "core", measures[0], patch_mm)
    finder.add(range(len(samples)), samples)
    return finder


def test_a_voxel_explains_what_the_formula_says() -> None:
    generator = np.random.default_rng(0)
    samples = (generator.random((60, 8)) < np.linspace(0.1, 0.95, 8)).astype(np.uint8)
    samples[:, 1] = samples[:, 0]
    samples[:, 7] = 1  # certain
    found = find(samples).priority
    volume, p = samples.sum(axis=1), samples.mean(axis=0)
    covariance = ((volume - volume.mean())[:, None] * (samples - p)).mean(axis=0)
    spread = p * (1 - p)
    mean = spread.sum() / 7  # of the voxels that vary
    with np.errstate(invalid="ignore"):
        expected = np.nan_to_num(covariance**2 / (spread * volume.var()))
        own = [
            np.nan_to_num((covariance + t * mean) ** 2 / (spread + t * mean)) * (spread > 0)
            for t in OWN_ERRORS
        ]
    alone = explained_share(found.values, found.volumes, (0.0,))
    np.testing.assert_allclose(alone, expected[: len(alone)], rtol=1e-5, atol=1e-12)
    total = volume.var() + np.mean(OWN_ERRORS) * spread.sum()
    np.testing.assert_allclose(found.image().ravel(), np.mean(own, axis=0) / total, rtol=1e-5)
    assert found.image().ravel()[7] == 0


def test_the_law_is_that_of_conditioned_gaussians() -> None:
    """Dense matrices: a measure of slope 2 in the volume, five cubes, two of them told."""
    generator = np.random.default_rng(3)
    volumes = generator.normal(size=(40, 5)) @ generator.normal(size=(5, 5)) + 50
    values = 2 * volumes.sum(axis=1) + 3
    told = {1: 51.0, 3: 47.5}
    law = CubeLaw(values, volumes)
    for cube, volume in told.items():
        law.tell(cube, volume)
    sampled = np.cov(volumes, rowvar=False, bias=True)
    weights, gains = [], []
    for number, share in enumerate(OWN_ERRORS):
        joint = sampled + share * np.diag(sampled).mean() * np.eye(5)
        known, rest = list(told), [0, 2, 4]
        away = np.array(list(told.values())) - volumes.mean(axis=0)[known]
        inverse = np.linalg.inv(joint[np.ix_(known, known)])
        density = np.exp(-away @ inverse @ away / 2) * np.sqrt(np.linalg.det(inverse))
        left = joint[np.ix_(rest, rest)]
        left = left - joint[np.ix_(rest, known)] @ inverse @ joint[np.ix_(known, rest)]
        assert law.variance[number] == pytest.approx(4 * left.sum())
        weights.append(density)
        gains.append(4 * np.square(left.sum(axis=0)) / np.diag(left))
    probability = np.array(weights) / sum(weights)
    np.testing.assert_allclose(law.probability, probability, rtol=1e-6)
    np.testing.assert_allclose(law.gains()[[0, 2, 4]], probability @ gains, rtol=1e-6)
    np.testing.assert_allclose(law.gains()[[1, 3]], 0.0)


def test_more_cubes_than_samples_leave_nothing_to_know() -> None:
    """Without own errors ten samples know all by ten cubes; with them a cube always says more."""
    generator = np.random.default_rng(5)
    volumes = generator.normal(size=(10, 30))
    law = CubeLaw(volumes.sum(axis=1), volumes, (0.0, 1.0))
    for cube in range(29):
        law.tell(cube, float(cube))
    assert np.isfinite(law.variance).all()
    assert law.variance[0] == pytest.approx(0.0, abs=1e-6)
    assert law.variance[1] > 0.1
    np.testing.assert_allclose(law.probability, [0.0, 1.0], atol=1e-9)
    assert law.gains().argmax() == 29


def test_who_errs_by_itself_is_asked_for_itself() -> None:
    """Three cubes vary together and little, one alone: samples alone name one of the three."""
    generator = np.random.default_rng(4)
    shared, alone = generator.normal(size=(2, 500))
    little = 0.01 * generator.normal(size=(500, 3))
    volumes = np.column_stack([shared[:, None] + little, 2.6 * alone])
    values = volumes.sum(axis=1)
    assert greedy_order(values, volumes, 2, (0.0,))[0] != 3
    assert greedy_order(values, volumes, 2, (4.0,))[0] == 3
    law = CubeLaw(values, volumes)
    law.tell(0, 1.0)
    agrees = law.probability
    law.tell(1, -1.5)  # samples alone would have it near 1
    assert law.probability[0] < 0.01 < agrees[0]
    assert law.gains()[2] > 0.1  # so the third is worth asking for


def test_a_cube_in_which_samples_hardly_vary_is_not_taken_for_exact() -> None:
    """A network that misses a part is sure there: what it says must not be worth more for it."""
    generator = np.random.default_rng(6)
    shared, error = generator.normal(size=(2, 500))
    volumes = np.column_stack([10 * shared + 5 * error, 0.1 * shared])
    values = 10 * shared
    assert greedy_order(values, volumes, 1, (0.0,)) == [1]  # samples alone: it says all
    assert greedy_order(values, volumes, 1, (0.25,)) == [0]
    law = CubeLaw(values, volumes, (0.0, 0.25, 4.0))
    law.tell(1, 1.0)  # ten of its deviations away, and a tenth of the other's
    assert law.probability[1] > law.probability[2] > 0.1


def test_independent_voxels_explain_all_together() -> None:
    mixed = np.random.default_rng(0).permutation(every_labelling(8))  # halves have all voxels
    found = find(mixed).priority
    np.testing.assert_allclose(found.explained, 1 / 8, atol=1e-12)  # of equal variance
    listed = found.patch_list(8)
    assert len({patch.centre_voxel for patch in listed}) == 8
    assert [patch.explained_so_far for patch in listed] == pytest.approx(
        [k / 8 for k in range(1, 9)], abs=0.07
    )


def test_cubes_and_slices_add_up_voxels() -> None:
    samples = every_labelling(8)
    found = find(samples, patch_mm=2.0).priority
    assert found.size_voxels == (2, 2, 2)
    np.testing.assert_array_equal(found.volumes.sum(axis=1), samples.sum(axis=1))
    assert found.slice_list() == [(0, pytest.approx(1.0))]
    np.testing.assert_allclose(found.explained, 0.5)


def test_what_is_said_already_is_not_said_twice() -> None:
    generator = np.random.default_rng(1)
    one, other, error = generator.normal(size=(3, 200))
    volumes = np.stack([one, one + 0.3 * error, 0.6 * other], axis=1)
    values = one + 0.6 * other
    assert greedy_order(values, volumes, 3, (0.0,))[:2] == [0, 2]


def test_chance_explains_nothing_in_samples_left_out() -> None:
    generator = np.random.default_rng(2)
    values, volumes = generator.normal(size=100), generator.normal(size=(100, 500))
    order = greedy_order(values, volumes, 10)
    inside = 1 - _left(values, volumes[:, order]) / values.var()
    assert inside > 0.5  # the control: the same samples judge their own choice
    one = explained_elsewhere(values, volumes, list(range(10)))
    assert one[-1] < 0.05


def _left(values: np.ndarray, volumes: np.ndarray) -> float:
    x = volumes - volumes.mean(axis=0)
    y = values - values.mean()
    return float((y - x @ np.linalg.lstsq(x, y, rcond=None)[0]).var())


def test_any_measure_can_be_narrowed() -> None:
    found = find(every_labelling(8)[1:], "components").priority
    assert found.measure == "components"
    assert found.explained.max() < 0.5


def test_a_side_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="patch_mm must be positive"):
        find(every_labelling(8), patch_mm=0.0)
