"""Calibrate: the temperature of the maps, and how much of what labels say of it is believed.

The log score of every case is tabulated over a list of temperatures once. What a set of cases
prefers, what it would have cost cases left out, and both again without each fold are then means
over rows of the table: a choice for a fold never rests on anything that saw the fold.

The search goes from the temperature of the grid, which needs no label, to the one that labels
prefer: nothing of the way, half or all of it, whichever scores best on cases left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.tune.problem import CaseSamples, LabelledProblem, log_score
from perturb_mpm.tune.study import Folds

TEMPERATURES = np.round(np.geomspace(0.5, 12.0, 65), 3)  # in steps of 5 %
SHARES = (0.0, 0.5, 1.0)
"""How much of the way from the grid's temperature to that of the labels may be gone."""

# Of a large case every few voxels are enough for one number.
_MOST_VOXELS = 10_000


@dataclass(frozen=True)
class LearnedTemperature:
    """A temperature of the maps, and how much of what the labels say it believes."""

    temperature: float | None
    """None where each case takes that of its own grid."""
    share: float
    by_labels: float

    def for_case(self, grid: float) -> float:
        """Return the temperature of a case whose grid has this one."""
        return grid if self.temperature is None else self.temperature


@dataclass(frozen=True, eq=False)
class TemperatureTable:
    """The log score near foreground of each case at each of ``TEMPERATURES``, nats."""

    losses: NDArray[np.float64]  # (cases, temperatures)
    grid: NDArray[np.float64]  # (cases,), the grid's temperatures

    def learn(
        self, cases: Sequence[int], folds: Folds, shares: Sequence[float] = SHARES
    ) -> LearnedTemperature:
        """Return the temperature that these cases teach."""
        share = shares[0]
        if len(shares) > 1:
            costs = [self.left_out_score(cases, folds, [each]) for each in shares]
            share = shares[int(np.argmin(costs))]
        mean = self.losses[list(cases)].mean(axis=0)
        preferred = float(TEMPERATURES[int(mean.argmin())])
        if share == 0:
            return LearnedTemperature(None, share, preferred)
        log_grid = float(np.log(self.grid[list(cases)]).mean())
        temperature = math.exp((1 - share) * log_grid + share * math.log(preferred))
        return LearnedTemperature(float(f"{temperature:.4g}"), share, preferred)

    def left_out_score(
        self, cases: Sequence[int], folds: Folds, shares: Sequence[float] = SHARES
    ) -> float:
        """Return the mean log score of these cases, each under what the others teach, nats."""
        scores = []
        for inner, outer in folds.split(cases):
            learned = self.learn(outer, folds, shares)
            scores += [self.score(case, learned) for case in inner]
        return float(np.mean(scores))

    def score(self, case: int, learned: LearnedTemperature) -> float:
        """Return the log score of a case, between the temperatures of the table, nats."""
        temperature = learned.for_case(float(self.grid[case]))
        return float(np.interp(math.log(temperature), np.log(TEMPERATURES), self.losses[case]))


def tabulate_temperatures(
    problems: Sequence[LabelledProblem], samples: Sequence[CaseSamples]
) -> TemperatureTable:
    """Score the maps of every case at every temperature."""
    losses = np.empty((len(problems), len(TEMPERATURES)))
    for row, problem, drawn in zip(losses, problems, samples, strict=True):
        voxels = np.flatnonzero(problem.near)
        voxels = voxels[:: -(-len(voxels) // _MOST_VOXELS)]
        truth = problem.truth[voxels]
        field = None if drawn.mean_field is None else drawn.mean_field[:, voxels]
        for column, temperature in enumerate(TEMPERATURES):
            q = problem.temper(temperature, voxels)
            row[column] = log_score(q if field is None else (q + field) / 2, truth)
    return TemperatureTable(losses, np.array([each.grid_temperature for each in problems]))
