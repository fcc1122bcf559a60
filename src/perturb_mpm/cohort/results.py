"""The results of a cohort, made of the records of its cases: cohort.csv, cohort.json, cohort.html.

Cases are ranked by the Dice that the marginals expect of their foreground, the least first. Columns
of cohort.csv before ``seconds`` are the same bytes every time; the others say how it was computed.
Workers are numbers there: tables and page name no machine and no process. The page is one HTML file
that opens from disk.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from perturb_mpm.cohort.records import TABLES, CaseOutcome, CaseRating, CaseRecord, read_ratings
from perturb_mpm.files import write_table
from perturb_mpm.report import DASHES, ChartLine, LineChart, page_environment, unit_chart
from perturb_mpm.storage import DAMAGE, read_json, write_json, write_set, write_text
from perturb_mpm.version import version

_CASE_COLUMNS = (
    *("samples", "intervals_rest_on", "image_evidence", "temperature"),
    *("mask_ml", "active_share", "expected_error_ml"),
)
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
    *("rating", "rating_initials", "rating_note"),
)
MEASURE_COLUMNS = (
    *("case", "structure", "measure", "unit", "label_map", "median"),
    *("interval_lower", "interval_upper", "undefined_samples", "rests_on"),
)
_FAR = 3.5  # robust standard deviations from the median (Iglewicz and Hoaglin 1993)
_FEWEST = 8  # cases before one can be far from the others
_COMPARED = {  # a figure, and its name in words
    "volume_ml": "volume",
    "mean_entropy_bits": "entropy",
    "expected_dice": "expected Dice",
}
_BINS = 24
_LOOK_FIRST, _MOST_ERRORS = 3, 5
_STANDS_OUT = 0.01  # below the median of the expected Dice
_MOST_COLUMNS = 8  # of volumes; the table on disk has all


@dataclass(frozen=True)
class RankedCase:
    """A case with its rank, and which of its figures are far from the other cases', in words."""

    record: CaseRecord
    rank: int | None = None  # 1 is to be looked at first; None where the case failed
    outliers: tuple[str, ...] = ()
    worker: int | None = None  # from 1; None where it was lost
    rating: CaseRating | None = None

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


def rank_cases(
    records: Iterable[CaseRecord], ratings: Mapping[str, CaseRating] | None = None
) -> list[RankedCase]:
    """Return cases that are done first, the least expected Dice first; then those that failed."""
    every = list(records)
    rated = {
        each.case: ratings[each.case].apply_to(each.outcome)
        for each in every
        if ratings and each.case in ratings
    }
    done = {each.case: each.outcome for each in every if each.outcome is not None}
    far = find_outliers(done)

    def least_dice_first(record: CaseRecord) -> tuple[bool, float, str]:
        expected = None if record.outcome is None else record.outcome.expected_dice
        return record.outcome is None, math.inf if expected is None else expected, record.case

    every.sort(key=least_dice_first)
    names = dict.fromkeys(each.worker for each in every if each.worker is not None)
    workers: dict[str | None, int] = {name: number for number, name in enumerate(names, 1)}
    return [
        RankedCase(
            each,
            None if each.outcome is None else rank,
            far.get(each.case, ()),
            workers.get(each.worker),
            rated.get(each.case),
        )
        for rank, each in enumerate(every, start=1)
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
    cases = rank_cases(records, read_ratings(folder))
    files = {ending: folder / name for ending, name in TABLES.items()}
    measured = measure_rows(folder, [each.record.case for each in cases if each.record.outcome])
    with write_set(folder / "measures.csv"):
        write_table(files["csv"], COLUMNS, _table_rows(cases))
        write_json(files["json"], _cohort_json(cases, request))
        write_page(files["html"], cases)
        if measured:
            files["measures"] = folder / "measures.csv"
            write_table(files["measures"], MEASURE_COLUMNS, measured)
    return files


def measure_rows(folder: Path, names: Iterable[str]) -> list[list[object]]:
    """Return the measures of every case that has some, a row a case, structure and measure."""
    rows = []
    for name in names:
        try:
            found = read_json(folder / name / "measures.json")["measures"]
            rows += [[name, *(each[key] for key in MEASURE_COLUMNS[1:])] for each in found]
        except DAMAGE:
            continue  # this case was not measured
    return rows


def write_group(folder: Path, cases: Sequence[RankedCase], inside: str) -> dict[str, Path]:
    """Write group.tsv and group.html; ``inside`` is the way from them to the cases' folders."""
    files = {"csv": folder / "group.tsv", "html": folder / "group.html"}
    with write_set():
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
            "rating": case.rating and case.rating.rating,
            "rating_initials": case.rating and case.rating.initials,
            "rating_note": case.rating and case.rating.note,
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
                "rating": each.rating and asdict(each.rating),
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
    write_text(path, render_page(cases, inside, path.name))


def _shared_notes(cases: Sequence[RankedCase]) -> list[tuple[str, int]]:
    """Return the warnings that several cases have, and how many; names of cases read CASE."""
    general = [
        {words.replace(each.record.case, "CASE") for words in each.warnings} for each in cases
    ]
    counts = Counter(words for each in general for words in sorted(each))
    return [(words, count) for words, count in counts.most_common() if count > 1]


def _most_errors(done: Mapping[str, CaseOutcome]) -> tuple[list[str], float] | None:
    """Return the few cases with the largest expected error, and the share of all that they hold."""
    errors = {case: each.expected_error_ml or 0.0 for case, each in done.items()}
    total = sum(errors.values())
    if len(done) <= 2 * _MOST_ERRORS or not total:
        return None
    first = sorted(errors, key=lambda case: (-errors[case], case))[:_MOST_ERRORS]
    return first, sum(errors[case] for case in first) / total


def _stands_out(outcomes: Sequence[CaseOutcome]) -> bool:
    """Whether the least expected Dice is worse than what is usual here."""
    known = [each.expected_dice for each in outcomes if each.expected_dice is not None]
    return len(known) < 2 or float(np.median(known)) - min(known) > _STANDS_OUT


def found_errors(outcomes: Sequence[CaseOutcome]) -> LineChart | None:
    """Return the share of all errors found against the share of cases looked at, by truths.

    Cases are looked at in the order of their expected error or expected Dice, or of their true
    error, which is the best order there is. None where fewer than three truths are known.
    """
    known = [(each, each.error_ml) for each in outcomes]
    cases = [(each, error) for each, error in known if error is not None]
    errors = np.array([error for _, error in cases])
    if len(cases) < 3 or not errors.sum():
        return None
    orders = {
        "by expected error": [-(each.expected_error_ml or 0.0) for each, _ in cases],
        "by expected Dice": [
            math.inf if each.expected_dice is None else each.expected_dice for each, _ in cases
        ],
        "best possible": (-errors).tolist(),
    }
    lines = [ChartLine([(0.0, 0.0), (100.0, 100.0)], faint=True)]
    for (name, keys), dashes in zip(orders.items(), DASHES):
        found = np.cumsum(errors[np.argsort(keys, kind="stable")]) / errors.sum()
        points = [(100.0 * (n + 1) / len(cases), 100.0 * share) for n, share in enumerate(found)]
        lines.append(ChartLine([(0.0, 0.0), *points], name, dashes))
    return unit_chart(lines, "share of cases looked at", "share of errors found")


def render_page(cases: Sequence[RankedCase], inside: str = "", name: str = "cohort.html") -> str:
    """Return the page as HTML; ``inside`` is the way from it to the cases' folders."""
    notes = _shared_notes(cases)
    back = "../" * inside.count("/") + name

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
            links={
                case: quote(f"{inside}{case}/{each.report}")
                + f"#back={'../' * f'{case}/{each.report}'.count('/')}{back}"
                for case, each in done.items()
            },
            notes=notes,
            numbers={words: number for number, (words, _) in enumerate(notes, start=1)},
            most_errors=_most_errors(done),
            stands_out=_stands_out(outcomes),
            found_errors=found_errors(outcomes),
            rated=sum(each.rating is not None for each in cases),
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
