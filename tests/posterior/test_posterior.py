from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.bad import Bad
from helpers.posteriors import GRID, MASK, PARAMETERS, PROBLEM, L, of_counts, run, sample
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


COUNTS = np.array([[3, 1], [1, 3]])
OTHER_MASK = np.roll(MASK, 1)

BAD = [
    Bad("grid", TypeError, r"grid must be a Grid, got tuple", lambda: of_counts(COUNTS, grid=(2,))),
    Bad(
        "counts_float",
        TypeError,
        r"counts must be integers, got dtype float64",
        lambda: of_counts(COUNTS, counts=COUNTS / 4),
    ),
    Bad(
        "counts_shape",
        ValueError,
        r"counts must be \(labels, \*\(2,\)\), or \(labels, 2\) .* got shape \(2, 3\)",
        lambda: of_counts(COUNTS, counts=np.zeros((2, 3), int)),
    ),
    Bad(
        "counts_scalar",
        ValueError,
        r"counts must be .* got shape \(\)",
        lambda: of_counts(COUNTS, counts=4),
    ),
    Bad(
        "one_label",
        ValueError,
        r"counts must have 2 to 255 labels \(the first axis\), got shape \(1, 2\)",
        lambda: of_counts(COUNTS, counts=[[4, 4]]),
    ),
    Bad(
        "counts_sum",
        ValueError,
        r"sum to the 4 samples at every voxel, .* sums from 4 to 5, wrong at 1 voxels",
        lambda: of_counts(COUNTS, counts=[[3, 2], [1, 3]]),
    ),
    Bad(
        "counts_negative",
        ValueError,
        r"counts must be at least 0 .* got values from -1",
        lambda: of_counts(COUNTS, counts=[[5, 2], [-1, 2]]),
    ),
    Bad(
        "no_samples",
        ValueError,
        r"sample_index must be \(samples,\), not empty, got shape \(0,\)",
        lambda: of_counts(COUNTS, sample_index=np.zeros(0, int)),
    ),
    Bad(
        "samples_twice",
        ValueError,
        r"sample_index must be increasing numbers from 0 on, got 0–1, 1–2",
        lambda: of_counts(COUNTS, sample_index=[0, 1, 1, 2]),
    ),
    Bad(
        "samples_negative",
        ValueError,
        r"sample_index must be increasing numbers from 0 on, got -1–2",
        lambda: of_counts(COUNTS, sample_index=[-1, 0, 1, 2]),
    ),
    Bad(
        "volumes_shape",
        ValueError,
        r"volumes must be \(4 samples, 2 labels\), got shape \(4,\)",
        lambda: of_counts(COUNTS, volumes=np.ones(4)),
    ),
    Bad(
        "volumes_nan",
        ValueError,
        r"volumes must be finite",
        lambda: of_counts(COUNTS, volumes=np.full((4, 2), np.nan)),
    ),
    Bad(
        "volumes_in_ml",
        ValueError,
        r"volumes must be at least 0, 30 mm³ in each sample, .* got",
        lambda: run(range(4), volumes=run(range(4)).volumes / 1000),
    ),
    Bad(
        "volumes_swapped",
        ValueError,
        r"for each label what its votes amount to",
        lambda: of_counts([[4, 3], [0, 1]], volumes=np.tile([0.25, 1.75], (4, 1))),
    ),
    Bad(
        "estimator",
        ValueError,
        r"estimator must be one of votes, conditional, got str 'gibbs'",
        lambda: run(range(4), estimator="gibbs"),
    ),
    Bad(
        "estimator_without",
        ValueError,
        r'conditional must be given where estimator is "conditional", got None',
        lambda: of_counts(COUNTS, estimator="conditional"),
    ),
    Bad(
        "conditional_float",
        TypeError,
        r"conditional must be integers, got dtype float64",
        lambda: of_counts(COUNTS, conditional=np.full((2, 2), 0.5)),
    ),
    Bad(
        "conditional_sum",
        ValueError,
        r"conditional must be at least 0 and sum to 4294967296 .* within 0.001",
        lambda: of_counts(COUNTS, conditional=COUNTS),
    ),
    Bad(
        "conditional_shape",
        ValueError,
        r"conditional must be .* got shape \(2,\)",
        lambda: of_counts(COUNTS, conditional=COUNTS[0]),
    ),
    Bad(
        "mean_field_labels",
        ValueError,
        r"mean_field must be \(labels, \*\(2,\)\).* got shape \(3, 2\)",
        lambda: of_counts(COUNTS, mean_field=np.full((3, 2), 1 / 3)),
    ),
    Bad(
        "mean_field_energies",
        ValueError,
        r"mean_field must be at least 0 and sum to 1 .* sums from 6 to 8",
        lambda: of_counts(COUNTS, mean_field=[[3.0, 5.0], [3.0, 3.0]]),
    ),
    Bad(
        "mean_field_nan",
        ValueError,
        r"mean_field must be finite",
        lambda: of_counts(COUNTS, mean_field=np.full((2, 2), np.nan)),
    ),
    Bad(
        "label_changes_percent",
        ValueError,
        r"label_changes must lie between 0 and 1, got values from 12.0 to 12.0",
        lambda: of_counts(COUNTS, label_changes=[12] * 4),
    ),
    Bad(
        "label_changes_shape",
        ValueError,
        r"label_changes must be \(4 samples,\), got shape \(3,\)",
        lambda: of_counts(COUNTS, label_changes=[0.0] * 3),
    ),
    Bad(
        "parameters_list",
        TypeError,
        r"parameters must be a dict, got list",
        lambda: of_counts(COUNTS, parameters=[]),
    ),
    Bad(
        "parameters_array",
        TypeError,
        r"parameters must contain only text, .* ndarray",
        lambda: of_counts(COUNTS, parameters={"a": COUNTS}),
    ),
    Bad(
        "parameters_infinite",
        TypeError,
        r"parameters must contain only text, finite numbers, .*: write infinity as text",
        lambda: of_counts(COUNTS, parameters={"length_mm": np.inf}),
    ),
    Bad(
        "problem_bytes",
        TypeError,
        r"problem must contain only text",
        lambda: of_counts(COUNTS, problem=b"digest"),
    ),
    Bad(
        "entropy_not_held",
        ValueError,
        r"estimator of this posterior must be one of votes, got str 'conditional'",
        lambda: of_counts(COUNTS).estimate_entropy("conditional"),
    ),
    Bad(
        "marginals_unknown",
        ValueError,
        r"estimator of this posterior must be one of votes, conditional, mean_field, got str 'map'",
        lambda: run(range(3)).estimate_marginals("map"),
    ),
    Bad(
        "correction",
        ValueError,
        r"correction must be one of miller-madow, none, got bool True",
        lambda: run(range(3)).mean_entropy(True),
    ),
    Bad(
        "where_shape",
        ValueError,
        r"array must end in the shape \(4, 5\), got \(5,\)",
        lambda: run(range(3)).mean_entropy(where=np.ones(5)),
    ),
    Bad(
        "where_empty",
        ValueError,
        r"where must contain a voxel of the mask, got none",
        lambda: run(range(3)).mean_entropy(where=~MASK),
    ),
    Bad(
        "threshold",
        ValueError,
        r"threshold must be positive and below 0.5, got 0.5",
        lambda: run(range(3)).uncertainty_map(0.5),
    ),
    Bad(
        "confidence",
        ValueError,
        r"confidence must be positive and below 1, got 95.0",
        lambda: run(range(3)).uncertainty_map(confidence=95),
    ),
    Bad(
        "rule",
        ValueError,
        r"rule must be one of interval, paper, got str 'entropy'",
        lambda: run(range(3)).uncertainty_map(rule="entropy"),
    ),
    Bad(
        "quantile",
        ValueError,
        r"q must be one or several numbers between 0 and 1, got \[ 2.5 97.5\]",
        lambda: run(range(3)).volume_quantiles([2.5, 97.5]),
    ),
    Bad(
        "level",
        ValueError,
        r"level must be positive and below 1, got 95.0",
        lambda: run(range(3)).volume_interval(95),
    ),
    Bad(
        "merge_type",
        TypeError,
        r"other must be a Posterior, got str",
        lambda: run(range(3)).merge("case.npz"),
    ),
    Bad(
        "merge_overlap",
        ValueError,
        r"must have different samples to be merged, got 3 in more than one: 2–3, 7",
        lambda: run([0, 1, 2, 3, 7]).merge(run([2, 3, 7, 9])),
    ),
    Bad(
        "merge_itself",
        ValueError,
        r"must have different samples to be merged, got 3 in more than one: 0–2",
        lambda: run(range(3)).merge(run(range(3))),
    ),
    Bad(
        "merge_seed",
        ValueError,
        r"same problem and parameters to be merged, got seed 7 against 8$",
        lambda: run(range(3)).merge(run(range(3, 6), parameters=PARAMETERS | {"seed": 8})),
    ),
    Bad(
        "merge_missing",
        ValueError,
        r"got start nothing against 'warm'$",
        lambda: run(range(3)).merge(run(range(3, 6), parameters=PARAMETERS | {"start": "warm"})),
    ),
    Bad(
        "merge_nested",
        ValueError,
        r"got problem.energies 'ab12' against 'ff00'; seed 7 against 8$",
        lambda: run(range(3)).merge(
            run(
                range(3, 6),
                problem=PROBLEM | {"energies": "ff00"},
                parameters=PARAMETERS | {"seed": 8},
            )
        ),
    ),
    Bad(
        "merge_spacing",
        ValueError,
        r"got spacing \(1.0, 2.5\) against \(1.0, 3.0\)",
        lambda: run(range(3)).merge(run(range(3, 6), Grid(GRID.shape, (1.0, 3.0), MASK))),
    ),
    Bad(
        "merge_mask",
        ValueError,
        r"got masks of 12 and 12 voxels that differ",
        lambda: run(range(3)).merge(run(range(3, 6), Grid(GRID.shape, GRID.spacing, OTHER_MASK))),
    ),
    Bad(
        "merge_shape",
        ValueError,
        r"got shape \(4, 5\) against \(6,\)",
        lambda: run(range(3)).merge(run(range(3, 6), Grid((6,)))),
    ),
    Bad(
        "merge_estimator",
        ValueError,
        r"got estimator 'votes' against 'conditional'",
        lambda: run(range(3)).merge(run(range(3, 6), estimator="conditional")),
    ),
    Bad(
        "merge_conditional",
        ValueError,
        r"conditional must be in all posteriors or in none to be merged",
        lambda: run(range(3)).merge(run(range(3, 6), conditional=None)),
    ),
    Bad(
        "merge_label_changes",
        ValueError,
        r"label_changes must be in all posteriors or in none to be merged",
        lambda: run(range(3)).merge(run(range(3, 6), label_changes=None)),
    ),
    Bad(
        "merge_mean_field",
        ValueError,
        r"mean_field must be the same in all posteriors to be merged",
        lambda: run(range(3)).merge(
            run(range(3, 6), mean_field=np.full((L, GRID.voxels), 1 / L, np.float32))
        ),
    ),
]


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.name)
def test_bad_input_is_refused_in_words(bad: Bad) -> None:
    with pytest.raises(bad.error, match=bad.message):
        bad.call()
