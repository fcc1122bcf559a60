"""Means over the draws, their table, and how an estimator stands beside mean field."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lab.synthetic.measuring import ErrorRow
from lab.synthetic.plan import SyntheticPlan
from lab.words import join_words

Metric = Literal["total_variation", "log_probability_error_nats"]
METRICS: tuple[Metric, Metric] = ("total_variation", "log_probability_error_nats")

SELF_TERM = {False: "excluded", True: "kept"}

METRIC_NAMES: dict[Metric, str] = {
    "log_probability_error_nats": "log-probability error",
    "total_variation": "total variation",
}

SELF_TERM_WORDS = {False: "without self term", True: "with the self term"}

_OF_A_METRIC = ("mean", "standard_error", "largest", "draws_below_mean_field", "run_error")

# The paper: lower than mean field "from |S| = 50 on".
CLAIMED_FROM = 50


class Condition(NamedTuple):
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
    run_error: float = 0.0
    """The standard error of the mean over the noise, the draws given; 0 of what is one run."""


@dataclass(frozen=True)
class ErrorSummary:
    """The spread of both metrics, condition by condition in the order of the run."""

    conditions: dict[Condition, dict[Metric, Spread]]
    draws: int

    def get(self, metric: Metric, case: Condition) -> Spread:
        """Return the spread of one case."""
        return self.conditions[case][metric]

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
            case.samples: found[metric]
            for case, found in self.conditions.items()
            if case[:7] == wanted
        }


def summarise(rows: Iterable[ErrorRow]) -> ErrorSummary:
    """Take the means over the draws."""
    groups: dict[Condition, list[ErrorRow]] = {}
    for row in rows:
        groups.setdefault(Condition(*row[:8]), []).append(row)
    cases = {}
    for case, members in groups.items():
        plain = case._replace(estimator="mean field", samples=None)
        cases[case] = {
            metric: _spread(members, groups.get(plain, []), metric) for metric in METRICS
        }
    return ErrorSummary(cases, max(len(members) for members in groups.values()))


def _spread(members: list[ErrorRow], of_mean_field: list[ErrorRow], metric: Metric) -> Spread:
    values = np.array([getattr(row, metric) for row in members])  # (D,)
    below = None
    if of_mean_field and members[0].estimator != "mean field":
        plain = np.array([getattr(row, metric) for row in of_mean_field])  # (D,)
        below = int((values < plain).sum())
    of_runs = np.array([getattr(row, f"{metric}_run_error") for row in members])  # (D,)
    deviation = values.std(ddof=1) if values.size > 1 else np.nan
    return Spread(
        mean=float(values.mean()),
        standard_error=float(deviation / np.sqrt(values.size)),
        largest=float(values.max()),
        below_mean_field=below,
        run_error=float(np.sqrt(np.nansum(np.square(of_runs))) / values.size),
    )


COLUMNS = (
    *Condition._fields,
    "draws",
    *(f"{metric}_{of}" for metric in METRICS for of in _OF_A_METRIC),
)


def csv_bytes(summary: ErrorSummary) -> bytes:
    """Return the table; an empty cell is something that does not apply."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for case, found in summary.conditions.items():
        spreads = (cell for metric in METRICS for cell in _cells(found[metric]))
        writer.writerow([*(_cell(value) for value in case), summary.draws, *spreads])
    return text.getvalue().encode()


def _cells(spread: Spread) -> list[str]:
    numbers = (spread.mean, spread.standard_error, spread.largest)
    below = _cell(spread.below_mean_field)
    return [*(f"{value:.6g}" for value in numbers), below, f"{spread.run_error:.2g}"]


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return SELF_TERM[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class MapComparison:
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


def compared_in_map(
    summary: ErrorSummary, plan: SyntheticPlan, metric: Metric, estimator: str, *, self_term: bool
) -> MapComparison:
    """Compare an estimator with mean field over all grids, weights and widths."""

    def errors(name: str, samples: int | None = plan.map_samples) -> NDArray[np.float64]:
        """Return the mean errors, (grids, sigmas, weights)."""
        arguments = (summary, plan, metric)
        return np.stack(
            [mean_errors(*arguments, n, name, samples, self_term=self_term) for n in plan.voxels]
        )

    mine, plain = errors(estimator), errors("mean field", None)
    lower, matters = mine < plain, errors("exact samples") < plain
    return MapComparison(
        lower=int(lower.sum()),
        points=lower.size,
        lower_where_samples_matter=int((lower & matters).sum()),
        points_where_samples_matter=int(matters.sum()),
        largest_excess=max(0.0, float((mine - plain).max())),
    )


def ratios(
    summary: ErrorSummary,
    plan: SyntheticPlan,
    metric: Metric,
    voxels: int,
    estimator: str,
    *,
    self_term: bool,
) -> NDArray[np.float64]:
    """Return the mean error of an estimator over that of mean field, (sigmas, weights)."""
    arguments = (summary, plan, metric, voxels)
    mine = mean_errors(*arguments, estimator, plan.map_samples, self_term=self_term)
    return mine / mean_errors(*arguments, "mean field", None, self_term=self_term)


def mean_errors(
    summary: ErrorSummary,
    plan: SyntheticPlan,
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
                    metric,
                    Condition("map", voxels, 2, weight, sigma, self_term, estimator, samples),
                ).mean
                for weight in plan.map_weights
            ]
            for sigma in plan.map_sigmas
        ]
    )


@dataclass(frozen=True)
class Size:
    """Votes beside mean field on grids of one size."""

    voxels: int
    mean_field: float
    votes: float
    conditional: float
    """Both at the largest number of samples."""
    lower_from: int | None
    """The number of samples from which on the expected error of votes is below mean field's by
    two standard errors or more; None: never."""
    claimed: Spread
    """Votes at the number of samples that the paper names."""
    last_change: float
    """How much the error of votes changed, relative to it, with the last step in samples."""


@dataclass(frozen=True)
class Reading:
    """One weight, width, self term and metric."""

    weight: float
    sigma: float
    self_term: bool
    metric: Metric
    sizes: tuple[Size, ...]

    @property
    def holds_for(self) -> tuple[int, ...]:
        """The sizes N at which votes are below mean field from 50 samples on."""
        return tuple(
            size.voxels
            for size in self.sizes
            if size.lower_from is not None and size.lower_from <= CLAIMED_FROM
        )

    @property
    def holds(self) -> bool:
        """Whether they are at every size."""
        return len(self.holds_for) == len(self.sizes)

    @property
    def verdict(self) -> str:
        """For which sizes the claim holds, in words."""
        if self.holds:
            return "holds"
        if not self.holds_for:
            return "fails"
        return f"holds for N = {join_words([str(n) for n in self.holds_for])}"


def readings(summary: ErrorSummary, plan: SyntheticPlan) -> list[Reading]:
    """Return all readings: the metric of the caption first, as in the paper's figure."""
    return [
        Reading(
            weight,
            sigma,
            self_term,
            metric,
            tuple(
                _size(summary, plan, metric, voxels, (weight, sigma, self_term))
                for voxels in plan.voxels
            ),
        )
        for metric, self_term, (weight, sigma) in product(
            METRICS[::-1], (False, True), plan.curve_settings
        )
    ]


def _size(
    summary: ErrorSummary,
    plan: SyntheticPlan,
    metric: Metric,
    voxels: int,
    setting: tuple[float, float, bool],
) -> Size:
    means = {}
    for estimator in ("mean field", "votes", "conditional"):
        found = summary.curve(metric, "curves", voxels, setting, estimator)
        means[estimator] = [spread.mean for spread in found.values()]
    [plain] = means["mean field"]
    votes = means["votes"]
    spreads = summary.curve(metric, "curves", voxels, setting, "votes")
    lower_from = None
    for samples in reversed(plan.curve_samples):
        if spreads[samples].mean + 2 * spreads[samples].run_error >= plain:
            break
        lower_from = samples
    return Size(
        voxels=voxels,
        mean_field=plain,
        votes=votes[-1],
        conditional=means["conditional"][-1],
        lower_from=lower_from,
        claimed=spreads[CLAIMED_FROM],
        last_change=abs(votes[-1] / votes[-2] - 1),
    )
