from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.posteriors import GRID, MASK, L, of_counts, run, sample
from perturb_mpm.engines import FRACTION_BITS, fixed_point
from perturb_mpm.model.grid import Grid
from perturb_mpm.posterior import clopper_pearson
from perturb_mpm.posterior.posterior import Posterior


def test_votes_by_hand() -> None:
    posterior = of_counts([[4, 2, 1, 0], [0, 2, 1, 4], [0, 0, 2, 0]])
    assert (posterior.samples, posterior.n_labels) == (4, 3)
    np.testing.assert_array_equal(posterior.marginals[:, 2], [0.25, 0.25, 0.5])
    np.testing.assert_array_equal(posterior.labels, [0, 0, 2, 1])
    assert posterior.labels.dtype == np.uint8
    np.testing.assert_allclose(posterior.entropy, [0.0, 1.0, 1.5, 0.0], atol=1e-15)
    np.testing.assert_array_equal(posterior.minority, [0.0, 0.5, 0.5, 0.0])


def test_the_lowest_of_equal_labels_is_taken() -> None:
    np.testing.assert_array_equal(of_counts([[0, 3], [5, 3], [5, 4]]).labels, [1, 2])


def test_outside_the_mask_all_votes_are_for_label_0() -> None:
    posterior = run(range(12), estimator="conditional")
    outside = ~MASK
    certain = np.array([1, 0, 0])[:, np.newaxis]
    assert (posterior.counts[:, outside] == 12 * certain).all()
    for source in ("votes", "conditional", "mean_field"):
        marginals = posterior.estimate_marginals(source)
        assert (marginals[:, outside] == certain).all()
        np.testing.assert_allclose(marginals.sum(axis=0), 1.0, atol=1e-6)
        assert not posterior.estimate_entropy(source)[outside].any()
    for image in (posterior.labels, posterior.minority, posterior.uncertainty_map()):
        assert image.shape == MASK.shape
        assert not image[outside].any()
    assert (posterior.conditional[:, outside] == (12 << FRACTION_BITS) * certain).all()


def test_whole_images_and_voxels_inside_the_mask_are_the_same() -> None:
    inside = run(range(9))
    counts = np.full((L, *GRID.shape), 77)
    counts[:, MASK] = inside.voxel_counts
    field = np.zeros((L, *GRID.shape))
    field[:, MASK] = inside.voxel_mean_field
    whole = run(range(9), counts=counts, mean_field=field, conditional=inside.conditional)
    assert whole == inside
    np.testing.assert_array_equal(whole.counts[:, MASK], inside.voxel_counts)


@pytest.mark.parametrize("shape", [(6,), (2, 3), (2, 3, 2), (2, 2, 2, 2)])
def test_one_to_four_axes(shape: tuple[int, ...]) -> None:
    posterior = run(range(5), Grid(shape, 2.0))
    assert posterior.marginals.shape == posterior.counts.shape == (L, *shape)
    assert posterior.entropy.shape == posterior.labels.shape == shape
    np.testing.assert_array_equal(posterior.counts.reshape(L, -1), posterior.voxel_counts)


def test_conditional_marginals_are_the_mean_over_samples() -> None:
    posterior = run(range(40), estimator="conditional")
    mean = np.mean([sample(number)[1].astype(np.float64) for number in range(40)], axis=0)
    np.testing.assert_allclose(posterior.marginals[:, MASK], mean, atol=1e-7)
    np.testing.assert_array_equal(posterior.labels[MASK], mean.argmax(axis=0))
    np.testing.assert_allclose(posterior.minority[MASK], 1 - mean.max(axis=0), atol=1e-7)
    bits = -(mean * np.log2(mean)).sum(axis=0)
    np.testing.assert_allclose(posterior.entropy[MASK], bits, atol=1e-6)
    votes = posterior.counts / 40
    np.testing.assert_array_equal(posterior.estimate_marginals("votes"), votes)


def test_the_mean_field_comes_back_as_it_was() -> None:
    posterior = run(range(3))
    assert posterior.mean_field.dtype == np.float32
    np.testing.assert_array_equal(posterior.mean_field[:, MASK], posterior.voxel_mean_field)
    np.testing.assert_array_equal(posterior.estimate_marginals("mean_field"), posterior.mean_field)


@given(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=20))
def test_fixed_point_is_as_close_as_it_says(p: list[float]) -> None:
    for values in (np.array(p, dtype=np.float32), np.array(p)):
        units = fixed_point(values)
        assert np.abs(units / 2.0**FRACTION_BITS - values).max() <= 2.0 ** -(FRACTION_BITS + 1)
    large = np.array(p, dtype=np.float32) >= 1 / 128
    np.testing.assert_array_equal((units / 2.0**FRACTION_BITS)[large], np.array(p)[large])


@given(counts=st.lists(st.integers(0, 30), min_size=2, max_size=6).filter(lambda k: sum(k) > 0))
def test_entropy_of_votes_is_that_of_their_frequencies(counts: list[int]) -> None:
    f = np.array(counts) / sum(counts)
    expected = -sum(each * math.log2(each) for each in f if each > 0)
    posterior = of_counts(np.array(counts)[:, np.newaxis])
    assert posterior.entropy[0] == pytest.approx(expected, abs=1e-12)


def test_mean_entropy_adds_the_bias_where_there_are_votes() -> None:
    posterior = of_counts([[4, 2, 1, 0], [0, 2, 1, 4], [0, 0, 2, 0]])
    assert posterior.mean_entropy("none") == pytest.approx(2.5 / 4)
    bias = (0 + 1 + 2 + 0) / (2 * 4 * math.log(2))
    assert posterior.mean_entropy() == pytest.approx((2.5 + bias) / 4)
    assert posterior.mean_entropy("none", where=[0, 1, 0, 1]) == pytest.approx(0.5)
    conditional = run(range(20), estimator="conditional")
    assert conditional.mean_entropy() == conditional.mean_entropy("none")
    assert conditional.mean_entropy() == pytest.approx(conditional.entropy[MASK].mean())


def test_miller_madow_brings_the_mean_closer_to_the_truth() -> None:
    f = np.array([0.5, 0.3, 0.2])
    truth = -(f * np.log2(f)).sum()
    counts = np.random.default_rng(3).multinomial(30, f, size=20000).T
    posterior = of_counts(counts)
    corrected, plain = posterior.mean_entropy(), posterior.mean_entropy("none")
    assert plain < truth - 0.04
    assert abs(corrected - truth) < 0.005


def test_three_classes_by_the_interval_of_the_minority_share() -> None:
    dissent = np.arange(0, 101)
    posterior = of_counts([200 - dissent, dissent])
    lower, upper = clopper_pearson(dissent, 200, 0.95)
    found = posterior.uncertainty_map()
    np.testing.assert_array_equal(found == 0, upper <= 0.05)
    np.testing.assert_array_equal(found == 2, lower > 0.05)
    # By hand: of 200, 3 dissenting votes are certain, 4 to 16 undecided, 17 uncertain.
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found[[0, 3, 4, 16, 17, 100]], [0, 0, 1, 1, 2, 2])


def test_more_samples_leave_fewer_undecided() -> None:
    share = np.array([0.01, 0.03, 0.08, 0.2])
    decided = []
    for samples in (50, 200, 1000, 5000):
        dissent = np.rint(share * samples).astype(int)
        decided.append(of_counts([samples - dissent, dissent]).uncertainty_map())
    assert [int((found == 1).sum()) for found in decided] == [3, 2, 0, 0]
    np.testing.assert_array_equal(decided[-1], [0, 0, 2, 2])


def test_the_papers_rule_is_one_dissenting_vote() -> None:
    posterior = of_counts([[200, 199, 100], [0, 1, 100]])
    np.testing.assert_array_equal(posterior.uncertainty_map(rule="paper"), [0, 2, 2])
    np.testing.assert_array_equal(
        posterior.uncertainty_map(rule="paper") > 0, posterior.entropy > 0
    )


def test_few_voxels_are_put_on_the_wrong_side() -> None:
    rng = np.random.default_rng(8)
    for share, wrong in ((0.04, 2), (0.06, 0)):
        dissent = rng.binomial(300, share, size=20000)
        found = of_counts([300 - dissent, dissent]).uncertainty_map()
        assert (found == wrong).mean() <= 0.025


def test_conditional_marginals_use_an_interval_for_means() -> None:
    samples, shares = 200, np.array([0.0, 0.005, 0.04, 0.06, 0.3])
    p = np.stack([1 - shares, shares])
    votes = np.tile([[samples], [0]], (1, 5))
    posterior = of_counts(votes, conditional=fixed_point(p) * samples, estimator="conditional")
    np.testing.assert_array_equal(posterior.uncertainty_map(), [0, 0, 1, 1, 2])
    rng = np.random.default_rng(4)
    for mean, wrong in ((0.045, 2), (0.055, 0)):
        # Marginals that are 0 or 1 are the widest spread there is at a given mean.
        p = rng.binomial(samples, mean, size=5000) / samples
        sums = fixed_point(np.stack([1 - p, p])) * samples
        votes = np.tile([[samples], [0]], (1, 5000))
        found = of_counts(votes, conditional=sums, estimator="conditional").uncertainty_map()
        assert (found == wrong).mean() <= 0.025


def test_quantiles_and_intervals_of_volumes() -> None:
    posterior = run(range(101))
    assert posterior.volumes.shape == (101, L)
    np.testing.assert_allclose(posterior.volumes.sum(axis=1), MASK.sum() * 2.5)
    ordered = np.sort(posterior.volumes, axis=0)
    np.testing.assert_allclose(posterior.volume_quantiles(0.5), ordered[50])
    np.testing.assert_allclose(posterior.volume_quantiles([0.0, 0.1, 1.0]), ordered[[0, 10, 100]])
    lower, upper = posterior.volume_interval(0.9)
    np.testing.assert_allclose([lower, upper], ordered[[5, 95]])
    assert posterior.volume_interval().shape == (2, L)


@pytest.mark.parametrize("estimator", ["votes", "conditional"])
def test_ranges_merge_to_what_one_run_gives(estimator: str) -> None:
    whole = run(range(60), estimator=estimator)
    parts = [
        run(numbers, estimator=estimator) for numbers in (range(20), range(20, 25), range(25, 60))
    ]
    for order in itertools.permutations(parts):
        merged = order[0].merge(*order[1:])
        assert merged == whole
        assert merged == order[0].merge(order[1]).merge(order[2])
        assert merged.voxel_conditional.tobytes() == whole.voxel_conditional.tobytes()
        assert merged.marginals.tobytes() == whole.marginals.tobytes()
        assert merged.volumes.tobytes() == whole.volumes.tobytes()


def test_samples_that_interleave_are_put_in_order() -> None:
    assert run(range(0, 30, 2)).merge(run(range(1, 30, 2))) == run(range(30))


def test_merging_with_nothing_is_a_copy() -> None:
    assert run(range(4)).merge() == run(range(4))


def test_one_mean_field_is_enough() -> None:
    bare = run(range(5, 9), mean_field=None)
    assert run(range(5)).merge(bare) == bare.merge(run(range(5))) == run(range(9))
    assert run(range(5), mean_field=None).merge(bare).mean_field is None


def test_counts_outgrow_16_bits_without_overflow() -> None:
    def part(first: int, samples: int) -> Posterior:
        return of_counts(
            [[samples, 1], [0, samples - 1]], sample_index=range(first, first + samples)
        )

    assert part(0, 65535).counts.dtype == np.uint16
    assert part(0, 65536).counts.dtype == np.uint32
    merged = part(0, 40000).merge(part(40000, 40000))
    assert merged.counts.dtype == np.uint32
    np.testing.assert_array_equal(merged.counts, [[80000, 2], [0, 79998]])
    small = part(0, 30000).merge(part(30000, 35535))
    assert small.counts.dtype == np.uint16
    np.testing.assert_array_equal(small.counts, [[65535, 2], [0, 65533]])
    assert merged.merge(part(80000, 5)).counts[0, 0] == 80005


@pytest.mark.parametrize(
    "changes",
    [
        {"parameters": {"seed": 8}},
        {"problem": "another"},
        {"estimator": "conditional"},
        {"mean_field": None},
        {"label_changes": [0.0] * 6},
        {"conditional": None},
        {"grid": Grid(GRID.shape, (2.5, 1.0), MASK)},
        {"grid": Grid(GRID.shape, GRID.spacing, np.roll(MASK, 1))},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_equality_is_by_content(changes: dict[str, object]) -> None:
    assert run(range(6)) == run(range(6))
    assert run(range(6)) != run(range(6), **changes)


def test_posteriors_of_other_samples_or_votes_are_not_equal() -> None:
    assert run(range(6)) != run(range(1, 7))
    assert run(range(6)) != "a posterior"
    assert of_counts([[3, 1], [1, 3]]) != of_counts([[1, 3], [3, 1]])
    assert of_counts([[3, 1], [1, 3]], parameters={"a": 1}) != of_counts(
        [[3, 1], [1, 3]], parameters={"a": True}
    )


def test_a_full_mask_is_no_mask() -> None:
    plain, masked = Grid((2, 3)), Grid((2, 3), mask=np.ones((2, 3)))
    assert run(range(4), plain) == run(range(4), masked)


def test_nothing_is_shared_and_nothing_can_be_changed() -> None:
    counts = np.array([[3, 1], [1, 3]], dtype=np.uint16)
    parameters = {"seed": 1}
    posterior = of_counts(counts, parameters=parameters)
    counts[...] = 0
    parameters["seed"] = 2
    np.testing.assert_array_equal(posterior.counts, [[3, 1], [1, 3]])
    assert posterior.parameters == {"seed": 1}
    for array in (posterior.counts, posterior.voxel_counts, posterior.volumes):
        with pytest.raises(ValueError, match="read-only"):
            array[0, 0] = 1
    with pytest.raises(AttributeError):
        posterior.estimator = "conditional"
    with pytest.raises(TypeError, match="unhashable"):
        hash(posterior)


def test_repr_says_what_it_holds() -> None:
    text = repr(run([*range(10), 20, *range(30, 33)]))
    assert "samples=14 (0–9, 20, 30–32), labels=3, shape=(4, 5)" in text
    assert "estimator='votes'" in text
    assert "0, 2, 4, 6, 8, 10, …)" in repr(run(range(0, 50, 2)))
