"""A whole run of the synthetic validation: measure what is missing, then write the results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.store import PartStore
from lab.synthetic.claims import Claim, claims
from lab.synthetic.maxima import MaximaRow, maxima_claims, measure_maxima
from lab.synthetic.measuring import ErrorRow
from lab.synthetic.plan import FULL, SyntheticPlan
from lab.synthetic.summary import ErrorSummary, Reading, readings, summarise
from perturb_mpm.progress import Progress
from perturb_mpm.storage import atomic_open

# Of the noise: the rest of the 64 bits counts the draws.
LARGEST_SEED = 2**32 - 1

NAME = "reproduce-synthetic"
PARTS = "parts"


@dataclass(frozen=True)
class SyntheticOutcome:
    """What a run found and wrote."""

    summary: ErrorSummary
    readings: list[Reading]
    claims: list[Claim]
    maxima: list[MaximaRow]
    files: list[Path]


def reproduce_synthetic(
    folder: Path, plan: SyntheticPlan = FULL, seed: int = 0, progress: Progress | None = None
) -> SyntheticOutcome:
    """Run the validation in an existing folder, going on where an earlier run stopped.

    Every part that is done is kept there in a file of its own. ``progress`` is called with the work
    done and all work that was missing, in units of its own. The seed, at most 2³² − 1, names the
    noise; the problems are always the same.

    Raises
    ------
    OtherSettingsError
        Where the folder holds a run with another plan or seed.
    """
    summary = summarise(measure_parts(folder, plan, seed, progress))
    found = readings(summary, plan)
    maxima = measure_maxima(plan, seed)
    verdicts = [*claims(summary, plan, found), *maxima_claims(maxima, plan)]
    outcome = SyntheticOutcome(summary, found, verdicts, maxima, _files(folder))
    _write(outcome, plan, seed)
    return outcome


def measure_parts(
    folder: Path, plan: SyntheticPlan, seed: int = 0, progress: Progress | None = None
) -> list[ErrorRow]:
    """Return all rows of a run, measuring those that the folder does not hold."""
    from threadpoolctl import threadpool_limits

    from lab.synthetic.plan import plan_parts

    store = PartStore(folder / PARTS, plan.describe(seed))
    parts = plan_parts(plan, seed)
    found = {part.key: _rows(store.load(part.key)) for part in parts}
    missing = [part for part in parts if found[part.key] is None]
    total = sum(part.cost for part in missing)
    done = 0.0
    # Matrices of twelve voxels are too small to share out: threads wait for each other.
    with threadpool_limits(limits=1, user_api="blas"):
        for part in missing:
            rows = found[part.key] = part.measure()
            store.save(part.key, {"columns": ErrorRow._fields, "rows": rows})
            done += part.cost
            if progress is not None:
                progress(done, total)
    return [row for part in parts for row in found[part.key] or ()]


def _rows(kept: Mapping[str, Any] | None) -> list[ErrorRow] | None:
    """Return the rows of a part; None where it is not done, or damaged."""
    try:
        return None if kept is None else [ErrorRow(*values) for values in kept["rows"]]
    except (KeyError, TypeError):
        return None


def _files(folder: Path) -> list[Path]:
    names = (
        ".csv",
        "-maxima.csv",
        "-curves.png",
        "-map.png",
        "-overview.png",
        "-maxima.png",
        ".md",
    )
    return [folder / f"{NAME}{ending}" for ending in names]


def _write(outcome: SyntheticOutcome, plan: SyntheticPlan, seed: int) -> None:
    from lab.synthetic.illustrations import compute_overview, draw_maxima, draw_overview
    from lab.synthetic.summary import csv_bytes
    from lab.synthetic.synthetic_figures import draw_curves, draw_map
    from lab.synthetic.synthetic_page import page
    from perturb_mpm.files import write_table

    table, maxima_table, curves, area, overview, maxima, text = outcome.files
    with atomic_open(table) as stream:
        stream.write(csv_bytes(outcome.summary))
    write_table(maxima_table, MaximaRow._fields, outcome.maxima)
    with atomic_open(curves) as stream:
        draw_curves(stream, outcome.summary, plan)
    with atomic_open(area) as stream:
        draw_map(stream, outcome.summary, plan)
    with atomic_open(overview) as stream:
        draw_overview(stream, compute_overview(seed))
    with atomic_open(maxima) as stream:
        draw_maxima(stream, seed)
    with atomic_open(text) as stream:
        figures = {"curves": curves, "map": area, "overview": overview, "maxima": maxima}
        names = {name: path.name for name, path in figures.items()}
        stream.write(page(outcome, plan, names).encode())
