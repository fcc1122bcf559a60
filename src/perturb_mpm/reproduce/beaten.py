"""Over weight and width: an estimator's error beside that of mean field."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.reproduce.plan import Plan
from perturb_mpm.reproduce.summary import Case, Metric, Summary


@dataclass(frozen=True)
class Beaten:
    """In how many points of the map, of all grids, an estimator is closer than mean field."""

    lower: int
    points: int
    lower_where_samples_matter: int
    """Among the points where as many exact samples are closer than mean field too."""
    points_where_samples_matter: int
    largest_excess: float
    """How much larger its error is than that of mean field, at worst; 0 where it never is."""

    @property
    def in_words(self) -> str:
        """Return both counts."""
        matter = f"{self.lower_where_samples_matter} of {self.points_where_samples_matter}"
        return f"{self.lower} of {self.points} ({matter})"


def beaten_in_map(
    summary: Summary, plan: Plan, metric: Metric, estimator: str, *, self_term: bool
) -> Beaten:
    """Compare an estimator with mean field over all grids, weights and widths."""

    def errors(name: str, samples: int | None = plan.map_samples) -> NDArray[np.float64]:
        """Return the mean errors, (grids, sigmas, weights)."""
        arguments = (summary, plan, metric)
        return np.stack(
            [mean_errors(*arguments, n, name, samples, self_term=self_term) for n in plan.voxels]
        )

    mine, plain = errors(estimator), errors("mean field", None)
    lower, matters = mine < plain, errors("exact samples") < plain
    return Beaten(
        lower=int(lower.sum()),
        points=lower.size,
        lower_where_samples_matter=int((lower & matters).sum()),
        points_where_samples_matter=int(matters.sum()),
        largest_excess=max(0.0, float((mine - plain).max())),
    )


def ratios(
    summary: Summary, plan: Plan, metric: Metric, voxels: int, estimator: str, *, self_term: bool
) -> NDArray[np.float64]:
    """Return the mean error of an estimator over that of mean field, (sigmas, weights)."""
    arguments = (summary, plan, metric, voxels)
    mine = mean_errors(*arguments, estimator, plan.map_samples, self_term=self_term)
    return mine / mean_errors(*arguments, "mean field", None, self_term=self_term)


def mean_errors(
    summary: Summary,
    plan: Plan,
    metric: Metric,
    voxels: int,
    estimator: str,
    samples: int | None,
    *,
    self_term: bool,
) -> NDArray[np.float64]:
    """Return the mean errors of an estimator, (sigmas, weights)."""
    return np.array(
        [
            [
                summary.get(
                    metric, Case("map", voxels, 2, weight, sigma, self_term, estimator, samples)
                ).mean
                for weight in plan.map_weights
            ]
            for sigma in plan.map_sigmas
        ]
    )
