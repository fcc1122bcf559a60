"""Kernels of other weights on what was prepared already."""

from __future__ import annotations

import numpy as np
import pytest

import perturb_mpm as pm
from perturb_mpm.engines import ReweighingSolver, prepare
from perturb_mpm.sampling import Sampler, Sampling


def two_kernels(weight: float = 2.0, **options: object) -> pm.DenseCRF:
    rng = np.random.default_rng(3)
    unary = rng.normal(size=(3, 12, 11, 10))
    kernels = [
        pm.SpatialKernel(sigma=2.0, weight=weight),
        pm.BilateralKernel(rng.normal(size=(1, 12, 11, 10)), 4.0, 0.7, weight=3.3),
    ]
    return pm.DenseCRF(unary, kernels, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("factor", [0.5, 0.125, 4.0])
def test_halved_weights_give_the_bits_of_kernels_prepared_anew(factor: float) -> None:
    crf = two_kernels()
    scaled = crf.scale_kernels(factor)
    assert [each.weight for each in scaled.kernels] == [2.0 * factor, 3.3 * factor]
    solver = prepare(crf, engine="cpu", compact=True)
    assert isinstance(solver, ReweighingSolver)
    assert solver.reweigh(scaled)
    anew = prepare(scaled, engine="cpu", compact=True)
    for each in (solver, anew):
        each.load(crf.energies[np.newaxis])
        each.step()
        each.step()
    np.testing.assert_array_equal(solver.marginals(), anew.marginals())
    np.testing.assert_array_equal(solver.diagonal, anew.diagonal)


def test_what_cannot_be_reweighed_is_prepared_anew() -> None:
    crf = two_kernels()
    solver = prepare(crf, engine="cpu")
    assert isinstance(solver, ReweighingSolver)
    assert not solver.reweigh(crf.scale_kernels(0.3))  # not a power of two
    assert not solver.reweigh(two_kernels(weight=1.0))  # other energies, other weights
    centred = two_kernels(centring=1.0)
    solver = prepare(centred, engine="cpu")
    assert isinstance(solver, ReweighingSolver)
    assert not solver.reweigh(centred.scale_kernels(0.5))


@pytest.mark.parametrize("factor", [0.5, 0.3])
@pytest.mark.parametrize("engine", ["reference", "cpu"])
def test_a_sampler_of_scaled_kernels_draws_what_a_new_one_does(engine: str, factor: float) -> None:
    crf, compute = two_kernels(), pm.Compute(engine=engine)  # type: ignore[arg-type]
    sampling = Sampling(samples=6, seed=4, iterations=3)
    first = Sampler(crf, sampling, compute)
    first.draw(2)
    scaled = first.scale_kernels(factor)
    anew = Sampler(crf.scale_kernels(factor), sampling, compute)
    assert scaled.problem == anew.problem != first.problem
    np.testing.assert_array_equal(scaled.draw().counts, anew.draw().counts)
