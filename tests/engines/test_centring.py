"""Centred CRFs: the given probabilities are a fixed point, and every engine agrees on the rest."""

from __future__ import annotations

import numpy as np
import pytest

import perturb_mpm as pm
from helpers.interpreter import need_gpu_or_interpreter
from perturb_mpm.engines import prepare, softmax
from perturb_mpm.noise import Perturbation, checked_lengths
from perturb_mpm.sampling import edited_crf


@pytest.fixture(params=["reference", "cpu", "gpu"])
def engine(request: pytest.FixtureRequest) -> str:
    if request.param == "gpu":
        need_gpu_or_interpreter()
    return str(request.param)


def volume(centring: float, weight: float = 1.0) -> pm.DenseCRF:
    rng = np.random.default_rng(6)
    shape = (6, 5, 4)
    return pm.DenseCRF(
        unary=rng.normal(0, 1.5, size=(3, *shape)),
        kernels=[
            pm.SpatialKernel(sigma=2.0, weight=0.6 * weight),
            pm.BilateralKernel(rng.normal(size=(2, *shape)), 3.0, 0.8, weight=0.9 * weight),
        ],
        compatibility=[[0.0, 1.0, 0.6], [1.0, 0.0, 0.3], [0.6, 0.3, 0.0]],
        spacing=(1.0, 1.0, 2.0),
        mask=rng.random(shape) < 0.85,
        centring=centring,
    )


def by_hand(crf: pm.DenseCRF, iterations: int) -> np.ndarray:
    """Mean field with pairwise(P) taken out of the unaries by the uncentred reference."""
    plain = volume(0.0)
    solver = prepare(plain, "reference", batch=1)
    solver.load(plain.energies[np.newaxis])
    centre = crf.centring * solver.pairwise()[0]
    q = softmax(-plain.energies, axis=0)
    for _ in range(iterations):
        solver.load((plain.energies - centre)[np.newaxis], q[np.newaxis])
        solver.step()
        q = solver.marginals()[0]
    return q


@pytest.mark.parametrize("centring", [0.5, 1.0])
def test_updates_take_the_centre_off_and_the_start_does_not(engine: str, centring: float) -> None:
    crf = volume(centring)
    solver = prepare(crf, engine, "exact", batch=1)
    solver.load(crf.energies[np.newaxis])
    np.testing.assert_allclose(solver.marginals()[0], softmax(-crf.energies, axis=0), atol=1e-6)
    for iterations in (1, 2, 3):
        solver.step()
        np.testing.assert_allclose(solver.marginals()[0], by_hand(crf, iterations), atol=1e-5)


def test_the_probabilities_are_a_fixed_point_of_a_fully_centred_crf(engine: str) -> None:
    crf = volume(1.0)
    given = crf.grid.scatter(softmax(-crf.energies, axis=0), np.arange(3) == 0)
    found = pm.mean_field(crf, 20, engine=engine, accuracy="exact")
    np.testing.assert_allclose(found.marginals, given, atol=1e-5)
    uncentred = pm.mean_field(volume(0.0), 20, engine=engine, accuracy="exact")
    assert np.abs(uncentred.marginals - given).max() > 0.1


@pytest.mark.parametrize("length", [0.0, 4.0])
def test_samples_and_conditional_marginals_agree_between_engines(
    engine: str, length: float
) -> None:
    crf = volume(0.5)
    perturbation = Perturbation(5, lengths=checked_lengths(length))
    found = []
    for name in ("reference", engine):
        solver = prepare(crf, name, "exact", batch=3)
        solver.perturb(perturbation, np.array([4, 0, 2]))
        for _ in range(3):
            solver.step()
        found.append((solver.marginals(), solver.conditional() / 2.0**30))
    for theirs, ours in zip(*found):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_a_correction_is_felt_around_it() -> None:
    crf = volume(1.0)
    held = np.full(crf.grid.voxels, -1, dtype=np.int16)
    held[40] = crf.energies[:, 40].argmax()  # what its probabilities think least of
    moved = pm.mean_field(edited_crf(crf, held), 20, engine="reference").marginals
    before = pm.mean_field(crf, 20, engine="reference").marginals
    change = np.abs(crf.grid.gather(moved) - crf.grid.gather(before)).max(axis=0)
    assert change[40] > 0.5
    assert np.delete(change, 40).max() > 0.01


def test_it_is_part_of_what_names_a_crf() -> None:
    digests = {pm.sample(volume(c), 1, iterations=1).problem for c in (0.0, 0.5, 1.0)}
    assert len(digests) == 3


def test_energies_and_free_energies_are_those_of_the_centred_model() -> None:
    crf = volume(0.5)
    solver = prepare(volume(0.0), "reference", batch=1)
    solver.load(crf.energies[np.newaxis])
    centre = crf.grid.scatter(0.5 * solver.pairwise()[0], 0)
    unary = crf.grid.scatter(crf.energies, 0) - centre
    plain = pm.DenseCRF(
        unary=unary,
        kernels=crf.kernels,
        compatibility=[[0.0, 1.0, 0.6], [1.0, 0.0, 0.3], [0.6, 0.3, 0.0]],
        spacing=crf.grid.spacing,
        mask=crf.grid.mask,
    )
    labels = np.random.default_rng(0).integers(0, 3, crf.shape)
    assert crf.energy(labels) == pytest.approx(plain.energy(labels))
    options = {"iterations": 60, "tolerance": 1e-9, "engine": "reference"}
    ours, theirs = pm.mean_field(crf, **options), pm.mean_field(plain, **options)
    assert ours.free_energy == pytest.approx(theirs.free_energy)


@pytest.mark.parametrize("value", [-0.1, 1.5, float("nan")])
def test_bad_values_are_refused_by_name(value: float) -> None:
    with pytest.raises(ValueError, match="centring must be"):
        pm.DenseCRF(unary=np.zeros((2, 3)), centring=value)


def test_what_is_learned_of_a_centred_crf_stays_centred() -> None:
    truth = np.zeros((6, 5, 4), dtype=int)
    truth[2:4] = 1
    learned = pm.learn([volume(0.5)], [truth], iterations=3, steps=2, engine="reference")
    assert learned.objective_after > learned.objective_before
    assert learned.apply(volume(0.5)).centring == 0.5
