"""A whole run of the synthetic validation: measure what is missing, then write the results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.store import PartStore
from lab.synthetic.claims import Claim, claims
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
    verdicts = claims(summary, plan, found)
    return SyntheticOutcome(
        summary, found, verdicts, _write(folder, summary, plan, found, verdicts)
    )


def measure_parts(
    folder: Path, plan: SyntheticPlan, seed: int = 0, progress: Progress | None = None
) -> list[ErrorRow]:
    """Return all rows of a run, measuring those that the folder does not hold."""
    from lab.synthetic.plan import plan_parts

    store = PartStore(folder / PARTS, plan.describe(seed))
    parts = plan_parts(plan, seed)
    found = {part.key: _rows(store.load(part.key)) for part in parts}
    missing = [part for part in parts if found[part.key] is None]
    total = sum(part.cost for part in missing)
    done = 0.0
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


def _write(
    folder: Path,
    summary: ErrorSummary,
    plan: SyntheticPlan,
    found: list[Reading],
    verdicts: list[Claim],
) -> list[Path]:
    from lab.synthetic.summary import csv_bytes
    from lab.synthetic.synthetic_figures import draw_curves, draw_map
    from lab.synthetic.synthetic_page import page

    names = (".csv", "-curves.png", "-map.png", ".md")
    files = [folder / f"{NAME}{ending}" for ending in names]
    with atomic_open(files[0]) as stream:
        stream.write(csv_bytes(summary))
    with atomic_open(files[1]) as stream:
        draw_curves(stream, summary, plan)
    with atomic_open(files[2]) as stream:
        draw_map(stream, summary, plan)
    with atomic_open(files[3]) as stream:
        text = page(summary, plan, found, verdicts, figures=[file.name for file in files[1:3]])
        stream.write(text.encode())
    return files
