"""Tables as CSV files: one form of every number, the unit in the heading, the same bytes."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from perturb_mpm.files.case import LabelScheme
from perturb_mpm.storage import atomic_open

VOLUME_COLUMNS = ("sample", "label", "name", "volume_mm3", "volume_ml")


def write_table(
    path: str | os.PathLike[str],
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    delimiter: str = ",",
) -> None:
    """Write a table in UTF-8 with a heading and one line a row, whole or not at all.

    A float is written with as many digits as bring it back exactly, an empty field stands for
    None.
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
    writer.writerow(columns)
    for row in rows:
        if len(row) != len(columns):
            raise ValueError(f"a row must have {len(columns)} fields, got {len(row)}")
        writer.writerow([_field(value) for value in row])
    with atomic_open(path) as file:
        file.write(text.getvalue().encode())


def write_volumes(
    path: str | os.PathLike[str],
    volumes: ArrayLike,
    scheme: LabelScheme,
    sample_index: Sequence[int] | None = None,
) -> None:
    """Write the volumes (S, L) in mm³ of every sample, a row a sample and label.

    ``sample_index`` (S,) gives the samples' own numbers, else they are 0 … S − 1.
    """
    table = np.asarray(volumes, dtype=np.float64)
    if table.ndim != 2 or table.shape[1] != len(scheme):
        raise ValueError(f"volumes must be (samples, {len(scheme)}), got shape {table.shape}")
    numbers = range(len(table)) if sample_index is None else sample_index
    if len(numbers) != len(table):
        raise ValueError(f"sample_index must have {len(table)} numbers, got {len(numbers)}")
    rows = (
        (int(sample), value, name, volume, volume / 1000)
        for sample, line in zip(numbers, table)
        for value, name, volume in zip(scheme.values, scheme.names, line.tolist())
    )
    write_table(path, VOLUME_COLUMNS, rows)


def _field(value: object) -> object:
    return repr(float(value)) if isinstance(value, float | np.floating) else value
