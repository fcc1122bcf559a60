"""Iterating a solver, and judging whether it has converged and, if not, why."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from perturb_mpm.engines.protocol import Solver, Update

# The largest change of a marginal that counts as converged where no tolerance is given.
USUAL_TOLERANCE = 0.01


class ConvergenceWarning(UserWarning):
    """The marginals still moved when the iterations ran out."""


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


def iterate(
    solver: Solver, iterations: int, tolerance: float | None, update: Update, damping: float
) -> Course:
    """Update the one problem loaded in ``solver`` until the tolerance or the iterations are met."""
    limit = USUAL_TOLERANCE if tolerance is None else tolerance
    previous = change = foreground = two_updates = math.nan
    before_last = None
    done = 0
    while done < iterations and not (tolerance is not None and change <= tolerance):
        if done == iterations - 2 and not change <= limit:
            before_last = solver.marginals()
        watched = tolerance is not None or done >= iterations - 2
        step = solver.step(update, damping, watched=watched)
        done += 1
        previous = change
        if watched:
            change, foreground = float(step.maximum[0]), float(step.foreground[0])
    if before_last is not None and done == iterations:
        two_updates = float(np.abs(solver.marginals() - before_last).max())
    return Course(update, done, change <= limit, change, foreground, previous, two_updates)
