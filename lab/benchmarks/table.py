"""The tables on the terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from rich.console import Console
from rich.table import Table

from lab.benchmarks.measure import COMPARED_ITERATIONS, Row

Columns = dict[str, Callable[[Row], str]]


def number(value: float | None, digits: int = 3) -> str:
    """Write a number with so many significant digits, never as a power of ten."""
    if value is None:
        return "–"
    return f"{float(f'{value:.{digits}g}'):,.10g}"


def scientific(value: float | None) -> str:
    return "–" if value is None else f"{value:.1e}"


def speed_columns(batch: int) -> Columns:
    return {
        "set-up\ns": lambda r: number(r.setup_s),
        "one problem\ns / iteration": lambda r: number(r.one_s),
        "× faster\none problem": lambda r: number(r.one_speedup),
        f"batch of {batch}\nms / problem\nand iteration": lambda r: number(_ms(r.batch_s)),
        f"× faster\nbatch of {batch}": lambda r: number(r.batch_speedup),
        "peak GB\none problem": lambda r: number(r.one_peak_gb),
        f"peak GB\nbatch of {batch}": lambda r: number(r.batch_peak_gb),
        "error of\nK·Q/K·1, rms": lambda r: number(r.error.rms, 2) if r.error else "–",
    }


def sampling_columns() -> Columns:
    return {
        "all samples\ns": lambda r: number(r.sample_s),
        "with fields\ns": lambda r: number(r.sample_fields_s),
        "× faster": lambda r: number(r.sample_speedup),
        "peak GB": lambda r: number(r.sample_peak_gb),
    }


def accuracy_columns(batch: int) -> Columns:
    return {
        "error of K·Q/K·1\nrms, anywhere": lambda r: number(r.error and r.error.rms),
        "rms, tumour's\nborder": lambda r: number(r.error and r.error.rms_border),
        "maximum": lambda r: number(r.error and r.error.maximum),
        "time / plain's\none problem": lambda r: number(r.one_to_plain),
        f"time / plain's\nbatch of {batch}": lambda r: number(r.batch_to_plain),
        f"largest |ΔQ| to\npydensecrf2 after\n{COMPARED_ITERATIONS} iterations": lambda r: (
            scientific(r.largest_difference)
        ),
    }


def show(console: Console, title: str, rows: Sequence[Row], columns: Columns) -> None:
    """Print a table with a line between problems."""
    table = Table(title=title, title_justify="left")
    table.add_column("problem", no_wrap=True)
    table.add_column("voxels", justify="right")
    table.add_column("labels", justify="right")
    table.add_column("setting\nmm / sd", no_wrap=True)
    table.add_column("engine", no_wrap=True)
    for header in columns:
        table.add_column(header, justify="right")
    following = [*(later for _, later in pairwise(rows)), None]
    for row, later in zip(rows, following):
        last = later is None or _problem(later) != _problem(row)
        about = (row.problem, f"{row.voxels:,}", str(row.labels), row.setting, row.engine)
        table.add_row(*about, *(cell(row) for cell in columns.values()), end_section=last)
    console.print(table)


def show_notes(console: Console, rows: Sequence[Row]) -> None:
    for note in dict.fromkeys(f"{row.engine}: {row.note}" for row in rows if row.note):
        console.print(note, highlight=False)


def show_scaling(console: Console, exponents: dict[str, dict[str, float]], batch: int) -> None:
    table = Table(title="p in time ∝ voxels^p, brains", title_justify="left")
    table.add_column("engine")
    table.add_column("one problem", justify="right")
    table.add_column(f"batch of {batch}", justify="right")
    for engine, found in exponents.items():
        table.add_row(engine, number(found["one_s"], 2), number(found["batch_s"], 2))
    console.print(table)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds


def _problem(row: Row) -> tuple[str, str]:
    return row.problem, row.setting
