"""The command: which problems, how often, and where the figures go."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console

from lab.benchmarks import brats, catalogue, files, machine, peer, scaling, table
from lab.benchmarks.measure import SAMPLE_ITERATIONS, Plan, Row, measure
from lab.benchmarks.worker import ROOT


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
        choices=Plan.accuracies,
        help="a filter, may be repeated; all of them where there is none",
    )
    parser.add_argument("--batch", type=int, default=Plan.batch)
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


def chosen(names: Sequence[str], console: Console) -> catalogue.Catalogue:
    """Return the named problems, or all; say so where the real case cannot be among them."""
    real = catalogue.real_problems()
    if not real:
        console.print(f"The real case is left out: there is no {brats.case_folder()}")
    problems = {**catalogue.synthetic_problems(), **real}
    if unknown := [name for name in names if name not in problems]:
        raise SystemExit(f"--only must be one of {', '.join(problems)}, got {unknown[0]}")
    return {name: make for name, make in problems.items() if not names or name in names}


def report(console: Console, rows: Sequence[Row], plan: Plan) -> None:
    setting = f"{plan.threads} threads, median of {plan.rounds} rounds"
    table.show(console, f"speed and memory: {setting}", rows, table.speed_columns(plan.batch))
    sampled = [row for row in rows if row.sample_s is not None]
    if sampled:
        title = f"sampling, {SAMPLE_ITERATIONS} iterations each"
        table.show(console, title, sampled, table.sampling_columns())
    table.show(console, "accuracy", rows, table.accuracy_columns(plan.batch))
    if exponents := scaling.exponents(rows):
        table.show_scaling(console, exponents, plan.batch)
    table.show_notes(console, rows)


def main() -> None:
    options = arguments()
    console = Console(width=None if sys.stdout.isatty() else 200)
    progress = Console(stderr=True, highlight=False)
    plan = Plan(
        accuracies=tuple(options.accuracy or Plan.accuracies),
        batch=options.batch,
        rounds=options.rounds or (3 if options.quick else 5),
        threads=options.threads,
    )
    names = options.only or (catalogue.QUICK if options.quick else ())
    whole = not (names or options.accuracy)
    path = options.json or ROOT / "lab/benchmarks/results" / (
        "cpu.json" if whole else "cpu-part.json"
    )
    about = {"machine": machine.describe(), "plan": asdict(plan)}
    began = time.perf_counter()
    rows: list[Row] = []
    for name, make in chosen(names, console).items():

        def tell(what: str, name: str = name) -> None:
            progress.print(f"{time.perf_counter() - began:6.1f} s  {name}: {what}")

        samples = options.samples if name in catalogue.SAMPLED else 0
        rows += measure(make(), replace(plan, samples=samples), peer.interpreter(), tell)
        measured = {
            "seconds": time.perf_counter() - began,
            "rows": [asdict(row) for row in rows],
            "exponents": scaling.exponents(rows),
        }
        files.write_json(path, {**about, **measured})
    report(console, rows, plan)
    console.print(f"{time.perf_counter() - began:.0f} s; figures in {path}")
