"""The means as comma-separated values, one row a case; units and metrics are in the names."""

from __future__ import annotations

import csv
import io

from perturb_mpm.reproduce.summary import METRICS, SELF_TERM, Case, Spread, Summary

_OF_A_METRIC = ("mean", "standard_error", "largest", "draws_below_mean_field")
COLUMNS = (
    *Case._fields,
    "draws",
    *(f"{metric}_{of}" for metric in METRICS for of in _OF_A_METRIC),
)


def csv_bytes(summary: Summary) -> bytes:
    """Return the table; an empty cell is something that does not apply."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for case, found in summary.cases.items():
        spreads = (cell for metric in METRICS for cell in _cells(found[metric]))
        writer.writerow([*(_cell(value) for value in case), summary.draws, *spreads])
    return text.getvalue().encode()


def _cells(spread: Spread) -> list[str]:
    numbers = (spread.mean, spread.standard_error, spread.largest)
    return [*(f"{value:.6g}" for value in numbers), _cell(spread.below_mean_field)]


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return SELF_TERM[value]
    return f"{value:g}" if isinstance(value, float) else str(value)
