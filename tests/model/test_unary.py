from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import perturb_mpm as pm
from helpers.oracle import softmax


def probabilities(seed: int, n_labels: int = 3, shape: tuple[int, ...] = (4, 5)) -> np.ndarray:
    drawn = np.random.default_rng(seed).dirichlet(np.ones(n_labels), size=shape)
    return np.moveaxis(drawn, -1, 0)


def test_energies_are_minus_log_probabilities() -> None:
    p = probabilities(0)
    np.testing.assert_allclose(pm.unary_from_probabilities(p), -np.log(p), rtol=1e-12)


@given(
    seed=st.integers(0, 1000),
    temperature=st.floats(0.2, 10),
    clip=st.floats(1e-8, 0.2),
    n_labels=st.integers(2, 6),
)
def test_clip_comes_after_temperature_and_the_result_is_normalised(
    seed: int, temperature: float, clip: float, n_labels: int
) -> None:
    p = probabilities(seed, n_labels)
    tempered = np.where(p > clip, p, 0.0) ** (1 / temperature)
    clipped = np.maximum(tempered / tempered.sum(axis=0), clip)
    expected = clipped / clipped.sum(axis=0)
    energies = pm.unary_from_probabilities(p, temperature=temperature, clip=clip)
    np.testing.assert_allclose(np.exp(-energies), expected, rtol=1e-9)


def test_a_temperature_leaves_what_is_below_the_clip_where_it_is() -> None:
    p = np.array([[1 - 8e-7], [8e-7]])
    soft = np.exp(-pm.unary_from_probabilities(p, temperature=1.7, clip=1e-6))
    assert soft[1] == pytest.approx(1e-6, rel=1e-3)  # and not 3e-4


def test_zero_probabilities_give_finite_energies() -> None:
    energies = pm.unary_from_probabilities([[0.0, 1.0], [1.0, 0.0]], clip=1e-6)
    s = np.array([1e-6, 1.0]) / (1 + 1e-6)
    np.testing.assert_allclose(energies, -np.log([s, s[::-1]]), rtol=1e-9)


def test_sums_slightly_off_one_are_renormalised_exactly() -> None:
    p = np.array([[0.0, 0.3], [0.4, 0.3], [0.6, 0.4]])  # a clipped zero shows it: it is not scaled
    np.testing.assert_allclose(
        pm.unary_from_probabilities(p * 1.0009, clip=0.1),
        pm.unary_from_probabilities(p, clip=0.1),
        rtol=1e-9,
    )


@given(seed=st.integers(0, 1000), scale=st.floats(0.1, 1000), temperature=st.floats(0.2, 10))
def test_logits_equal_the_probabilities_of_their_softmax(
    seed: int, scale: float, temperature: float
) -> None:
    logits = scale * np.random.default_rng(seed).normal(size=(4, 3, 3))
    np.testing.assert_allclose(
        pm.unary_from_logits(logits, temperature=temperature),
        pm.unary_from_probabilities(softmax(logits), temperature=temperature),
        rtol=1e-9,
        atol=1e-12,
    )


def test_labels_have_their_confidence_and_the_others_share_the_rest() -> None:
    energies = pm.unary_from_labels([[0, 1], [2, 2]], n_labels=3, confidence=0.8)
    assert energies.shape == (3, 2, 2)
    np.testing.assert_allclose(np.exp(-energies[:, 0, 0]), [0.8, 0.1, 0.1])
    np.testing.assert_allclose(np.exp(-energies[:, 1, 0]), [0.1, 0.1, 0.8])


@pytest.mark.parametrize("unsure", [-1, 255, 0])
def test_unsure_voxels_leave_all_labels_equally_likely(unsure: int) -> None:
    energies = pm.unary_from_labels([1, unsure], n_labels=4, unsure=unsure)
    np.testing.assert_allclose(np.exp(-energies[:, 1]), 0.25)
    np.testing.assert_allclose(np.exp(-energies[1, 0]), 0.9)


def test_labels_may_be_whole_numbers_in_floats() -> None:
    np.testing.assert_array_equal(
        pm.unary_from_labels(np.array([0.0, 1.0, 2.0], dtype=">f4"), n_labels=3),
        pm.unary_from_labels([0, 1, 2], n_labels=3),
    )


@pytest.mark.parametrize(
    ("given_dtype", "returned"),
    [("float16", "float32"), ("float32", "float32"), (">f4", "float32"), ("float64", "float64")],
)
def test_single_precision_stays_single(given_dtype: str, returned: str) -> None:
    p = np.array([[0.25, 0.5], [0.75, 0.5]], dtype=given_dtype)
    for function in (pm.unary_from_probabilities, pm.unary_from_logits):
        assert function(p).dtype == np.dtype(returned)


def test_integer_probabilities_are_taken() -> None:
    one_hot = np.array([[0, 1], [1, 0]])
    np.testing.assert_array_equal(
        pm.unary_from_probabilities(one_hot), pm.unary_from_probabilities(one_hot.astype(float))
    )


def test_the_input_is_left_alone() -> None:
    p = probabilities(2) * 1.0005
    before = p.copy()
    p.flags.writeable = False
    pm.unary_from_probabilities(p, temperature=2.0)
    pm.unary_from_logits(p, temperature=2.0)
    np.testing.assert_array_equal(p, before)
