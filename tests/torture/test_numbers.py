"""Numbers that overflowed without a word: refused where they enter, or computed right."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest

import perturb_mpm as pm
from perturb_mpm.biomarkers import wilcoxon_exact
from perturb_mpm.engines.convergent import solve_potts

ENGINES = ("reference", "cpu")
UNARY = np.random.default_rng(0).normal(size=(3, 5, 6))


def solved(engine: Any, **options: Any) -> pm.MeanField:
    crf = pm.DenseCRF(UNARY * options.pop("scale", 1.0), [pm.SpatialKernel(1.0, **options)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", pm.ConvergenceWarning)
        return pm.mean_field(crf, 5, update="convergent", engine=engine)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("weight", [1e3, 1e6, 1e12])
def test_strong_coupling_gives_marginals(engine: str, weight: float) -> None:
    result = solved(engine, weight=weight)
    assert math.isfinite(result.free_energy)
    np.testing.assert_allclose(result.marginals.sum(axis=0), 1, atol=1e-6)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("scale", [1e10, 1e29])
def test_large_energies_give_marginals(engine: str, scale: float) -> None:
    result = solved(engine, scale=scale)
    assert math.isfinite(result.free_energy)
    np.testing.assert_allclose(result.marginals.sum(axis=0), 1, atol=1e-6)


@pytest.mark.parametrize(
    ("words", "call"),
    [
        ("weight of SpatialKernel must be at most 1e", lambda: solved("cpu", weight=1e20)),
        ("unary must lie between", lambda: solved("cpu", scale=1e39)),
        ("compatibility must lie between", lambda: pm.DenseCRF(UNARY, compatibility=1e39 * ones())),
        ("temperature must be at least", lambda: pm.unary_from_logits(UNARY, temperature=1e-320)),
        ("spacing must be at least", lambda: pm.Grid((3,), 1e-300)),
        ("spacing must be at least", lambda: pm.Grid((3,), 1e300)),
        ("noise_scale must be at most", lambda: pm.Sampling(noise_scale=1e300)),
    ],
)
def test_numbers_that_overflow_are_refused(words: str, call: Any) -> None:
    with pytest.raises(ValueError, match=words):
        call()


def ones() -> np.ndarray:
    return 1 - np.eye(3)


@pytest.mark.parametrize("coupling", [0.0, 1e-3, 1.0, 99.0, 101.0, 1e6, 1e12, 1e20, 1e100])
def test_the_self_coupled_softmax_is_solved_at_any_strength(coupling: float) -> None:
    """q = softmax(a − c q): checked in log q, which has all digits, against its definition."""
    logits = np.array([[0.0], [-1.0], [-30.0]]) * max(1.0, coupling / 100)
    q = solve_potts(logits, np.array([coupling]))
    np.testing.assert_allclose(q.sum(axis=0), 1, rtol=1e-12)
    if coupling < 1e12:
        large = q > 1e-200
        levels = (logits - coupling * q - np.log(np.where(large, q, 1)))[large]
        np.testing.assert_allclose(levels, levels[0], rtol=1e-9, atol=1e-6 * max(1, coupling / 1e6))
    shifted = solve_potts(logits + 1e6, np.array([coupling]))
    np.testing.assert_allclose(shifted, q, atol=1e-9)


def test_odd_sizes_are_refused_without_a_warning() -> None:
    image = np.linspace(0, 1, 30).reshape(1, 5, 6)
    with pytest.raises(ValueError, match="sigma of SpatialKernel must be larger"):
        pm.DenseCRF(UNARY, [pm.SpatialKernel(1e-308)])
    with pytest.raises(ValueError, match="images of BilateralKernel must lie between"):
        pm.BilateralKernel(image * 1e300, 1.0, 1.0)
    kernel = pm.BilateralKernel(image, 1.0, 1e-320, standardize=False)
    with pytest.raises(ValueError, match="sigma_intensity of BilateralKernel must be larger"):
        pm.mean_field(pm.DenseCRF(UNARY, [kernel]), engine="reference")
    with pytest.raises(ValueError, match="sigma of SpatialKernel must be finite"):
        pm.SpatialKernel(10**400)
    with pytest.raises(ValueError, match="sample_index must be whole numbers of 64 bits"):
        pm.Posterior(
            grid=pm.Grid((2,)),
            counts=np.ones((2, 2), int),
            sample_index=[1e300],
            volumes=[[1, 1]],
            problem="x",
            parameters={},
        )


def test_a_precision_beyond_all_numbers_is_refused() -> None:
    with pytest.raises(ValueError, match="epsilon must be at least 1e-100"):
        pm.samples_needed(1e-320, 0.05, 3)
    assert pm.samples_needed(0.1, 0.05, 10**400) > 10**4  # whose logarithm is a number all the same


def test_volumes_that_overflow_are_refused_without_a_warning() -> None:
    with pytest.raises(ValueError, match="volumes must be at least 0"):
        pm.Posterior(
            grid=pm.Grid((2,)),
            counts=[[1, 1], [1, 1]],
            sample_index=[0, 1],
            volumes=np.full((2, 2), 1e308),
            problem="x",
            parameters={},
        )


def test_masked_arrays_are_compared_as_arrays() -> None:
    pairs = np.ma.masked_array([1.0, 2.0, 4.0]), np.ma.masked_array([0.0, 3.0, 1.0])
    assert wilcoxon_exact(*pairs) == wilcoxon_exact(*map(np.asarray, pairs))


@pytest.mark.parametrize(("temperature", "clip"), [(1e-6, 1e-6), (1e9, 1e-300), (2.0, 0.9)])
def test_extreme_temperatures_and_clips_give_energies(temperature: float, clip: float) -> None:
    probabilities = np.array([[0.5, 0.2, 1.0], [0.5, 0.8, 0.0]])
    with np.errstate(all="raise", under="ignore"):
        energies = pm.unary_from_probabilities(probabilities, temperature, clip)
    assert np.isfinite(energies).all()
    np.testing.assert_allclose(np.exp(-energies).sum(axis=0), 1)
    assert energies[0, 0] == energies[1, 0]
