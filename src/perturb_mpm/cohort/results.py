"""The results of a cohort, made of the records of its cases: cohort.csv, cohort.json, cohort.html.

Cases are ranked by the Dice that the marginals expect of their foreground, the least first. Columns
of cohort.csv before ``seconds`` are the same bytes every time; the others say how it was computed.
Workers are numbers there: tables and page name no machine and no process. The page is one HTML file
that opens from disk.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from perturb_mpm.cohort.records import TABLES, CaseOutcome, CaseRecord
from perturb_mpm.files import write_table
from perturb_mpm.storage import atomic_open, write_json
from perturb_mpm.version import version

_CASE_COLUMNS = ("samples", "intervals_rest_on", "mask_ml", "active_share")
_ROW_COLUMNS = (
    *("kind", "label", "name", "volume_ml", "interval_lower_ml", "interval_upper_ml"),
    *("mean_entropy_bits", "uncertain_frac", "network_confidence"),
    *("expected_dice", "dice", "true_volume_ml"),
)
COLUMNS = (
    *("case", "status", "rank"),
    *_ROW_COLUMNS,
    *_CASE_COLUMNS,
    *("outliers", "warnings", "error"),
    *("seconds", "peak_memory_mb", "worker"),
)
_FAR = 3.5  # robust standard deviations from the median (Iglewicz and Hoaglin 1993)
_FEWEST = 8  # cases before one can be far from the others
_COMPARED = {  # a figure, and its name in words
    "volume_ml": "volume",
    "mean_entropy_bits": "entropy",
    "expected_dice": "expected Dice",
}
_BINS = 24
_LOOK_FIRST = 3
_MOST_COLUMNS = 8  # of volumes; the table on disk has all


@dataclass(frozen=True)
class RankedCase:
    """A case with its rank, and which of its figures are far from the other cases', in words."""

    record: CaseRecord
    rank: int | None = None  # 1 is to be looked at first; None where the case failed
    outliers: tuple[str, ...] = ()
    worker: int | None = None  # from 1; None where it was lost

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings of its run, none where it failed."""
        return () if self.record.outcome is None else self.record.outcome.warnings


@dataclass(frozen=True)
class RankAccuracy:
    """How well the expected Dice ranks cases, measured on those with a truth."""

    cases: int
    spearman: float | None  # of expected and true Dice, None below three cases
    mean_error: float | None  # expected less true Dice, mean


@dataclass(frozen=True)
class Distribution:
    """How one figure is spread over the cohort."""

    name: str
    bars: tuple[tuple[float, float], ...]  # left edge and height, each from 0 to 100
    width: float
    least: float
    most: float
    median: float


def rank_cases(records: Iterable[CaseRecord]) -> list[RankedCase]:
    """Return cases that are done first, the least expected Dice first; then those that failed."""
    every = list(records)
    done = {each.case: each.outcome for each in every if each.outcome is not None}
    far = find_outliers(done)

    def least_dice_first(record: CaseRecord) -> tuple[float, str]:
        expected = None if record.outcome is None else record.outcome.expected_dice
        return math.inf if expected is None else expected, record.case

    first = sorted((each for each in every if each.case in done), key=least_dice_first)
    failed = sorted((each for each in every if each.case not in done), key=lambda r: r.case)
    names = dict.fromkeys(each.worker for each in (*first, *failed) if each.worker is not None)
    workers: dict[str | None, int] = {name: number for number, name in enumerate(names, 1)}
    return [
        *(
            RankedCase(each, rank, far.get(each.case, ()), workers.get(each.worker))
            for rank, each in enumerate(first, 1)
        ),
        *(RankedCase(each, worker=workers.get(each.worker)) for each in failed),
    ]


def find_outliers(outcomes: Mapping[str, CaseOutcome]) -> dict[str, tuple[str, ...]]:
    """Return case -> which of its figures are far from the other cases', in words."""
    columns: dict[tuple[str, str], dict[str, float]] = {}
    for case, outcome in outcomes.items():
        for row in outcome.rows:
            for figure in _COMPARED:
                value = getattr(row, figure)
                if value is not None:
                    columns.setdefault((row.name, figure), {})[case] = value
    found: dict[str, tuple[str, ...]] = {}
    for (name, figure), values in columns.items():
        for case, score in _robust_scores(values).items():
            if abs(score) > _FAR:
                words = f"{_COMPARED[figure]} of {name} unusually {'high' if score > 0 else 'low'}"
                found[case] = (*found.get(case, ()), words)
    return found


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


def measure_ranking(outcomes: Iterable[CaseOutcome]) -> RankAccuracy:
    """Return how well the expected Dice of the foreground agrees with the true one."""
    pairs = [
        (each.expected_dice, each.dice)
        for each in outcomes
        if None not in (each.expected_dice, each.dice)
    ]
    if not pairs:
        return RankAccuracy(0, None, None)
    expected, true = np.array(pairs, dtype=np.float64).T
    error = float((expected - true).mean())
    if len(pairs) < 3 or len(set(expected)) == 1 or len(set(true)) == 1:
        return RankAccuracy(len(pairs), None, error)
    from scipy.stats import spearmanr

    return RankAccuracy(len(pairs), float(spearmanr(expected, true).statistic), error)


def write_results(
    folder: Path, records: Iterable[CaseRecord], request: Mapping[str, Any]
) -> dict[str, Path]:
    """Write the tables and the page; return the files by their endings."""
    cases = rank_cases(records)
    files = {ending: folder / name for ending, name in TABLES.items()}
    write_table(files["csv"], COLUMNS, _table_rows(cases))
    write_json(files["json"], _cohort_json(cases, request))
    write_page(files["html"], cases)
    return files


def write_group(folder: Path, cases: Sequence[RankedCase], inside: str) -> dict[str, Path]:
    """Write group.tsv and group.html; ``inside`` is the way from them to the cases' folders."""
    files = {"csv": folder / "group.tsv", "html": folder / "group.html"}
    write_table(files["csv"], COLUMNS, _table_rows(cases), delimiter="\t")
    write_page(files["html"], cases, inside)
    return files


def _table_rows(cases: Sequence[RankedCase]) -> Iterator[list[object]]:
    """Yield a row a case and region or label; a case that failed has one row with its error."""
    for case in cases:
        record = case.record
        values: dict[str, object] = {
            **record.to_json(),
            "rank": case.rank,
            "outliers": "; ".join(case.outliers),
            "warnings": "; ".join(case.warnings),
            "worker": case.worker,
        }
        empty: dict[str, object] = dict.fromkeys(_ROW_COLUMNS)
        rows = [asdict(row) for row in record.outcome.rows] if record.outcome else []
        for row in rows or [empty]:
            yield [{**values, **row}.get(column) for column in COLUMNS]


def _cohort_json(cases: Sequence[RankedCase], request: Mapping[str, Any]) -> dict[str, Any]:
    """Return everything that is known of every case, pictures aside."""
    accuracy = measure_ranking(_done(cases).values())
    return {
        "format": "perturb-mpm cohort",
        "version": version(),
        "cases": len(cases),
        "failed": [each.record.case for each in cases if each.record.outcome is None],
        "rank_by": "expected_dice of the foreground, least first",
        "rank_accuracy": {
            "cases": accuracy.cases,
            "spearman": accuracy.spearman,
            "mean_expected_less_true_dice": accuracy.mean_error,
        },
        "request": dict(request),
        "records": [
            {
                **each.record.to_short_json(),
                "rank": each.rank,
                "outliers": each.outliers,
                "warnings": each.warnings,
                "worker": each.worker,
            }
            for each in cases
        ],
    }


def _done(cases: Sequence[RankedCase]) -> dict[str, CaseOutcome]:
    """Return case -> outcome of those that are done, in the order of their ranks."""
    found = ((each.record.case, each.record.outcome) for each in cases)
    return {case: outcome for case, outcome in found if outcome is not None}


def write_page(path: Path, cases: Sequence[RankedCase], inside: str = "") -> None:
    """Write the page of ranked cases; the same cases give the same bytes."""
    with atomic_open(path) as file:
        file.write(render_page(cases, inside).encode(errors="backslashreplace"))


def render_page(cases: Sequence[RankedCase], inside: str = "") -> str:
    """Return the page as HTML; ``inside`` is the way from it to the cases' folders."""
    from perturb_mpm.report import page_environment

    done = _done(cases)
    outcomes = list(done.values())
    rows = [row for each in outcomes for row in each.rows]
    regions = [row for row in rows if row.kind == "region"]
    every = list(dict.fromkeys(row.name for row in rows))
    shown = list(dict.fromkeys(row.name for row in regions or rows))[:_MOST_COLUMNS]
    figures: list[tuple[str, Sequence[float | None]]] = [
        ("expected Dice", [each.expected_dice for each in outcomes]),
        ("mean entropy, bits", [each.mean_entropy_bits for each in outcomes]),
        *((f"{name}, ml", [row.volume_ml for row in rows if row.name == name]) for name in shown),
    ]
    spread = (distribution(name, values) for name, values in figures)
    return (
        page_environment("perturb_mpm.cohort")
        .get_template("cohort.html")
        .render(
            title=f"{len(cases)} cases",
            cases=cases,
            failed=len(cases) - len(done),
            warned=sum(bool(each.warnings) for each in cases),
            far=sum(bool(each.outliers) for each in cases),
            names=shown,
            left_out=len(every) - len(shown),
            first=cases[: min(_LOOK_FIRST, max(1, len(done) // 2), len(done))],
            rows={case: {row.name: row for row in each.rows} for case, each in done.items()},
            links={case: quote(f"{inside}{case}/{each.report}") for case, each in done.items()},
            accuracy=measure_ranking(outcomes),
            distributions=[each for each in spread if each is not None],
            rest_on=sorted({each.intervals_rest_on for each in outcomes}),
            truths=any(each.dice is not None for each in outcomes),
        )
    )


def distribution(name: str, values: Sequence[float | None]) -> Distribution | None:
    """Return the histogram of the values that are known, None where there are fewer than two."""
    known = np.array([value for value in values if value is not None])
    if len(known) < 2 or known.min() == known.max():
        return None
    counts, edges = np.histogram(known, bins=_BINS)
    heights = 100 * counts / counts.max()
    lefts = 100 * (edges[:-1] - edges[0]) / (edges[-1] - edges[0])
    bars = tuple((float(x), float(y)) for x, y in zip(lefts, heights) if y)
    low, high, median = float(known.min()), float(known.max()), float(np.median(known))
    return Distribution(name, bars, 100 / _BINS, low, high, median)
