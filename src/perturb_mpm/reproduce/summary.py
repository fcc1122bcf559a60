"""Means over the draws, and how to find them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from perturb_mpm.reproduce.rows import Row

Metric = Literal["total_variation", "log_probability_error_nats"]
METRICS: tuple[Metric, Metric] = ("total_variation", "log_probability_error_nats")

SELF_TERM = {False: "excluded", True: "kept"}


class Case(NamedTuple):
    """All that names a mean: a row without its draw and errors."""

    experiment: str
    voxels: int
    labels: int
    weight: float
    sigma_voxels: float | None
    self_term: bool
    estimator: str
    samples: int | None


@dataclass(frozen=True)
class Spread:
    """One metric over the draws."""

    mean: float
    standard_error: float
    largest: float
    below_mean_field: int | None
    """In how many draws it is less than that of mean field; None where there is none."""


@dataclass(frozen=True)
class Summary:
    """The spread of both metrics, case by case in the order of the run."""

    cases: dict[Case, dict[Metric, Spread]]
    draws: int

    def get(self, metric: Metric, case: Case) -> Spread:
        """Return the spread of one case."""
        return self.cases[case][metric]

    def compared(
        self, metric: Metric, voxels: int, setting: tuple[float, float], estimator: str, size: int
    ) -> Spread:
        """Return the spread of a comparator without self term, at a number of samples."""
        samples = None if estimator == "mean field" else size
        return self.curve(metric, "comparators", voxels, (*setting, False), estimator)[samples]

    def curve(
        self,
        metric: Metric,
        experiment: str,
        voxels: int,
        setting: tuple[float, float, bool],
        estimator: str,
    ) -> dict[int | None, Spread]:
        """Return the spread of one estimator at every number of samples it was measured at."""
        weight, sigma, self_term = setting
        wanted = (experiment, voxels, 2, weight, sigma, self_term, estimator)
        return {
            case.samples: found[metric] for case, found in self.cases.items() if case[:7] == wanted
        }


def summarise(rows: Iterable[Row]) -> Summary:
    """Take the means over the draws."""
    groups: dict[Case, list[Row]] = {}
    for row in rows:
        groups.setdefault(Case(*row[:8]), []).append(row)
    cases = {}
    for case, members in groups.items():
        plain = case._replace(estimator="mean field", samples=None)
        cases[case] = {
            metric: _spread(members, groups.get(plain, []), metric) for metric in METRICS
        }
    return Summary(cases, max(len(members) for members in groups.values()))


def _spread(members: list[Row], of_mean_field: list[Row], metric: Metric) -> Spread:
    values = np.array([getattr(row, metric) for row in members])  # (D,)
    below = None
    if of_mean_field and members[0].estimator != "mean field":
        plain = np.array([getattr(row, metric) for row in of_mean_field])  # (D,)
        below = int((values < plain).sum())
    deviation = values.std(ddof=1) if values.size > 1 else np.nan
    return Spread(
        mean=float(values.mean()),
        standard_error=float(deviation / np.sqrt(values.size)),
        largest=float(values.max()),
        below_mean_field=below,
    )
