from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from helpers.bad import Bad
from helpers.philox import PUBLISHED, words
from perturb_mpm.model.grid import Grid
from perturb_mpm.noise.gumbel import bits, gumbel, philox, uniform

# Random123's own test vectors for philox4x32-10 (kat_vectors of Salmon et al. 2011): counter, key,
# result. The last is digits of pi.
MOST_VOXELS = 2**48
SAMPLES, VOXELS, LABELS = 20, 400, 5


@pytest.fixture(scope="module")
def noise() -> np.ndarray:
    return gumbel(7, range(SAMPLES), range(VOXELS), LABELS)  # (B, L, N)


@pytest.mark.parametrize(("counter", "key", "result"), PUBLISHED, ids=["zeros", "ones", "pi"])
def test_philox_gives_the_published_vectors(counter: str, key: str, result: str) -> None:
    np.testing.assert_array_equal(philox(words(counter), words(key)), words(result))


def test_philox_takes_many_counters_and_keys_at_once() -> None:
    counters = np.stack([words(counter) for counter, _, _ in PUBLISHED])
    keys = np.stack([words(key) for _, key, _ in PUBLISHED])
    every = philox(counters[:, np.newaxis], keys)  # (3 counters, 3 keys, 4)
    assert every.shape == (3, 3, 4)
    assert every.dtype == np.uint32
    for k, (_, _, result) in enumerate(PUBLISHED):
        np.testing.assert_array_equal(every[k, k], words(result))


def test_bits_are_those_of_the_documented_counter() -> None:
    seed, sample, voxel, stream = 0x0123456789ABCDEF, 2**32 - 1, 0x5678_9ABCDEF0, 3
    drawn = bits(seed, np.array([sample]), np.array([voxel]), 6, stream)
    for label in range(6):
        counter = np.array([0x9ABCDEF0, sample, label // 4, 0x5678 | stream << 16], dtype=np.uint32)
        key = np.array([0x89ABCDEF, 0x01234567], dtype=np.uint32)
        assert drawn[0, label, 0] == philox(counter, key)[label % 4]


def test_the_noise_has_the_law_of_gumbel(noise: np.ndarray) -> None:
    values = noise.ravel().astype(np.float64)
    assert stats.kstest(values, "gumbel_r").pvalue > 0.01
    assert abs(values.mean() - np.euler_gamma) < 4 * np.pi / np.sqrt(6 * values.size)
    # The negative of the noise, and noise scaled to unit variance, are not Gumbel's.
    assert stats.kstest(-values, "gumbel_r").pvalue < 1e-6
    assert stats.kstest(values * np.sqrt(6) / np.pi, "gumbel_r").pvalue < 1e-6


NEIGHBOURS: dict[str, Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]] = {
    "samples": lambda x: (x[1:], x[:-1]),
    "labels": lambda x: (x[:, 1:], x[:, :-1]),
    "voxels": lambda x: (x[:, :, 1:], x[:, :, :-1]),
    "rows": lambda x: (x[:, :, 20:], x[:, :, :-20]),
    "blocks": lambda x: (x[:, 4:], x[:, :-4]),
}


@pytest.mark.parametrize("pair", NEIGHBOURS)
def test_neighbours_are_independent(noise: np.ndarray, pair: str) -> None:
    def dependence(values: np.ndarray) -> float:
        """Return the larger correlation, of values or of their squares, in standard errors."""
        one, other = (side.ravel() for side in NEIGHBOURS[pair](values))
        both = [np.corrcoef(one, other)[0, 1], np.corrcoef(one**2, other**2)[0, 1]]
        return float(np.abs(both).max() * np.sqrt(one.size))

    centred = noise.astype(np.float64) - np.euler_gamma
    assert dependence(centred) < 4
    leaking = centred.copy()
    target, source = NEIGHBOURS[pair](leaking)
    target += 0.2 * source.copy()
    assert dependence(leaking) > 4


def test_seeds_are_independent(noise: np.ndarray) -> None:
    for seed in (8, 7 + 2**32):
        other = gumbel(seed, range(SAMPLES), range(VOXELS), LABELS)
        correlation = np.corrcoef(noise.ravel(), other.ravel())[0, 1]
        assert abs(correlation) * np.sqrt(noise.size) < 4


def test_extreme_bits_give_finite_noise() -> None:
    extremes = uniform(np.array([0, 1, 511, 512, 2**32 - 1], dtype=np.uint32))
    assert extremes[0] == extremes[2] == 2.0**-24 < extremes[3]
    assert extremes[-1] == 1 - 2.0**-24
    assert np.float32(extremes[-1]) == extremes[-1]
    noise = -np.log(-np.log(extremes))
    assert np.isfinite(noise).all()
    assert (noise > -2.82).all()
    assert (noise < 16.64).all()


def test_an_antithetic_pair_sums_to_one() -> None:
    pairs = gumbel(3, range(10), range(50), 3, antithetic=True).astype(np.float64)
    u = np.exp(-np.exp(-pairs))
    np.testing.assert_allclose(u[0::2] + u[1::2], 1, rtol=0, atol=1e-6)
    word = bits(3, np.array([4]), np.arange(50), 3)
    np.testing.assert_array_equal(uniform(word) + uniform(~word), 1)
    plain = gumbel(3, range(10), range(50), 3)
    np.testing.assert_array_equal(pairs[0::2], plain[0::2])
    plain_u = np.exp(-np.exp(-plain.astype(np.float64)))
    assert np.abs(plain_u[0::2] + plain_u[1::2] - 1).max() > 0.5


@given(
    seed=st.integers(0, 2**64 - 1),
    samples=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=5, unique=True),
    voxels=st.lists(st.integers(0, MOST_VOXELS - 1), min_size=1, max_size=20, unique=True),
    n_labels=st.integers(2, 11),
    antithetic=st.booleans(),
    data=st.data(),
)
def test_noise_is_a_pure_function_of_seed_sample_voxel_and_label(
    seed: int,
    samples: list[int],
    voxels: list[int],
    n_labels: int,
    antithetic: bool,
    data: st.DataObject,
) -> None:
    whole = gumbel(seed, samples, voxels, n_labels, antithetic=antithetic)
    assert whole.shape == (len(samples), n_labels, len(voxels))
    assert whole.dtype == np.float32
    assert np.isfinite(whole).all()
    b = data.draw(st.permutations(range(len(samples))))[: 1 + len(samples) // 2]
    i = data.draw(st.permutations(range(len(voxels))))[: 1 + len(voxels) // 2]
    fewer = data.draw(st.integers(2, n_labels))
    part = gumbel(
        seed, [samples[k] for k in b], [voxels[k] for k in i], fewer, antithetic=antithetic
    )
    np.testing.assert_array_equal(part, whole[np.ix_(b, range(fewer), i)])


def test_many_samples_are_drawn_in_parts_without_a_trace() -> None:
    many = gumbel(1, range(5000), range(7), 3)
    for sample in (0, 1, 1559, 1560, 1561, 4999):
        np.testing.assert_array_equal(many[sample], gumbel(1, [sample], range(7), 3)[0])


def test_a_voxel_keeps_its_noise_under_any_mask() -> None:
    rng = np.random.default_rng(0)
    mask = rng.random((5, 6, 7)) < 0.4
    everywhere = gumbel(2, [5], Grid(mask.shape).index, 3)
    inside = gumbel(2, [5], Grid(mask.shape, mask=mask).index, 3)
    np.testing.assert_array_equal(inside, everywhere[:, :, mask.ravel()])


def test_nothing_asked_for_is_nothing_drawn() -> None:
    assert gumbel(0, [], [1, 2], 3).shape == (0, 3, 2)
    assert gumbel(0, [1], [], 3).shape == (1, 3, 0)


BAD = [
    Bad(
        "seed_negative",
        ValueError,
        r"seed must be at least 0, got -1",
        lambda: gumbel(-1, [0], [0], 2),
    ),
    Bad(
        "seed_of_65_bits",
        ValueError,
        r"seed must be at most 18446744073709551615, got 18446744073709551616",
        lambda: gumbel(2**64, [0], [0], 2),
    ),
    Bad(
        "seed_float",
        TypeError,
        r"seed must be an integer, got float 1.0",
        lambda: gumbel(1.0, [0], [0], 2),
    ),
    Bad(
        "sample_negative",
        ValueError,
        r"samples must lie between 0 and 4294967295, got values from -1 to 3",
        lambda: gumbel(0, [-1, 3], [0], 2),
    ),
    Bad(
        "sample_of_33_bits",
        ValueError,
        r"samples must lie between 0 and 4294967295, got values from 4294967296",
        lambda: gumbel(0, [2**32], [0], 2),
    ),
    Bad(
        "sample_fraction",
        ValueError,
        r"samples must be whole numbers, got 0.5",
        lambda: gumbel(0, [0.5], [0], 2),
    ),
    Bad(
        "samples_number",
        ValueError,
        r"samples must have one axis, got shape \(\)",
        lambda: gumbel(0, 3, [0], 2),
    ),
    Bad(
        "voxel_of_49_bits",
        ValueError,
        r"voxels must lie between 0 and 281474976710655, got values from 0 to 281474976710656",
        lambda: gumbel(0, [0], [0, MOST_VOXELS], 2),
    ),
    Bad(
        "one_label",
        ValueError,
        r"n_labels must be at least 2, got 1",
        lambda: gumbel(0, [0], [0], 1),
    ),
    Bad(
        "antithetic_text",
        TypeError,
        r"antithetic must be True or False, got str 'yes'",
        lambda: gumbel(0, [0], [0], 2, antithetic="yes"),
    ),
]


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.name)
def test_it_is_refused_in_words(bad: Bad) -> None:
    with pytest.raises(bad.error, match=bad.message):
        bad.call()
