"""The search for the best parameters: L-BFGS-B in phases, with a pull towards the start."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.learning.objectives import Objective
from perturb_mpm.learning.parameters import Layout, Parameters, Phase
from perturb_mpm.learning.problem import Problem, same_layout
from perturb_mpm.learning.reverse import backwards, forwards

Progress = Callable[[str, int, float], object]


@dataclass(frozen=True)
class Step:
    """One evaluation during the search: its phase, the objective and what the pull takes off."""

    phase: str
    objective: float
    penalty: float


@dataclass(eq=False)
class Search:
    """The loss −objective + λ/2·|θ|² over labelled volumes, and the course of its minimisation."""

    problems: Sequence[Problem]
    objective: Objective
    iterations: int
    strength: float  # λ
    progress: Progress | None = None
    trace: list[Step] = field(default_factory=list)

    @property
    def layout(self) -> Layout:
        """Where each parameter stands in θ."""
        return same_layout(self.problems)

    def value(self, parameters: Parameters) -> float:
        """Return the objective of all volumes."""
        sums = [
            self.objective.sums(
                forwards(problem, parameters, self.iterations).marginals[-1], problem.truth
            )
            for problem in self.problems
        ]
        return self.objective.value(np.sum(sums, axis=0))

    def minimise(self, theta: NDArray[np.float64], phase: Phase, steps: int) -> NDArray[np.float64]:
        """Move what the phase moves, by at most so many steps, and return the best θ seen.

        A lattice is not quite smooth in its bandwidths, and the last θ need not be the best.
        """
        from scipy.optimize import minimize

        layout = self.layout
        moved = layout.moved_in(phase)
        best = (np.inf, theta)

        def loss(free: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
            nonlocal best
            candidate = theta.copy()
            candidate[moved] = free
            value, gradient = self._loss(candidate, phase)
            if value < best[0]:
                best = (value, candidate)
            return value, gradient[moved]

        bounds = [bound for bound, free in zip(layout.bounds(), moved, strict=True) if free]
        minimize(
            loss,
            theta[moved],
            jac=True,
            method="L-BFGS-B",
            bounds=bounds,
            options={"maxiter": steps, "maxfun": 2 * steps, "ftol": 1e-7, "gtol": 1e-6},
        )
        return best[1]

    def _loss(self, theta: NDArray[np.float64], phase: Phase) -> tuple[float, NDArray[np.float64]]:
        """Return the loss and its gradient.

        The objective pools the volumes: its gradient in one needs the sums of all, so that every
        volume's course is kept until they are known.
        """
        layout = self.layout
        parameters = layout.unpack(theta)
        courses = [forwards(problem, parameters, self.iterations) for problem in self.problems]
        pairs = list(zip(self.problems, courses, strict=True))
        last = [(problem, course.marginals[-1]) for problem, course in pairs]
        sums: NDArray[np.float64] = np.sum(
            [self.objective.sums(q, problem.truth) for problem, q in last], axis=0
        )
        value = self.objective.value(sums)
        gradient = np.zeros(layout.size)
        for problem, course in pairs:
            slope = self.objective.gradient(course.marginals[-1], problem.truth, sums)
            found = backwards(problem, course, slope, bandwidths=phase == "bandwidths")
            gradient += layout.pack(found)
        penalty = 0.5 * self.strength * float(theta @ theta)
        self.trace.append(Step(phase, value, penalty))
        if self.progress is not None:
            self.progress(phase, len(self.trace), value)
        return penalty - value, self.strength * theta - gradient
