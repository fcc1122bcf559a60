"""Mean field of one problem: its marginals, whether it has converged, and why not.

``run_updates`` is the loop of every mean field: of one problem here, of samples and of edits.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from perturb_mpm import checks
from perturb_mpm.engines import (
    MOST_ITERATIONS,
    Accuracy,
    Change,
    Engine,
    Solver,
    Update,
    Updates,
    check_convergent,
    prepare,
)
from perturb_mpm.model import DenseCRF

# The largest change of a marginal that counts as converged where no tolerance is given.
USUAL_TOLERANCE = 0.01


class ConvergenceWarning(UserWarning):
    """The marginals still moved when the iterations ran out.

    Examples
    --------
    >>> import warnings
    >>> unary = pm.unary_from_logits(np.random.default_rng(0).normal(size=(2, 30)))
    >>> crf = pm.DenseCRF(unary, [pm.SpatialKernel(sigma=3.0, weight=9.0)])
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     q = pm.mean_field(crf, iterations=1, engine="reference")
    >>> caught[0].category.__name__, q.converged
    ('ConvergenceWarning', False)
    """


@dataclass(frozen=True)
class Course:
    """How the iterations of one problem went; a change that was not measured is NaN."""

    update: Update
    iterations: int
    converged: bool
    change: float
    """The largest change of a marginal in the last update, |Q_t − Q_{t−1}|."""
    foreground: float
    """The same in the foreground."""
    previous: float
    """The largest change in the update before."""
    two_updates: float
    """The largest change over the last two updates together, |Q_t − Q_{t−2}|."""

    def complaint(self) -> str:
        """Say that the problem has not converged, why, and what to do about it."""
        return (
            f"mean field has not converged after {self.iterations} iterations: the last one "
            f"changed a marginal by {self.change:.2g} ({self.foreground:.2g} in the foreground). "
            f"{self._reason()}"
        )

    def _reason(self) -> str:
        if self.update == "convergent":
            return "The free energy still falls: raise iterations."
        if self.two_updates < self.change / 2:
            return 'It oscillates between two states: use damping=0.5 or update="convergent".'
        if self.change >= self.previous:
            return (
                f"The change does not fall ({self.previous:.2g} before): raise iterations, and if "
                'that does not help use damping=0.5 or update="convergent".'
            )
        return "The change still falls: raise iterations."


@dataclass(frozen=True)
class Schedule:
    """How many updates are made, and how; dampings take turns."""

    iterations: int
    dampings: tuple[float, ...] = (0.0,)
    sharpness: float = 1.0
    update: Update = "parallel"
    watch_all: bool = False
    """Whether every update is watched; else the last two alone, which is quicker."""


def in_turn(values: tuple[float, ...], update: int) -> float:
    """Return the value of an update, counted from 0, where values take turns."""
    return values[update % len(values)]


def run_updates(problems: Updates, schedule: Schedule) -> Iterator[Change]:
    """Make one update for each change that is asked for; who has seen enough asks no more."""
    for done in range(schedule.iterations):
        yield problems.step(
            schedule.update,
            in_turn(schedule.dampings, done),
            sharpness=schedule.sharpness,
            watched=schedule.watch_all or done >= schedule.iterations - 2,
        )


def iterate(solver: Solver, schedule: Schedule, tolerance: float | None) -> Course:
    """Update the one problem loaded in ``solver`` until the tolerance or the iterations are met."""
    limit = USUAL_TOLERANCE if tolerance is None else tolerance
    iterations = schedule.iterations
    previous = change = foreground = two_updates = math.nan
    done, before_last = 0, solver.marginals() if iterations == 2 else None
    for done, step in enumerate(run_updates(solver, schedule), start=1):
        previous = change
        if schedule.watch_all or done > iterations - 2:
            change, foreground = float(step.maximum[0]), float(step.foreground[0])
        if tolerance is not None and change <= tolerance:
            break
        if done == iterations - 2 and not change <= limit:
            before_last = solver.marginals()
    if before_last is not None and done == iterations:
        two_updates = float(np.abs(solver.marginals() - before_last).max())
    converged = change <= limit
    return Course(schedule.update, done, converged, change, foreground, previous, two_updates)


@dataclass(frozen=True, eq=False)
class MeanField:
    """The result of ``mean_field``. Outside the mask: label 0, with a marginal of 1.

    Examples
    --------
    >>> crf = pm.DenseCRF(pm.unary_from_logits([[1.0, 0.0], [0.0, 0.0]]))
    >>> q = pm.mean_field(crf, engine="reference")
    >>> q.converged, q.labels.tolist()
    (True, [0, 0])
    >>> q.marginals.round(3)
    array([[0.731, 0.5  ],
           [0.269, 0.5  ]])
    """

    marginals: NDArray[Any] = field(repr=False)
    """Q, (L, *spatial)."""
    labels: NDArray[np.uint8] = field(repr=False)
    """The most probable label of each voxel, (*spatial)."""
    free_energy: float
    """Σ Q·U + Σ Q·log Q + ½ Σ Q·pairwise, in nats: never below −log Z without a self term."""
    converged: bool
    """Whether the last change is at most the tolerance, or 0.01 where none was given."""
    iterations: int
    """The number of updates made."""
    change: float
    """The largest change of any marginal in the last update; NaN where none was made."""
    change_foreground: float
    """The same over the voxels whose label, before or after the update, is not 0."""
    update: str
    damping: float
    engine: str
    accuracy: str

    @property
    def entropy(self) -> NDArray[np.float64]:
        """The entropy of each voxel's marginal in bits, (*spatial)."""
        bits = np.zeros(self.labels.shape)
        for q in self.marginals:  # (*spatial)
            bits -= _q_log_q(q) / math.log(2)
        return np.maximum(bits, 0.0)


def mean_field(
    crf: DenseCRF,
    iterations: int = 10,
    *,
    tolerance: float | None = None,
    damping: float = 0.0,
    update: Update = "parallel",
    engine: Engine = "auto",
    accuracy: Accuracy = "calibrated",
    threads: int | None = None,
    memory: int | str | None = None,
    kernel_cache: str | Path | None = None,
) -> MeanField:
    """Approximate the marginals of a CRF, starting at softmax(−unary).

    Parameters
    ----------
    crf
        The model.
    iterations
        How many updates to make, or the most where a tolerance is given; 0 leaves softmax(−unary).
    tolerance
        Stop as soon as no marginal changes by more than this.
    damping
        The share of the old marginals kept in each update, 0 ≤ damping < 1.
    update
        "parallel" updates all voxels at once, as is usual, and may oscillate under strong
        coupling. "convergent" lowers the free energy in every iteration.
    engine, accuracy, threads, memory, kernel_cache
        Where and how it is computed, see ``perturb_mpm.engines.prepare``.

    Warns
    -----
    ConvergenceWarning
        Where the marginals still move after the last iteration, with the reason.

    Examples
    --------
    >>> unary = pm.unary_from_probabilities([[0.8, 0.6, 0.45], [0.2, 0.4, 0.55]])
    >>> kernel = pm.SpatialKernel(sigma=1.0, weight=4.0)
    >>> q = pm.mean_field(pm.DenseCRF(unary, [kernel]), engine="reference")
    >>> q.labels  # the last voxel follows its neighbours
    array([0, 0, 0], dtype=uint8)
    """
    if not isinstance(crf, DenseCRF):
        raise TypeError(f"crf must be a DenseCRF, got {type(crf).__name__}")
    iterations = checks.integer(iterations, "iterations", minimum=0, maximum=MOST_ITERATIONS)
    if tolerance is not None:
        tolerance = checks.number(tolerance, "tolerance", minimum=0)
    damping = checks.number(damping, "damping", minimum=0, below=1)
    checks.choice(update, "update", get_args(Update))
    if update == "convergent":
        check_convergent(crf)
    solver = prepare(
        crf,
        engine,
        accuracy,
        batch=1,
        threads=threads,
        memory=memory,
        kernel_cache=kernel_cache,
    )
    solver.load(crf.energies[np.newaxis])
    schedule = Schedule(iterations, (damping,), update=update, watch_all=tolerance is not None)
    course = iterate(solver, schedule, tolerance)
    if iterations > 0 and not course.converged:
        warnings.warn(course.complaint(), ConvergenceWarning, stacklevel=2)

    marginals = solver.marginals()[0]  # (L, N)
    energies = crf.energies if solver.centre is None else crf.energies - solver.centre
    certain = np.arange(crf.n_labels) == 0  # (L,), outside the mask
    return MeanField(
        marginals=crf.grid.scatter(marginals, certain),
        labels=crf.grid.scatter(solver.labels()[0], 0),
        free_energy=_free_energy(energies, marginals, solver.pairwise()[0]),
        converged=course.converged,
        iterations=course.iterations,
        change=course.change,
        change_foreground=course.foreground,
        update=update,
        damping=damping,
        engine=solver.engine,
        accuracy=solver.accuracy,
    )


def _free_energy(energies: NDArray[Any], marginals: NDArray[Any], pairwise: NDArray[Any]) -> float:
    """Return F(Q), all arrays (L, N); label by label, to hold one float64 row at a time."""
    total = 0.0
    for u, q, message in zip(energies, marginals, pairwise):  # each (N,)
        total += float(np.sum(q * (u + message / 2.0), dtype=np.float64) + _q_log_q(q).sum())
    return total


def _q_log_q(q: NDArray[Any]) -> NDArray[np.float64]:
    """Return q·log q, 0 at q = 0."""
    wide: NDArray[np.float64] = q.astype(np.float64)
    return wide * np.log(wide, out=np.zeros_like(wide), where=wide > 0)
