"""Gibbs sampling on grids of any size, and integer programs, against enumeration."""

from __future__ import annotations

import numpy as np
import pytest

import perturb_mpm as pm
from helpers.agreement import disagreement
from lab.comparators import (
    Enumeration,
    GridCRF,
    gibbs_grid,
    perturb_and_map,
    perturb_and_solve,
    solve_program,
)


def grid(labels: int, neighbours: str = "faces", seed: int = 0) -> GridCRF:
    unary = np.random.default_rng(seed).normal(size=(labels, 3, 3))
    return GridCRF(unary, 0.6, neighbours=neighbours)


@pytest.mark.parametrize("neighbours", ["faces", "all"])
def test_gibbs_on_a_grid_has_the_marginals_of_enumeration(neighbours: str) -> None:
    crf = grid(3, neighbours)
    found = gibbs_grid(crf, 3000, 1, thin=3).marginals
    truth = Enumeration(crf).marginals
    assert disagreement(found, truth, 2000) < 4
    without = np.exp(-crf.energies).reshape(3, 3, 3)
    assert disagreement(without / without.sum(axis=0), truth, 2000) > 6  # the coupling matters


def test_gibbs_on_a_grid_needs_neighbours() -> None:
    with pytest.raises(TypeError, match="crf must be a GridCRF, got DenseCRF"):
        gibbs_grid(pm.DenseCRF(unary=np.zeros((2, 3))), 1, 0)  # type: ignore[arg-type]


@pytest.mark.parametrize("labels", [2, 3])
def test_an_integer_program_finds_the_least_energy(labels: int) -> None:
    for seed in range(4):
        crf = grid(labels, seed=seed)
        found = crf.grid.scatter(solve_program(crf, crf.energies), 0)
        assert crf.energy(found) == pytest.approx(Enumeration(crf).energy)


def test_samples_of_integer_programs_are_those_of_exact_map() -> None:
    crf = grid(3)
    np.testing.assert_array_equal(
        perturb_and_solve(crf, 6, 2).counts, perturb_and_map(crf, 6, 2).counts
    )


def test_large_programs_are_refused() -> None:
    crf = GridCRF(np.zeros((2, 40, 40)), 1.0)
    with pytest.raises(ValueError, match="at most 1000 voxels for an integer program, got 1600"):
        perturb_and_solve(crf, 1, 0)
