"""Measured values, one a row, and their mean and spread over the cases of a cohort.

A standard deviation over cases, samples or raters divides by n − 1, here and in all other modules.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

ALL = "all labels"
"""The region of measures that look at every label at once."""


@dataclass(frozen=True)
class Measurement:
    """One measured value; NaN where the measure is not defined for this case.

    Examples
    --------
    >>> from perturb_mpm.evaluation import Measurement
    >>> Measurement("P1", "votes", "core", "brain", "dice", 0.91).value
    0.91
    """

    case: str
    method: str
    region: str
    domain: str
    metric: str
    value: float
    against: str = "truth"


@dataclass(frozen=True)
class MetricSummary:
    """A metric over the cases of a cohort.

    Examples
    --------
    >>> from perturb_mpm.evaluation import Measurement, summarise
    >>> summarise([Measurement("P1", "votes", "core", "brain", "dice", 0.9)])[0].median
    0.9
    """

    method: str
    region: str
    domain: str
    metric: str
    mean: float
    sd: float
    """The standard deviation, which divides by n − 1; NaN for one case."""
    median: float
    cases: int
    undefined: int
    """Cases without a value, left out."""
    against: str = "truth"


def summarise(rows: Iterable[Measurement]) -> list[MetricSummary]:
    """Return mean, sd and median of every metric over cases, in the order they first appear.

    Examples
    --------
    >>> from perturb_mpm.evaluation import Measurement, summarise
    >>> rows = [Measurement(f"P{n}", "votes", "core", "brain", "dice", n / 10) for n in (7, 8, 9)]
    >>> summary = summarise(rows)[0]
    >>> round(summary.mean, 2), summary.cases
    (0.8, 3)
    """
    groups: dict[tuple[str, str, str, str, str], list[float]] = defaultdict(list)
    for row in rows:
        groups[row.method, row.region, row.domain, row.metric, row.against].append(row.value)
    summaries = []
    for (method, region, domain, metric, against), values in groups.items():
        array = np.array(values)
        defined = array[np.isfinite(array)]
        n = len(defined)
        summaries.append(
            MetricSummary(
                method,
                region,
                domain,
                metric,
                float(defined.mean()) if n else math.nan,
                float(defined.std(ddof=1)) if n > 1 else math.nan,
                float(np.median(defined)) if n else math.nan,
                n,
                len(array) - n,
                against,
            )
        )
    return summaries
