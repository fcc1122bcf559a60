"""Tables as CSV files, read and written.

Written tables have one form for every number, the unit in the heading, and the same bytes every
time. Read tables may come from a spreadsheet, with a byte-order mark and spaces around fields.

A spreadsheet takes text such as =SUM(A1) for a formula, whoever wrote it. Such text is written
with an apostrophe in front, as OWASP advises against CSV injection, and read without it.
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from perturb_mpm.checks import visible_text
from perturb_mpm.files.labels import LabelScheme
from perturb_mpm.files.source import InputError, Source
from perturb_mpm.storage import write_text

VOLUME_COLUMNS = ("sample", "label", "name", "volume_mm3", "volume_ml")
MOST_ROWS = 100_000
_MOST_BYTES = 1 << 26
_LONGEST_FIELD = 4096  # characters, as long as a path may be
# What spreadsheets take for a formula, in narrow and wide letters. Text may have apostrophes of its
# own in front of it: writing adds one, reading takes one, and so it comes back as it was.
_FORMULA = re.compile(r"['\s]*[=+\-@\uff1d\uff0b\uff0d\uff20]")


@dataclass(frozen=True)
class TableRow:
    """One row of a table that was read."""

    source: Source
    line: int  # of the file, the first is 1
    fields: dict[str, str]  # column -> text; columns that are empty in this row are left out

    def path(self, column: str) -> Path | None:
        """Return a column's path, relative to the table's folder, or None where it is empty."""
        text = self.fields.get(column)
        return None if text is None else self.source.path.parent / text

    def error(self, words: str) -> InputError:
        """Return the error about this row, in one line."""
        return self.source.error(f"line {self.line} {words}")


def read_table(
    source: Source,
    required: Sequence[str],
    optional: Sequence[str] = (),
    *,
    prefix: str | None = None,
    unique: str | None = None,
) -> list[TableRow]:
    """Read a CSV or TSV file in UTF-8 with a heading; raise ``InputError`` where it fails.

    Parameters
    ----------
    source
        The file, and the argument that named it.
    required
        Columns that must be there and have text in every row.
    optional
        Columns that may be there.
    prefix
        Columns that begin with this may be there too; "" allows any. None allows no others.
    unique
        A column whose text must differ from row to row.
    """
    rows = _read_rows(source)
    heading = rows[0][1] if rows else []
    _check_heading(source, heading, required, optional, prefix)
    table = [_table_row(source, line, heading, fields) for line, fields in rows[1:]]
    if not table:
        raise source.error("must hold at least one row below its heading, got none")
    seen: dict[str, int] = {}
    for row in table:
        missing = [column for column in required if column not in row.fields]
        if missing:
            raise row.error(f"must give {' and '.join(required)}, got no {missing[0]}")
        if unique is not None and (name := row.fields.get(unique)) is not None:
            if name in seen:
                raise row.error(f"must name another {unique} than line {seen[name]}, got {name}")
            seen[name] = row.line
    return table


def write_table(
    path: str | os.PathLike[str],
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    delimiter: str = ",",
) -> None:
    r"""Write a table in UTF-8 with a heading and one line a row, whole or not at all.

    A float is written with as many digits as bring it back exactly, an empty field stands for
    None. Text that a spreadsheet would take for a formula gets an apostrophe in front, and control
    characters are written as \x1b.
    """
    text = io.StringIO(newline="")
    writer = csv.writer(
        text,
        delimiter=delimiter,
        lineterminator="\n",
        # Readers of tables with tabs do not know quotes.
        quoting=csv.QUOTE_NONE if delimiter == "\t" else csv.QUOTE_MINIMAL,
        quotechar=None if delimiter == "\t" else '"',
    )
    writer.writerow([_cell(column) for column in columns])
    for row in rows:
        if len(row) != len(columns):
            raise ValueError(f"a row must have {len(columns)} fields, got {len(row)}")
        writer.writerow([_cell(value) for value in row])
    write_text(path, text.getvalue())


def write_volumes(
    path: str | os.PathLike[str],
    volumes: ArrayLike,
    scheme: LabelScheme,
    sample_index: Sequence[int] | None = None,
    regions: Mapping[str, Sequence[int]] | None = None,
) -> None:
    """Write the volumes (S, L) in mm³ of every sample, a row a sample and region or label.

    ``sample_index`` (S,) gives the samples' own numbers, else they are 0 … S − 1. ``regions`` are
    sets of label indices; they come first, and their label is all of their values, as in "1,4".
    """
    table = np.asarray(volumes, dtype=np.float64)
    if table.ndim != 2 or table.shape[1] != len(scheme):
        raise ValueError(f"volumes must be (samples, {len(scheme)}), got shape {table.shape}")
    numbers = range(len(table)) if sample_index is None else sample_index
    if len(numbers) != len(table):
        raise ValueError(f"sample_index must have {len(table)} numbers, got {len(numbers)}")
    sets = [
        (",".join(str(scheme.values[label]) for label in members), name, list(members))
        for name, members in (regions or {}).items()
    ]
    sets += [(str(scheme.values[l]), name, [l]) for l, name in enumerate(scheme.names)]
    rows = (
        (int(sample), values, name, float(volume), float(volume / 1000))
        for sample, line in zip(numbers, table)
        for values, name, volume in ((v, n, line[members].sum()) for v, n, members in sets)
    )
    write_table(path, VOLUME_COLUMNS, rows)


def _read_rows(source: Source) -> list[tuple[int, list[str]]]:
    """Return line number and fields of every row that is not empty, without spaces around them."""
    rows: list[tuple[int, list[str]]] = []
    with source.open() as file, io.TextIOWrapper(file, "utf-8-sig", newline="") as text:
        if os.fstat(file.fileno()).st_size > _MOST_BYTES:
            raise source.error(f"must be a table of at most {_MOST_BYTES >> 20} MiB, got more")
        tabs = source.path.suffix.lower() == ".tsv"
        reader = csv.reader(text, strict=True, delimiter="\t" if tabs else ",")
        try:
            for fields in reader:
                stripped = [field.strip() for field in fields]
                _check_fields(source, reader.line_num, stripped)
                if any(stripped):
                    rows.append((reader.line_num, stripped))
                if len(rows) > MOST_ROWS + 1:
                    raise source.error(f"must hold at most {MOST_ROWS} rows, got more")
        except csv.Error as error:
            raise source.error(f"line {reader.line_num} is no CSV ({error})") from error
        except UnicodeDecodeError as error:
            raise source.error(f"must be text in UTF-8 ({error.reason})") from error
    return rows


def _check_fields(source: Source, line: int, fields: list[str]) -> None:
    for field in fields:
        if len(field) > _LONGEST_FIELD:
            raise source.error(
                f"line {line} must have fields of at most {_LONGEST_FIELD} characters, "
                f"got {len(field)}"
            )
        if not field.isprintable():
            raise source.error(
                f"line {line} must have fields of printable text in one line, got {field[:60]!r}"
            )


def _check_heading(
    source: Source,
    heading: list[str],
    required: Sequence[str],
    optional: Sequence[str],
    prefix: str | None,
) -> None:
    missing = [column for column in required if column not in heading]
    known = {*required, *optional}
    unknown = [
        column
        for column in heading
        if column not in known and (prefix is None or not column.startswith(prefix))
    ]
    if missing or unknown:
        may = [", ".join(optional)] if optional else []
        may += [f"columns that begin with {prefix}"] if prefix else []
        allowed = f" and may have {' and '.join(may)}" if may else ""
        raise source.error(
            f"must have the columns {', '.join(required)}{allowed}, "
            f"got {', '.join(heading) or 'none'}"
        )
    twice = sorted({column for column in heading if heading.count(column) > 1})
    if twice or "" in heading:
        raise source.error(f"must name every column once, got {', '.join(heading)}")


def _table_row(source: Source, line: int, heading: list[str], fields: list[str]) -> TableRow:
    if len(fields) > len(heading):
        raise source.error(
            f"line {line} must have {len(heading)} fields like the heading, got {len(fields)}"
        )
    texts = {column: _read_cell(text) for column, text in zip(heading, fields) if text}
    return TableRow(source, line, texts)


def _cell(value: object) -> object:
    if isinstance(value, float | np.floating):
        return repr(float(value))
    if not isinstance(value, str):
        return value
    text = visible_text(value)  # a tab or an end of line would begin another cell
    return f"'{text}" if _FORMULA.match(text) and not _is_number(text) else text


def _read_cell(text: str) -> str:
    """Return a text without the apostrophe that ``_cell`` has put in front of it."""
    return text[1:] if text.startswith("'") and _FORMULA.match(text) else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
