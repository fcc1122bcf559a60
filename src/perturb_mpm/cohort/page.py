"""The page of a cohort: one HTML file that opens from disk and says whom to look at first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import numpy as np

from perturb_mpm.cohort.one_case import Record
from perturb_mpm.cohort.tables import accuracy_of
from perturb_mpm.storage import atomic_open

_BINS = 24
_LOOK_FIRST = 3
_MOST_COLUMNS = 8  # of volumes; the table on disk has all


@dataclass(frozen=True)
class Distribution:
    """How one figure is spread over the cohort."""

    name: str
    bars: tuple[tuple[float, float], ...]  # left edge and height, each from 0 to 100
    width: float
    least: float
    most: float
    median: float


def write_cohort_page(path: Path, records: Sequence[Record]) -> None:
    """Write the page of records that are ranked; the same records give the same bytes."""
    with atomic_open(path) as file:
        file.write(render_cohort(records).encode())


def render_cohort(records: Sequence[Record]) -> str:
    """Return the page as HTML."""
    from perturb_mpm.report import page_environment

    done = [each for each in records if each["status"] == "done"]
    rows = [row for each in done for row in each["rows"]]
    regions = [row for row in rows if row["kind"] == "region"]
    every = list(dict.fromkeys(row["name"] for row in rows))
    names = list(dict.fromkeys(row["name"] for row in regions or rows))
    shown = names[:_MOST_COLUMNS]
    figures = [
        ("expected Dice", [each["expected_dice"] for each in done]),
        ("mean entropy, bits", [each["mean_entropy_bits"] for each in done]),
        *(
            (f"{name}, ml", [row["volume_ml"] for each in done for row in _named(each, name)])
            for name in shown
        ),
    ]
    found = (distribution(name, values) for name, values in figures)
    return (
        page_environment("perturb_mpm.cohort")
        .get_template("cohort.html")
        .render(
            title=f"{len(records)} cases",
            cases=records,
            failed=[each for each in records if each["status"] != "done"],
            warned=sum(bool(each.get("warnings")) for each in done),
            far=sum(bool(each["outliers"]) for each in done),
            names=shown,
            left_out=len(every) - len(shown),
            first=done[: min(_LOOK_FIRST, max(1, len(done) // 2))],
            by_name={each["case"]: {row["name"]: row for row in each["rows"]} for each in done},
            links={each["case"]: quote(f"{each['case']}/{each['report']}") for each in done},
            accuracy=accuracy_of(done),
            distributions=[each for each in found if each is not None],
            rest_on=sorted({each["intervals_rest_on"] for each in done}),
            truths=any(each["dice"] is not None for each in done),
        )
    )


def distribution(name: str, values: Sequence[float | None]) -> Distribution | None:
    """Return the histogram of the values that are known, None where there are fewer than two."""
    known = np.array([value for value in values if value is not None and np.isfinite(value)])
    if len(known) < 2 or known.min() == known.max():
        return None
    counts, edges = np.histogram(known, bins=_BINS)
    heights = 100 * counts / counts.max()
    lefts = 100 * (edges[:-1] - edges[0]) / (edges[-1] - edges[0])
    bars = tuple((float(x), float(y)) for x, y in zip(lefts, heights) if y)
    low, high, median = float(known.min()), float(known.max()), float(np.median(known))
    return Distribution(name, bars, 100 / _BINS, low, high, median)


def _named(record: Record, name: str) -> list[Record]:
    return [row for row in record["rows"] if row["name"] == name]
