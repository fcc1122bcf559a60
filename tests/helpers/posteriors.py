"""A stand-in for sampling: each sample is a pure function of its number."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from perturb_mpm.engines import fixed_point
from perturb_mpm.model import Grid
from perturb_mpm.posterior import Posterior

L = 3
SHAPE = (4, 5)
MASK = np.random.default_rng(5).random(SHAPE) < 0.6
GRID = Grid(SHAPE, (1.0, 2.5), MASK)
PARAMETERS = {"seed": 7, "iterations": 5, "lengths_mm": [[20.0, 1.0]]}
PROBLEM = {"energies": "ab12", "kernels": ["cd34"]}


def sample(number: int, grid: Grid = GRID) -> tuple[np.ndarray, np.ndarray, float]:
    """Return the labels (N,), the conditional marginals (L, N) and the label change of a sample."""
    rng = np.random.default_rng([2, number])
    lean = np.array([4.0, 1.0, 0.3])
    p = rng.dirichlet(lean, size=grid.voxels).T.astype(np.float32)
    return rng.integers(L, size=grid.voxels) * (rng.random(grid.voxels) < 0.5), p, rng.random()


def run(numbers: Iterable[int], grid: Grid = GRID, **changes: Any) -> Posterior:
    index = list(numbers)
    drawn = [sample(number, grid) for number in index]
    labels = np.array([x for x, _, _ in drawn])  # (S, N)
    each = labels[:, np.newaxis] == np.arange(L)[:, np.newaxis]  # (S, L, N)
    mean_field = np.random.default_rng(1).dirichlet(np.ones(L), size=grid.voxels).T
    arguments: dict[str, Any] = {
        "grid": grid,
        "counts": each.sum(axis=0),
        "sample_index": index,
        "volumes": each.sum(axis=2) * np.prod(grid.spacing),
        "problem": PROBLEM,
        "parameters": PARAMETERS,
        "conditional": sum(fixed_point(p) for _, p, _ in drawn),
        "mean_field": mean_field.astype(np.float32),
        "label_changes": [change for _, _, change in drawn],
    }
    return Posterior(**(arguments | changes))


def of_counts(counts: Any, /, **changes: Any) -> Posterior:
    """Return a posterior with these votes, (L, *spatial), and volumes that fit them."""
    votes = np.asarray(counts)
    samples = int(votes.reshape(len(votes), -1)[:, 0].sum())
    total = votes.reshape(len(votes), -1).sum(axis=1, dtype=np.float64)
    arguments: dict[str, Any] = {
        "grid": Grid(votes.shape[1:]),
        "counts": votes,
        "sample_index": np.arange(samples),
        "volumes": np.tile(total / samples, (samples, 1)),
        "problem": "made up",
        "parameters": {},
    }
    return Posterior(**(arguments | changes))
