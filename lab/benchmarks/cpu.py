"""Measure our CPU engine against pydensecrf2: ``python -m lab.benchmarks.cpu --help``."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from lab.benchmarks import machine, peer, problems
from lab.benchmarks.measure import (
    COMPARED_ITERATIONS,
    SAMPLE_ITERATIONS,
    BenchmarkRow,
    CpuPlan,
    measure,
)

Columns = dict[str, Callable[[BenchmarkRow], str]]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Our CPU engine and pydensecrf2 on the same model, taking turns.",
        epilog="example: python -m lab.benchmarks.cpu --quick --only 64 --only brain-0.1",
    )
    parser.add_argument("--quick", action="store_true", help="small problems, fewer rounds")
    parser.add_argument(
        "--only",
        action="append",
        metavar="NAME",
        help="a problem, may be repeated: 64, 96, brain-0.1, brain-0.4, brain-1.5, "
        "real-20, real-10, real-30",
    )
    parser.add_argument(
        "--accuracy",
        action="append",
        choices=CpuPlan.accuracies,
        help="a filter, may be repeated; all of them where there is none",
    )
    parser.add_argument("--batch", type=int, default=CpuPlan.batch)
    parser.add_argument("--rounds", type=int, help="turns each takes; 5, or 3 with --quick")
    parser.add_argument(
        "--samples",
        type=int,
        default=200,
        help="samples to draw in full from the largest brain and the real case; 0 for none",
    )
    parser.add_argument("--threads", type=int, default=machine.cores())
    parser.add_argument(
        "--json",
        type=Path,
        help="where the figures go; lab/benchmarks/results/cpu.json, or cpu-part.json unless all "
        "problems and filters are measured in full",
    )
    return parser.parse_args()


def chosen(names: Sequence[str], console: Console) -> problems.Catalogue:
    """Return the named problems, or all; say so where the real case cannot be among them."""
    real = problems.real_problems()
    if not real:
        console.print(f"The real case is left out: there is no {problems.case_folder()}")
    known = {**problems.synthetic_problems(), **real}
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(f"--only must be one of {', '.join(known)}, got {unknown[0]}")
    return {name: make for name, make in known.items() if not names or name in names}


def report(console: Console, rows: Sequence[BenchmarkRow], plan: CpuPlan) -> None:
    setting = f"{plan.threads} threads, median of {plan.rounds} rounds"
    show(console, f"speed and memory: {setting}", rows, speed_columns(plan.batch))
    sampled = [row for row in rows if row.sample_s is not None]
    if sampled:
        title = f"sampling, {SAMPLE_ITERATIONS} iterations each"
        show(console, title, sampled, sampling_columns())
    show(console, "accuracy", rows, accuracy_columns(plan.batch))
    if exponents := growth_exponents(rows):
        show_scaling(console, exponents, plan.batch)
    show_notes(console, rows)


def main() -> None:
    options = arguments()
    console = Console(width=None if sys.stdout.isatty() else 200)
    progress = Console(stderr=True, highlight=False)
    plan = CpuPlan(
        accuracies=tuple(options.accuracy or CpuPlan.accuracies),
        batch=options.batch,
        rounds=options.rounds or (3 if options.quick else 5),
        threads=options.threads,
    )
    names = options.only or (problems.QUICK if options.quick else ())
    whole = not (names or options.accuracy)
    path = options.json or machine.RESULTS / ("cpu.json" if whole else "cpu-part.json")
    about = {"machine": machine.describe(), "plan": asdict(plan)}
    began = time.perf_counter()
    rows: list[BenchmarkRow] = []
    for name, make in chosen(names, console).items():

        def log(what: str, name: str = name) -> None:
            progress.print(f"{time.perf_counter() - began:6.1f} s  {name}: {what}")

        samples = options.samples if name in problems.SAMPLED else 0
        rows += measure(make(), replace(plan, samples=samples), peer.interpreter(), log)
        measured = {
            "seconds": time.perf_counter() - began,
            "rows": [asdict(row) for row in rows],
            "exponents": growth_exponents(rows),
        }
        machine.write_results(path, {**about, **measured})
    report(console, rows, plan)
    console.print(f"{time.perf_counter() - began:.0f} s; figures in {path}")


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
        "noise over\n20 and 60 mm, s": lambda r: number(r.sample_correlated_s),
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


def show(console: Console, title: str, rows: Sequence[BenchmarkRow], columns: Columns) -> None:
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


def show_notes(console: Console, rows: Sequence[BenchmarkRow]) -> None:
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


def _problem(row: BenchmarkRow) -> tuple[str, str]:
    return row.problem, row.setting


def growth_exponents(rows: Sequence[BenchmarkRow]) -> dict[str, dict[str, float]]:
    """Return p in time ∝ voxels^p of each engine, from the brains: they differ in size alone."""
    brains = [
        row for row in rows if row.problem.startswith(problems.BRAIN) and row.one_s is not None
    ]
    if len({row.voxels for row in brains}) < 2:
        return {}
    return {
        engine: {
            column: _slope([row for row in brains if row.engine == engine], column)
            for column in ("one_s", "batch_s")
        }
        for engine in dict.fromkeys(row.engine for row in brains)
    }


def _slope(rows: Sequence[BenchmarkRow], column: str) -> float:
    voxels = np.log([row.voxels for row in rows])
    seconds = np.log([getattr(row, column) for row in rows])
    return float(np.polyfit(voxels, seconds, 1)[0])


if __name__ == "__main__":
    main()
