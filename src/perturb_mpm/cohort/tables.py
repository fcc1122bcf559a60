"""The tables of a cohort, made of the records of its cases: cohort.csv and cohort.json.

Columns before ``seconds`` are the same bytes every time; those from there on say how it was
computed, and where.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from perturb_mpm.cohort.one_case import Record
from perturb_mpm.files import write_table
from perturb_mpm.storage import write_json
from perturb_mpm.version import version

_OF_CASE = ("samples", "intervals_rest_on", "mask_ml", "active_share")
_OF_ROW = (
    *("volume_ml", "interval_lower_ml", "interval_upper_ml"),
    *("mean_entropy_bits", "uncertain_frac", "network_confidence"),
    *("expected_dice", "dice", "true_volume_ml"),
)
_HOW = ("seconds", "peak_memory_mb", "worker")
COLUMNS = (
    *("case", "status", "rank", "kind", "label", "name"),
    *_OF_ROW,
    *_OF_CASE,
    *("outliers", "warnings", "error"),
    *_HOW,
)
_FAR = 3.5  # robust standard deviations from the median (Iglewicz and Hoaglin 1993)
_FEWEST = 8  # cases before one can be far from the others
_COMPARED = {  # a figure, and its name in words
    "volume_ml": "volume",
    "mean_entropy_bits": "entropy",
    "expected_dice": "expected Dice",
}
_NOT_TOLD = ("picture", "request", "inputs", "files")


@dataclass(frozen=True)
class RankAccuracy:
    """How well the expected Dice ranks cases, measured on those with a truth."""

    cases: int
    spearman: float | None  # of expected and true Dice, None below three cases
    mean_error: float | None  # expected less true Dice, mean


def ranked(records: Iterable[Record]) -> list[Record]:
    """Return done records first, the least Dice expected first, each with its rank and outliers."""
    every = list(records)
    done = [each for each in every if each["status"] == "done"]
    done.sort(key=lambda each: (_or(each["expected_dice"], math.inf), each["case"]))
    far = outliers(done)
    placed = [
        {**each, "rank": place, "outliers": far.get(each["case"], [])}
        for place, each in enumerate(done, start=1)
    ]
    failed = [each for each in every if each["status"] != "done"]
    failed.sort(key=lambda each: str(each["case"]))
    nothing: Record = {"rank": None, "outliers": [], "warnings": []}
    return placed + [{**each, **nothing} for each in failed]


def outliers(records: Sequence[Record]) -> dict[str, list[str]]:
    """Return case -> which of its figures are far from the other cases', in words."""
    columns: dict[tuple[str, str], dict[str, float]] = {}
    for record in records:
        for row in record["rows"]:
            for figure in _COMPARED:
                value = row[figure]
                if value is not None and math.isfinite(value):
                    columns.setdefault((row["name"], figure), {})[record["case"]] = value
    found: dict[str, list[str]] = {}
    for (name, figure), values in columns.items():
        for case, score in _robust_scores(values).items():
            if abs(score) > _FAR:
                side = "high" if score > 0 else "low"
                found.setdefault(case, []).append(f"{_COMPARED[figure]} of {name} unusually {side}")
    return found


def accuracy_of(records: Iterable[Record]) -> RankAccuracy:
    """Return how well the expected Dice of the foreground agrees with the true one."""
    pairs = [
        (each["expected_dice"], each["dice"])
        for each in records
        if each["status"] == "done" and None not in (each["expected_dice"], each["dice"])
    ]
    if not pairs:
        return RankAccuracy(0, None, None)
    expected, true = np.array(pairs).T
    error = float((expected - true).mean())
    if len(pairs) < 3 or len(set(expected)) == 1 or len(set(true)) == 1:
        return RankAccuracy(len(pairs), None, error)
    from scipy.stats import spearmanr

    return RankAccuracy(len(pairs), float(spearmanr(expected, true).statistic), error)


def write_cohort_csv(path: Path, records: Sequence[Record]) -> None:
    """Write a row a case and region or label; a case that failed has one row with its error."""
    write_table(path, COLUMNS, _rows(records))


def write_cohort_json(path: Path, records: Sequence[Record], request: Mapping[str, Any]) -> None:
    """Write everything that is known of every case, pictures aside."""
    failed = [each["case"] for each in records if each["status"] != "done"]
    accuracy = accuracy_of(records)
    content = {
        "format": "perturb-mpm cohort",
        "version": version(),
        "cases": len(records),
        "failed": failed,
        "rank_by": "expected_dice of the foreground, least first",
        "rank_accuracy": {
            "cases": accuracy.cases,
            "spearman": accuracy.spearman,
            "mean_expected_less_true_dice": accuracy.mean_error,
        },
        "request": dict(request),
        "records": [
            {key: value for key, value in each.items() if key not in _NOT_TOLD} for each in records
        ],
    }
    write_json(path, content)


def _rows(records: Sequence[Record]) -> Iterator[list[object]]:
    for record in records:
        words = {
            **{name: record.get(name) for name in ("case", "status", "rank", "error")},
            **{name: record.get(name) for name in (*_OF_CASE, *_HOW)},
            "outliers": "; ".join(record["outliers"]),
            "warnings": "; ".join(record.get("warnings", [])),
        }
        for row in record.get("rows") or [{}]:
            values = {**words, **{name: row.get(name) for name in ("kind", "label", "name")}}
            values |= {name: _known(row.get(name)) for name in _OF_ROW}
            yield [values[column] for column in COLUMNS]


def _robust_scores(values: Mapping[str, float]) -> dict[str, float]:
    """Return how many robust standard deviations each value is from the median."""
    if len(values) < _FEWEST:
        return {}
    numbers = np.array(list(values.values()))
    away = numbers - np.median(numbers)
    scale = 1.4826 * float(np.median(np.abs(away)))
    if scale == 0:
        return {}
    return dict(zip(values, (away / scale).tolist()))


def _known(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _or(value: float | None, other: float) -> float:
    return other if value is None else value
