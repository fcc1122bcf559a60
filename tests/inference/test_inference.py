from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import perturb_mpm as pm
from helpers.bad import SHAPE, UNARY, Bad, mean_field, model
from helpers.oracle import softmax
from helpers.problems import NORMALIZATIONS, random_problem


def solve(crf: pm.DenseCRF, iterations: int = 10, **options: object) -> pm.MeanField:
    """Mean field on the reference engine, converged or not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pm.ConvergenceWarning)
        return pm.mean_field(crf, iterations=iterations, engine="reference", **options)


def converge(crf: pm.DenseCRF, update: str = "parallel") -> pm.MeanField:
    result = solve(crf, 20_000, tolerance=1e-13, update=update)
    assert result.converged
    return result


def flat(array: np.ndarray) -> np.ndarray:
    return array.reshape(len(array), -1)


def test_without_coupling_it_is_the_softmax() -> None:
    unary = np.random.default_rng(0).normal(size=(4, 5, 6))
    q = solve(pm.DenseCRF(unary=unary))
    np.testing.assert_allclose(q.marginals, softmax(-unary), rtol=1e-12)
    np.testing.assert_array_equal(q.labels, unary.argmin(axis=0))
    log_z = np.log(np.exp(-unary).sum(axis=0)).sum()
    assert q.free_energy == pytest.approx(-log_z)
    assert q.converged
    assert q.change == 0


def test_a_weight_of_zero_is_no_coupling() -> None:
    unary = np.random.default_rng(0).normal(size=(3, 8))
    for update in ("parallel", "convergent"):
        crf = pm.DenseCRF(unary=unary, kernels=[pm.SpatialKernel(sigma=2.0, weight=0.0)])
        q = solve(crf, update=update)
        np.testing.assert_allclose(q.marginals, softmax(-unary), rtol=1e-12)


def test_no_iterations_leave_the_softmax_and_no_warning() -> None:
    crf, oracle = random_problem(0, (3, 4), 3)
    q = pm.mean_field(crf, iterations=0, engine="reference")
    np.testing.assert_allclose(flat(q.marginals), softmax(-oracle.energies), rtol=1e-12)
    assert q.iterations == 0
    assert not q.converged
    assert np.isnan(q.change)


def test_two_voxels_by_hand() -> None:
    u, w, k = 0.4, 1.3, np.exp(-0.5)
    kernel = pm.SpatialKernel(sigma=1.0, weight=w, normalization="none")
    crf = pm.DenseCRF(unary=[[0.0, 0.0], [u, u]], kernels=[kernel])
    start = 1 / (1 + np.exp(u))
    after = 1 / (1 + np.exp(u + w * k * (1 - 2 * start)))
    q = solve(crf, 1)
    np.testing.assert_allclose(q.marginals[1], after, rtol=1e-12)
    assert q.change == pytest.approx(abs(after - start))
    entropy = -(after * np.log(after) + (1 - after) * np.log(1 - after))
    expected = 2 * after * u - 2 * entropy + w * k * 2 * after * (1 - after)
    assert q.free_energy == pytest.approx(expected)
    np.testing.assert_allclose(q.entropy, entropy / np.log(2))


def test_the_self_term_is_one_more_neighbour() -> None:
    u, w, k = 0.4, 1.3, np.exp(-0.5)
    kernel = pm.SpatialKernel(sigma=1.0, weight=w, normalization="none")
    crf = pm.DenseCRF(unary=[[0.0, 0.0], [u, u]], kernels=[kernel], self_term=True)
    start = 1 / (1 + np.exp(u))
    after = 1 / (1 + np.exp(u + w * (1 + k) * (1 - 2 * start)))
    np.testing.assert_allclose(solve(crf, 1).marginals[1], after, rtol=1e-12)


@pytest.mark.parametrize("n_labels", [2, 3, 4])
@pytest.mark.parametrize("shape", [(2, 3), (2, 4), (3, 3), (3, 4)], ids=str)
@pytest.mark.parametrize("update", ["parallel", "convergent"])
def test_against_enumeration(shape: tuple[int, ...], n_labels: int, update: str) -> None:
    crf, oracle = random_problem(10 * n_labels + shape[0] * shape[1], shape, n_labels)
    result = converge(crf, update)
    q = flat(result.marginals)
    np.testing.assert_allclose(
        q, softmax(-oracle.energies - oracle.pairwise(q)), rtol=0, atol=1e-10
    )
    assert result.free_energy == pytest.approx(oracle.free_energy(q), rel=1e-12)
    assert result.free_energy >= -oracle.log_z() - 1e-10


def test_weak_coupling_comes_close_to_the_exact_marginals() -> None:
    crf, oracle = random_problem(5, (3, 3), 3, weight=0.1)
    error = np.abs(flat(converge(crf).marginals) - oracle.exact_marginals()).max()
    uncoupled = np.abs(softmax(-oracle.energies) - oracle.exact_marginals()).max()
    assert error < 1e-3
    assert uncoupled > 10 * error


@given(
    seed=st.integers(0, 10_000),
    normalization=st.sampled_from(NORMALIZATIONS),
    n_labels=st.integers(2, 4),
    matrix=st.booleans(),
    weight=st.floats(0, 2),
    damping=st.sampled_from([0.0, 0.3]),
)
def test_one_update_follows_its_formula_and_the_free_energy_bounds_log_z(
    seed: int, normalization: str, n_labels: int, matrix: bool, weight: float, damping: float
) -> None:
    crf, oracle = random_problem(
        seed, (2, 3), n_labels, normalization=normalization, matrix=matrix, weight=weight
    )
    q = softmax(-oracle.energies)
    for iterations in (1, 2):
        new = softmax(-oracle.energies - oracle.pairwise(q))
        q = (1 - damping) * new + damping * q
        result = solve(crf, iterations, damping=damping)
        np.testing.assert_allclose(flat(result.marginals), q, rtol=0, atol=1e-12)
        assert result.free_energy >= -oracle.log_z() - 1e-10


def test_a_mask_equals_cropping() -> None:
    rng = np.random.default_rng(4)
    unary, images = rng.normal(size=(3, 5, 6)), rng.normal(size=(1, 5, 6))
    inside = (slice(1, 4), slice(2, 6))
    mask = np.zeros((5, 6), dtype=bool)
    mask[inside] = True

    def model(*box: slice, **options: object) -> pm.DenseCRF:
        kernel = pm.BilateralKernel(images[:, *box], sigma_space=2.0, sigma_intensity=0.8)
        spatial = pm.SpatialKernel(sigma=(1.0, 3.0))
        return pm.DenseCRF(
            unary=unary[:, *box], kernels=[kernel, spatial], spacing=(2.0, 1.0), **options
        )

    masked, cropped = solve(model(mask=mask)), solve(model(*inside))
    np.testing.assert_allclose(masked.marginals[:, *inside], cropped.marginals, atol=1e-12)
    np.testing.assert_array_equal(masked.labels[inside], cropped.labels)
    assert masked.free_energy == pytest.approx(cropped.free_energy)
    np.testing.assert_array_equal(masked.labels[~mask], 0)
    np.testing.assert_array_equal(masked.marginals[0, ~mask], 1)
    np.testing.assert_array_equal(masked.marginals[1:, ~mask], 0)
    np.testing.assert_array_equal(masked.entropy[~mask], 0)


def test_anisotropic_spacing_equals_stretched_positions() -> None:
    unary = np.random.default_rng(5).normal(size=(3, 4, 5))
    kernel = pm.SpatialKernel(sigma=2.0, weight=2.0)
    stretched = np.stack(np.meshgrid(0.5 * np.arange(4), 3.0 * np.arange(5), indexing="ij"))
    by_spacing = solve(pm.DenseCRF(unary=unary, kernels=[kernel], spacing=(0.5, 3.0)))
    by_position = solve(
        pm.DenseCRF(unary=unary, kernels=[pm.FeatureKernel(stretched, sigma=2.0, weight=2.0)])
    )
    by_sigma = solve(
        pm.DenseCRF(unary=unary, kernels=[pm.SpatialKernel(sigma=(4.0, 2 / 3), weight=2.0)])
    )
    isotropic = solve(pm.DenseCRF(unary=unary, kernels=[kernel]))
    np.testing.assert_allclose(by_spacing.marginals, by_position.marginals, atol=1e-12)
    np.testing.assert_allclose(by_spacing.marginals, by_sigma.marginals, atol=1e-12)
    assert np.abs(by_spacing.marginals - isotropic.marginals).max() > 0.01


@given(seed=st.integers(0, 1000))
def test_permuting_voxels_permutes_the_result(seed: int) -> None:
    rng = np.random.default_rng(seed)
    unary, features = rng.normal(size=(3, 12)), rng.normal(size=(2, 12))
    order = rng.permutation(12)

    def marginals(unary: np.ndarray, features: np.ndarray) -> np.ndarray:
        return solve(pm.DenseCRF(unary=unary, kernels=[pm.FeatureKernel(features)])).marginals

    np.testing.assert_allclose(
        marginals(unary[:, order], features[:, order]),
        marginals(unary, features)[:, order],
        atol=1e-12,
    )


@given(seed=st.integers(0, 1000))
def test_permuting_labels_permutes_the_result(seed: int) -> None:
    rng = np.random.default_rng(seed)
    unary, matrix = rng.normal(size=(4, 12)), rng.normal(size=(4, 4))
    matrix = matrix + matrix.T
    order = rng.permutation(4)

    def marginals(unary: np.ndarray, matrix: np.ndarray) -> np.ndarray:
        kernels = [pm.SpatialKernel(sigma=2.0), pm.SpatialKernel(sigma=1.0, compatibility=matrix)]
        return solve(pm.DenseCRF(unary=unary, kernels=kernels), 3).marginals

    np.testing.assert_allclose(
        marginals(unary[order], matrix[np.ix_(order, order)]),
        marginals(unary, matrix)[order],
        atol=1e-10,
    )


def test_a_tolerance_stops_early_and_none_runs_all_iterations() -> None:
    crf, _ = random_problem(0, (3, 4), 3)
    early = pm.mean_field(crf, iterations=1000, tolerance=1e-3, engine="reference")
    assert early.converged
    assert early.change <= 1e-3
    assert early.iterations < 50
    assert solve(crf, early.iterations - 1).change > 1e-3
    assert pm.mean_field(crf, iterations=37, engine="reference").iterations == 37


def test_foreground_change_looks_away_from_label_zero() -> None:
    unary = np.array([[0.0, 0.0, 5.0, 5.0], [0.1, 0.1, 0.0, 0.0]])
    kernel = pm.SpatialKernel(sigma=0.5, weight=0.5, normalization="none")
    crf = pm.DenseCRF(unary=unary, kernels=[kernel])
    before, after = solve(crf, 0), solve(crf, 1)
    moved = np.abs(after.marginals - before.marginals).max(axis=0)
    assert after.change == pytest.approx(moved.max())
    assert after.change_foreground == pytest.approx(moved[2:].max())
    assert after.change_foreground < after.change


def test_the_result_says_how_it_was_made() -> None:
    crf, _ = random_problem(0, (2, 3), 3)
    q = solve(crf, 4, damping=0.25, update="convergent")
    assert (q.engine, q.accuracy, q.update) == ("reference", "exact", "convergent")
    assert (q.iterations, q.damping) == (4, 0.25)
    assert q.labels.dtype == np.uint8
    assert q.marginals.shape == (3, 2, 3)
    assert isinstance(q.free_energy, float)


def test_a_falling_change_asks_for_more_iterations() -> None:
    crf, _ = random_problem(1, (3, 4), 3)
    with pytest.warns(pm.ConvergenceWarning, match=r"after 3 iterations.*raise iterations") as all_:
        q = pm.mean_field(crf, iterations=3, tolerance=1e-9, engine="reference")
    assert len(all_) == 1
    assert all_[0].filename == __file__
    assert not q.converged
    message = str(all_[0].message)
    assert f"changed a marginal by {q.change:.2g}" in message
    assert f"{q.change_foreground:.2g} in the foreground" in message


BAD = [
    Bad(
        "energy_shape",
        ValueError,
        r"labels must have the image's shape \(3, 4\), got \(12,\)",
        lambda: model().energy(np.zeros(12)),
    ),
    Bad(
        "energy_labels",
        ValueError,
        r"labels must lie between 0 and 1, got values from 5 to 5",
        lambda: model().energy(np.full(SHAPE, 5)),
    ),
    Bad(
        "energy_nan",
        ValueError,
        r"labels must be finite",
        lambda: model().energy(np.full(SHAPE, np.nan)),
    ),
    Bad(
        "not_a_crf", TypeError, r"crf must be a DenseCRF, got ndarray", lambda: pm.mean_field(UNARY)
    ),
    Bad(
        "iterations_negative",
        ValueError,
        r"iterations must be at least 0, got -1",
        lambda: mean_field(model(), iterations=-1),
    ),
    Bad(
        "iterations_float",
        TypeError,
        r"iterations must be an integer, got float 1.5",
        lambda: mean_field(model(), iterations=1.5),
    ),
    Bad(
        "tolerance",
        ValueError,
        r"tolerance must be at least 0, got -0.1",
        lambda: mean_field(model(), tolerance=-0.1),
    ),
    Bad(
        "damping_one",
        ValueError,
        r"damping must be at least 0 and below 1, got 1.0",
        lambda: mean_field(model(), damping=1),
    ),
    Bad(
        "update",
        ValueError,
        r"update must be one of parallel, convergent, got str 'serial'",
        lambda: mean_field(model(), update="serial"),
    ),
    Bad(
        "threads",
        ValueError,
        r"threads must be at least 1, got 0",
        lambda: mean_field(model(), threads=0),
    ),
    Bad(
        "memory_text",
        ValueError,
        r'memory must be .* such as "4 GB", got \'lots\'',
        lambda: mean_field(model(), memory="lots"),
    ),
    Bad(
        "memory_small",
        MemoryError,
        r"needs .* GB, memory allows 1e-07 GB: use",
        lambda: mean_field(model(), memory=100),
    ),
]


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.name)
def test_bad_input_is_refused_in_words(bad: Bad) -> None:
    with pytest.raises(bad.error, match=bad.message):
        bad.call()
