"""Perturbed MAP by integer linear programs, as Kim et al. (2016) sample; small grids only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.comparators.common import Collector, GridCRF, Samples, problem
from perturb_mpm.noise import gumbel
from perturb_mpm.posterior import Posterior

LARGEST_VOXELS = 1000


def solve_program(crf: GridCRF, energies: NDArray[Any]) -> NDArray[np.uint8]:
    """Return the labels (N,) of least energy with these unary energies (L, N), by one program.

    y_i(l) ∈ {0, 1} says that voxel i has label l, z_e(l) ≥ |y_i(l) − y_j(l)| that an edge's ends
    differ in it: minimise Σ U_i(l) y_i(l) + Σ w_e/2 Σ_l z_e(l) with Σ_l y_i(l) = 1. Exact for any
    number of labels.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import eye_array, hstack, kron, vstack

    n_labels, size = energies.shape
    edges = len(crf.edges.weight)
    rows = np.repeat(np.arange(edges), 2)
    columns = np.stack([crf.edges.first, crf.edges.second], axis=1).ravel()
    from scipy.sparse import coo_array

    signs = np.tile([1.0, -1.0], edges)
    difference = kron(eye_array(n_labels), coo_array((signs, (rows, columns)), (edges, size)))
    slack = eye_array(n_labels * edges)
    one_label = hstack(
        [kron(np.ones((1, n_labels)), eye_array(size)), coo_array((size, n_labels * edges))]
    )
    costs = np.concatenate(
        [energies.astype(np.float64).ravel(), np.tile(crf.edges.weight / 2, n_labels)]
    )
    found = milp(
        costs,
        integrality=np.concatenate([np.ones(n_labels * size), np.zeros(n_labels * edges)]),
        bounds=Bounds(0, 1),
        constraints=[
            LinearConstraint(one_label.tocsr(), 1, 1),
            LinearConstraint(
                vstack([hstack([difference, -slack]), hstack([-difference, -slack])]).tocsr(),
                -np.inf,
                0,
            ),
        ],
    )
    if found.x is None:
        raise RuntimeError(f"the integer program was not solved: {found.message}")
    chosen = found.x[: n_labels * size].reshape(n_labels, size)
    labels: NDArray[np.uint8] = chosen.argmax(axis=0).astype(np.uint8)
    return labels


def perturb_and_solve(crf: GridCRF, samples: Samples, seed: int) -> Posterior:
    """Draw samples by order-1 perturbation, each the exact solution of an integer program.

    The noise is that of ``pm.sample``. Unlike α-expansion the minimum is exact with several labels
    too; the time of one program grows quickly: at most 1,000 voxels.
    """
    if not isinstance(crf, GridCRF):
        raise TypeError(f"crf must be a GridCRF, got {type(crf).__name__}")
    if crf.grid.voxels > LARGEST_VOXELS:
        raise ValueError(
            f"crf must have at most {LARGEST_VOXELS} voxels for an integer program, "
            f"got {crf.grid.voxels}: use a smaller mask"
        )
    run = Collector("perturb_and_solve", samples, seed)
    draws = _perturb(crf, run.samples, run.seed)
    return run.collect(crf.grid, crf.n_labels, draws, problem(crf))


def _perturb(crf: GridCRF, samples: range, seed: int) -> Iterator[NDArray[np.uint8]]:
    for index in samples:
        noise = gumbel(seed, range(index, index + 1), crf.grid.index, crf.n_labels)[0]  # (L, N)
        yield solve_program(crf, crf.energies - noise)[np.newaxis]
