from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import perturb_mpm as pm
from helpers.bad import SHAPE, UNARY, Bad, broken, model, spatial
from helpers.oracle import Oracle, gaussian, softmax
from helpers.problems import NORMALIZATIONS, random_problem
from perturb_mpm.model import Grid, Inside, fingerprint
from perturb_mpm.model import crf as crf_module


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@pytest.mark.parametrize("self_term", [False, True])
def test_energy_is_the_sum_over_voxels_and_pairs(normalization: str, self_term: bool) -> None:
    crf, oracle = random_problem(
        3, (3, 4), 3, normalization=normalization, weight=2.0, self_term=self_term
    )
    for seed in range(5):
        x = np.random.default_rng(seed).integers(3, size=(3, 4))
        assert crf.energy(x) == pytest.approx(oracle.energy(x.ravel()), rel=1e-12)


def test_energy_of_two_voxels_by_hand() -> None:
    crf = pm.DenseCRF(
        unary=[[1.0, 2.0], [3.0, 5.0]],
        kernels=[pm.SpatialKernel(sigma=2.0, weight=3.0, normalization="none")],
        spacing=4.0,
    )
    assert crf.energy([0, 0]) == pytest.approx(3.0)
    assert crf.energy([0, 1]) == pytest.approx(6.0 + 3.0 * np.exp(-2.0))


def test_a_matrix_with_a_diagonal_counts_pairs_and_no_self_pairs() -> None:
    matrix = np.array([[0.5, 2.0], [2.0, -1.0]])
    crf = pm.DenseCRF(
        unary=np.zeros((2, 2)),
        kernels=[pm.SpatialKernel(sigma=1.0, normalization="none")],
        compatibility=matrix,
        self_term=True,
    )
    k = np.exp(-0.5)
    assert crf.energy([0, 0]) == pytest.approx(0.5 * k)
    assert crf.energy([1, 1]) == pytest.approx(-1.0 * k)
    assert crf.energy([1, 0]) == pytest.approx(2.0 * k)


def test_labels_outside_the_mask_do_not_count() -> None:
    mask = np.array([True, True, False])
    crf = pm.DenseCRF(unary=np.arange(6.0).reshape(2, 3), mask=mask)
    assert crf.energy([0, 1, 0]) == crf.energy([0, 1, 77]) == 4.0


def test_large_problems_go_through_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def prepare(crf: pm.DenseCRF, engine: str, accuracy: str, batch: int) -> object:
        asked.append((engine, accuracy))
        return real(crf, engine="reference", batch=batch)

    from perturb_mpm import engines

    real = engines.prepare
    monkeypatch.setattr(engines, "prepare", prepare)
    monkeypatch.setattr(crf_module, "EXACT_VOXELS", 11)
    crf, oracle = random_problem(3, (3, 4), 3)
    x = np.ones((3, 4), dtype=int)
    assert crf.energy(x) == pytest.approx(oracle.energy(x.ravel()))
    crf.energy(x, engine="cpu", accuracy="exact")
    monkeypatch.setattr(crf_module, "EXACT_VOXELS", 12)
    crf.energy(x)
    assert asked == [("auto", "calibrated"), ("cpu", "exact"), ("reference", "calibrated")]


def test_kernels_carry_their_weight_and_their_own_compatibility() -> None:
    matrix = np.array([[0.0, 1.0, 2.0], [1.0, 0.0, 1.0], [2.0, 1.0, 0.0]])
    crf = pm.DenseCRF(
        unary=np.zeros((3, 5)),
        kernels=[
            pm.SpatialKernel(sigma=1.0, weight=2.0),
            pm.SpatialKernel(sigma=1.0, weight=3.0, compatibility=matrix),
            pm.SpatialKernel(sigma=1.0, weight=3.0, compatibility=1.0 - np.eye(3)),
            pm.SpatialKernel(sigma=1.0, weight=3.0, compatibility=-np.eye(3)),
        ],
    )
    assert [term.potts_weight for term in crf.terms] == [2.0, None, 3.0, None]
    np.testing.assert_array_equal(crf.terms[0].compatibility, 2.0 * (1 - np.eye(3)))
    np.testing.assert_array_equal(crf.terms[1].compatibility, 3.0 * matrix)
    np.testing.assert_array_equal(crf.terms[0].features(), np.arange(5.0)[:, np.newaxis])


def test_the_crf_hands_its_compatibility_to_the_kernels_without_one() -> None:
    matrix = np.array([[0.0, 4.0], [4.0, 1.0]])
    kernel = pm.SpatialKernel(sigma=1.0, weight=0.5)
    crf = pm.DenseCRF(unary=np.zeros((2, 3)), kernels=[kernel], compatibility=matrix)
    np.testing.assert_array_equal(crf.terms[0].compatibility, matrix / 2)


def test_energies_are_those_inside_the_mask() -> None:
    unary = np.arange(24.0).reshape(2, 3, 4)
    mask = np.zeros((3, 4), dtype=np.uint8)
    mask[1, 1:3] = 4
    crf = pm.DenseCRF(unary=unary, mask=mask)
    assert (crf.n_labels, crf.shape, crf.grid.voxels) == (2, (3, 4), 2)
    np.testing.assert_array_equal(crf.energies, [[5, 6], [17, 18]])
    assert crf.energies.flags.c_contiguous
    assert not crf.energies.flags.writeable


def test_energies_inside_a_grid_make_the_same_crf() -> None:
    rng = np.random.default_rng(2)
    unary, images = rng.normal(size=(3, 4, 5)), rng.normal(size=(2, 4, 5))
    mask, spacing = rng.random((4, 5)) < 0.6, (1.0, 2.0)
    whole = pm.DenseCRF(unary, [bilateral(images)], spacing=spacing, mask=mask)
    grid = Grid((4, 5), spacing, mask)
    kernel = bilateral(Inside(grid.gather(images), grid))
    inside = pm.DenseCRF(Inside(grid.gather(unary), grid), [kernel])
    assert fingerprint(inside) == fingerprint(whole)
    np.testing.assert_array_equal(inside.terms[0].features(), whole.terms[0].features())
    with pytest.raises(ValueError, match="images of BilateralKernel must lie between"):
        bilateral(Inside(np.full((1, grid.voxels), 1e31), grid))


def bilateral(images: np.ndarray | Inside) -> pm.BilateralKernel:
    return pm.BilateralKernel(images, sigma_space=2.0, sigma_intensity=0.5)


@pytest.mark.parametrize("shape", [(7,), (3, 4), (2, 3, 4), (2, 2, 3, 2)])
def test_one_to_four_axes(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    unary = rng.normal(size=(2, *shape))
    crf = pm.DenseCRF(
        unary=unary, kernels=[pm.SpatialKernel(sigma=1.0, normalization="none")], spacing=1.0
    )
    positions = np.argwhere(np.ones(shape)).astype(float)
    oracle = Oracle(unary.reshape(2, -1), [gaussian(positions, "none")], [1.0 - np.eye(2)])
    x = rng.integers(2, size=shape)
    assert crf.energy(x) == pytest.approx(oracle.energy(x.ravel()))


def test_the_callers_arrays_are_neither_changed_nor_shared() -> None:
    unary = np.zeros((2, 3))
    matrix = np.array([[0.0, 1.0], [1.0, 0.0]])
    mask = np.ones(3, dtype=bool)
    crf = pm.DenseCRF(
        unary=unary, kernels=[pm.SpatialKernel(sigma=1.0)], compatibility=matrix, mask=mask
    )
    for mine in (unary, matrix, mask):
        mine[...] = 9
    assert not crf.energies.any()
    assert crf.terms[0].potts_weight == 1.0
    assert unary.flags.writeable
    assert mask.flags.writeable


def test_repr_says_what_the_problem_is() -> None:
    crf, _ = random_problem(0, (3, 4), 3)
    assert "labels=3, shape=(3, 4)" in repr(crf)
    assert "array" not in repr(pm.FeatureKernel(np.zeros((1, 3))))


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


def test_pieces_do_not_change_a_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    p = np.random.default_rng(3).dirichlet(np.ones(4), size=500).T.reshape(4, 25, 20)
    whole = pm.unary_from_probabilities(p, temperature=1.3)
    monkeypatch.setattr(crf_module, "_AT_ONCE", 64)
    np.testing.assert_array_equal(pm.unary_from_probabilities(p, temperature=1.3), whole)


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


BAD_CRFS = [
    Bad(
        "unary_nan",
        ValueError,
        r"unary must be finite, got 1 NaN or infinite values, the first at index \(1, 2, 3\)",
        lambda: model(broken(UNARY, np.nan, 1, 2, 3)),
    ),
    Bad(
        "unary_infinite",
        ValueError,
        r"unary must be finite, got 4 .* the first at index \(0, 1, 0\)",
        lambda: model(broken(UNARY, np.inf, 0, 1)),
    ),
    Bad(
        "unary_overflows",
        ValueError,
        r"unary must be finite",
        lambda: model(np.full((2, 3), np.longdouble("1e400"))),
    ),
    Bad(
        "unary_without_space",
        ValueError,
        r"unary must be \(labels, \*spatial\) with 1 to 4 spatial axes, got shape \(2,\)",
        lambda: model([0.0, 1.0]),
    ),
    Bad(
        "unary_five_axes",
        ValueError,
        r"unary must be .* 1 to 4 spatial axes, got shape \(2, 1, 1, 1, 1, 1\)",
        lambda: model(np.zeros((2, 1, 1, 1, 1, 1))),
    ),
    Bad(
        "unary_no_voxels",
        ValueError,
        r"unary must have at least one voxel, got shape \(2, 0\)",
        lambda: model(np.zeros((2, 0))),
    ),
    Bad(
        "unary_ragged",
        ValueError,
        r"unary must be an array, got rows of different lengths",
        lambda: model([[0.0], [0.0, 1.0]]),
    ),
    Bad(
        "unary_text",
        TypeError,
        r"unary must be a numeric array, got dtype <U1",
        lambda: model([["a"], ["b"]]),
    ),
    Bad(
        "unary_complex",
        TypeError,
        r"unary must be a numeric array, got dtype complex128",
        lambda: model(UNARY + 1j),
    ),
    Bad(
        "unary_objects",
        TypeError,
        r"unary must be a numeric array, got dtype object",
        lambda: model(UNARY.astype(object)),
    ),
    Bad(
        "labels_0",
        ValueError,
        r"unary must have 2 to 255 labels .* got shape \(0, 3\)",
        lambda: model(np.zeros((0, 3))),
    ),
    Bad(
        "labels_1",
        ValueError,
        r"unary must have 2 to 255 labels .* got shape \(1, 3\)",
        lambda: model(np.zeros((1, 3))),
    ),
    Bad(
        "labels_256",
        ValueError,
        r"unary must have 2 to 255 labels .* got shape \(256, 3\)",
        lambda: model(np.zeros((256, 3))),
    ),
    Bad(
        "mask_empty",
        ValueError,
        r"mask must contain at least one voxel, got an empty mask",
        lambda: model(mask=np.zeros(SHAPE)),
    ),
    Bad(
        "mask_shape",
        ValueError,
        r"mask must have the image's shape \(3, 4\), got \(4, 3\)",
        lambda: model(mask=np.ones((4, 3))),
    ),
    Bad(
        "mask_nan",
        ValueError,
        r"mask must be finite, got 1",
        lambda: model(mask=broken(np.ones(SHAPE), np.nan, 0, 0)),
    ),
    Bad(
        "mask_text",
        TypeError,
        r"mask must be a numeric array",
        lambda: model(mask=np.full(SHAPE, "x")),
    ),
    Bad(
        "spacing_length",
        ValueError,
        r"spacing must be one number or one for each axis \(2\), got 3: \(1.0, 1.0, 3.0\)",
        lambda: model(spacing=(1, 1, 3)),
    ),
    Bad(
        "spacing_zero",
        ValueError,
        r"spacing must be positive, got 0.0",
        lambda: model(spacing=(1.0, 0.0)),
    ),
    Bad(
        "spacing_nan",
        ValueError,
        r"spacing must be finite and positive, got nan",
        lambda: model(spacing=np.nan),
    ),
    Bad(
        "spacing_text",
        TypeError,
        r"spacing must be a number, got str '1mm'",
        lambda: model(spacing="1mm"),
    ),
    Bad(
        "self_term",
        TypeError,
        r"self_term must be True or False, got str 'no'",
        lambda: model(self_term="no"),
    ),
    Bad(
        "kernels_not_listed",
        TypeError,
        r"kernels must be a sequence of kernels, got SpatialKernel: write kernels=\[kernel\]",
        lambda: pm.DenseCRF(unary=UNARY, kernels=spatial()),
    ),
    Bad(
        "kernels_of_another_kind",
        TypeError,
        r"kernels must hold SpatialKernel, .* got float",
        lambda: model(UNARY, 3.0),
    ),
    Bad(
        "compatibility_not_symmetric",
        ValueError,
        r"compatibility must be symmetric, got 1.0 at \(0, 1\) but 2.0 at \(1, 0\)",
        lambda: model(compatibility=[[0, 1], [2, 0]]),
    ),
    Bad(
        "compatibility_shape",
        ValueError,
        r'compatibility must be "potts" or a symmetric \(2, 2\) matrix, got shape \(3, 3\)',
        lambda: model(compatibility=np.zeros((3, 3))),
    ),
    Bad(
        "compatibility_nan",
        ValueError,
        r"compatibility must be finite",
        lambda: model(compatibility=[[0, np.nan], [np.nan, 0]]),
    ),
    Bad(
        "compatibility_name",
        ValueError,
        r'compatibility must be "potts" or a symmetric \(2, 2\) matrix, got "ising"',
        lambda: model(compatibility="ising"),
    ),
    Bad(
        "kernel_compatibility",
        ValueError,
        r"compatibility of SpatialKernel must be symmetric",
        lambda: model(UNARY, spatial(compatibility=[[0, 1], [2, 0]])),
    ),
    Bad(
        "kernel_compatibility_nan",
        ValueError,
        r"compatibility of SpatialKernel must be finite",
        lambda: spatial(compatibility=[[0, np.inf], [1, 0]]),
    ),
]


@pytest.mark.parametrize("bad", BAD_CRFS, ids=lambda bad: bad.name)
def test_a_bad_crf_is_refused_in_words(bad: Bad) -> None:
    with pytest.raises(bad.error, match=bad.message):
        bad.call()


HALVES = np.full((2, *SHAPE), 0.5)

BAD_UNARIES = [
    Bad(
        "probabilities_sum",
        ValueError,
        r"probabilities must sum to 1 over the labels .* got 0.9 at voxel \(0, 0\)",
        lambda: pm.unary_from_probabilities(0.9 * HALVES),
    ),
    Bad(
        "probabilities_labels_last",
        ValueError,
        r"probabilities must sum to 1 over the labels \(the first axis\)",
        lambda: pm.unary_from_probabilities(np.moveaxis(HALVES, 0, -1)),
    ),
    Bad(
        "probabilities_negative",
        ValueError,
        r"probabilities must not be negative, got -0.5 at index \(0, 1, 1\)",
        lambda: pm.unary_from_probabilities(broken(HALVES, -0.5, 0, 1, 1)),
    ),
    Bad(
        "probabilities_nan",
        ValueError,
        r"probabilities must be finite, got 1 NaN",
        lambda: pm.unary_from_probabilities(broken(HALVES, np.nan, 0, 1, 1)),
    ),
    Bad(
        "probabilities_one_label",
        ValueError,
        r"probabilities must have 2 to 255 labels .* got shape \(1, 3\)",
        lambda: pm.unary_from_probabilities(np.ones((1, 3))),
    ),
    Bad(
        "probabilities_no_label",
        ValueError,
        r"probabilities must have 2 to 255 labels .* got shape \(0, 3\)",
        lambda: pm.unary_from_probabilities(np.ones((0, 3))),
    ),
    Bad(
        "probabilities_text",
        TypeError,
        r"probabilities must be a numeric array",
        lambda: pm.unary_from_probabilities([["a"]]),
    ),
    Bad(
        "temperature_zero",
        ValueError,
        r"temperature must be positive, got 0.0",
        lambda: pm.unary_from_probabilities(HALVES, temperature=0),
    ),
    Bad(
        "clip_zero",
        ValueError,
        r"clip must be positive and below 1, got 0.0",
        lambda: pm.unary_from_probabilities(HALVES, clip=0),
    ),
    Bad(
        "clip_one",
        ValueError,
        r"clip must be positive and below 1, got 1.0",
        lambda: pm.unary_from_logits(HALVES, clip=1),
    ),
    Bad(
        "logits_infinite",
        ValueError,
        r"logits must be finite",
        lambda: pm.unary_from_logits(broken(UNARY, np.inf, 0)),
    ),
    Bad(
        "logits_shape",
        ValueError,
        r"logits must be \(labels, \*spatial\)",
        lambda: pm.unary_from_logits([1.0, 2.0]),
    ),
    Bad(
        "label_map_out_of_range",
        ValueError,
        r"labels must lie between 0 and 2, got values from 0 to 3",
        lambda: pm.unary_from_labels([0, 3], n_labels=3),
    ),
    Bad(
        "label_map_negative",
        ValueError,
        r"labels must lie between 0 and 2, got values from -1 to 1",
        lambda: pm.unary_from_labels([-1, 1], n_labels=3),
    ),
    Bad(
        "label_map_fractional",
        ValueError,
        r"labels must be whole numbers, got 0.5",
        lambda: pm.unary_from_labels([0.5, 1.0], n_labels=3),
    ),
    Bad(
        "label_map_empty",
        ValueError,
        r"labels must be \(\*spatial\) with 1 to 4 axes, none empty, got shape \(0,\)",
        lambda: pm.unary_from_labels(np.zeros(0, dtype=int), n_labels=3),
    ),
    Bad(
        "n_labels_1",
        ValueError,
        r"n_labels must be at least 2, got 1",
        lambda: pm.unary_from_labels([0], n_labels=1),
    ),
    Bad(
        "n_labels_256",
        ValueError,
        r"n_labels must be at most 255, got 256",
        lambda: pm.unary_from_labels([0], n_labels=256),
    ),
    Bad(
        "n_labels_float",
        TypeError,
        r"n_labels must be an integer, got float 3.0",
        lambda: pm.unary_from_labels([0], n_labels=3.0),
    ),
    Bad(
        "confidence",
        ValueError,
        r"confidence must be positive and below 1, got 1.0",
        lambda: pm.unary_from_labels([0], n_labels=3, confidence=1),
    ),
]


@pytest.mark.parametrize("bad", BAD_UNARIES, ids=lambda bad: bad.name)
def test_bad_unaries_are_refused_in_words(bad: Bad) -> None:
    with pytest.raises(bad.error, match=bad.message):
        bad.call()
