"""A cohort as a table of paths: CSV with a heading, paths relative to the table."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from perturb_mpm.io.errors import InputError, Source


@dataclass(frozen=True)
class Entry:
    """One case of a cohort."""

    case: str
    prediction: Path
    truth: Path | None
    raters: tuple[Path, ...] = ()
    mask: Path | None = None


def read_cohort(path: Path) -> list[Entry]:
    """Read the columns case, prediction, truth, mask and any number that begin with rater.

    Empty fields are left out; each case needs a prediction and a truth or a rater.
    """
    source = Source("--table", path)
    lines = read_lines(source, required=("case", "prediction"), known=("truth", "mask"))
    entries = []
    for number, line in enumerate(lines, start=2):
        paths = {name: path.parent / text for name, text in line.items() if text and name != "case"}
        if not line["case"] or "prediction" not in paths:
            raise source.error(f"line {number} must name a case and its prediction")
        raters = tuple(paths[name] for name in paths if name.startswith("rater"))
        if "truth" not in paths and not raters:
            raise source.error(f"line {number} must name a truth or a rater")
        entries.append(
            Entry(line["case"], paths["prediction"], paths.get("truth"), raters, paths.get("mask"))
        )
    names = [entry.case for entry in entries]
    if len(set(names)) < len(names):
        raise source.error("must name every case once")
    return entries


def read_lines(
    source: Source, required: tuple[str, ...], known: tuple[str, ...]
) -> list[dict[str, str]]:
    """Read a CSV file with a heading; columns that begin with rater are always known."""
    try:
        with source.path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, restkey="", restval="")
            columns = [name.strip() for name in reader.fieldnames or ()]
            reader.fieldnames = columns
            lines = [{k: (v or "").strip() for k, v in line.items() if k} for line in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{source} cannot be read: {error}") from error
    missing = [name for name in required if name not in columns]
    strange = [
        name for name in columns if name not in (*required, *known) and not name.startswith("rater")
    ]
    if missing or strange:
        raise source.error(
            f"must have the columns {', '.join(required)} and may have {', '.join(known)} and "
            f"rater columns, got {', '.join(columns) or 'none'}"
        )
    if not lines:
        raise source.error("must hold at least one line below its heading, got none")
    return lines
