"""``python -m lab``: the paper's experiments, done again."""

from __future__ import annotations

import json as json_format
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from perturb_mpm.cli import UsageError, prepare_folder

if TYPE_CHECKING:
    from lab.synthetic.plan import Plan
    from lab.synthetic.run import Outcome


Flag = Annotated[bool, Parameter(negative="")]
Progress = Callable[[float, float], object]


def synthetic(
    *,
    output: Path = Path("reproduce-synthetic"),
    seed: int = 0,
    quick: Flag = False,
    quiet: Flag = False,
    json: Flag = False,
) -> None:
    """Repeat the paper's validation on tiny binary grids; write a table, two figures and a page.

    What is done is kept in the folder: after an interruption the same command goes on from there.

    Parameters
    ----------
    output
        The folder to write to; made where it is missing.
    seed
        Names the noise; the problems are always the same.
    quick
        Fewer samples and a coarser map: some seconds instead of some minutes.
    quiet
        Print nothing, and show no progress.
    json
        Print the verdicts and the main numbers as JSON instead of a table.
    """
    from lab.store import OtherSettingsError
    from lab.synthetic.plan import FULL, QUICK
    from lab.synthetic.run import LARGEST_SEED

    if not 0 <= seed <= LARGEST_SEED:
        raise UsageError(f"--seed must be between 0 and {LARGEST_SEED}, got {seed}")
    plan = QUICK if quick else FULL
    folder = prepare_folder(output)
    try:
        outcome = _run(folder, plan, seed, bar=not quiet and sys.stderr.isatty())
    except OtherSettingsError as error:
        raise UsageError(
            f"--output must be a folder for this run: {error}; name another"
        ) from error
    if json:
        _print_json(outcome, plan, seed)
    elif not quiet:
        _print_table(outcome)


def _run(folder: Path, plan: Plan, seed: int, *, bar: bool) -> Outcome:
    from lab.synthetic.run import reproduce_synthetic

    if not bar:
        return reproduce_synthetic(folder, plan, seed)
    with _progress_bar() as progress:
        return reproduce_synthetic(folder, plan, seed, progress)


@contextmanager
def _progress_bar() -> Iterator[Progress]:
    """Show a bar with the remaining time on the terminal behind stderr."""
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("measuring"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _print_json(outcome: Outcome, plan: Plan, seed: int) -> None:
    """Print one JSON object; the metric stands beside every number."""
    summary = {
        "files": [str(file) for file in outcome.files],
        "mode": plan.mode,
        "seed": seed,
        "draws": outcome.summary.draws,
        "samples": plan.curve_samples[-1],
        "claims": [asdict(claim) for claim in outcome.claims],
        "readings": [{**asdict(each), "holds": each.holds} for each in outcome.readings],
    }
    sys.stdout.write(json_format.dumps(summary, indent=2, ensure_ascii=False) + "\n")


def _print_table(outcome: Outcome) -> None:
    """Print which claims hold, and what was written."""
    from rich.console import Console
    from rich.table import Table

    table = Table()
    table.add_column("the paper's claim")
    table.add_column("verdict")
    for claim in outcome.claims:
        table.add_row(claim.statement, claim.verdict)
    console = Console()
    console.print(table, highlight=False)
    for file in outcome.files:
        console.print(f"wrote {file}", highlight=False, soft_wrap=True)
