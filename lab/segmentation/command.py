"""``python -m lab segmentation``: forest, default CRF and tuned CRF, side by side."""

from __future__ import annotations

import json as json_format
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from perturb_mpm.cli import UsageError, prepare_folder, shown_progress

if TYPE_CHECKING:
    from lab.segmentation.run import SegmentationOutcome


Flag = Annotated[bool, Parameter(negative="")]


def segmentation(
    *,
    data: Path | None = None,
    output: Path = Path("reproduce-segmentation"),
    seed: int = 0,
    quick: Flag = False,
    quiet: Flag = False,
    json: Flag = False,
) -> None:
    """Segment each patient with a forest and a CRF learned on all others; write tables and a page.

    What is done is kept in the folder: after an interruption the same command goes on from there.

    Parameters
    ----------
    data
        The folder of the BraTS 2021 patients; made-up patients where it is not given.
    output
        The folder to write to; made where it is missing.
    seed
        Of the forests, or of the made-up patients.
    quick
        Do little of everything: tells whether it runs, and nothing more.
    quiet
        Print nothing, and show no progress.
    json
        Print the tables as JSON instead of the page.
    """
    from lab.segmentation.run import reproduce_segmentation
    from perturb_mpm.files import InputError

    if seed < 0:
        raise UsageError(f"--seed must not be negative, got {seed}")
    if data is not None and not data.is_dir():
        raise UsageError(f"--data must be a folder of patients, got {data}, which is not one")
    folder = prepare_folder(output)
    try:
        with shown_progress(quiet=quiet) as shown:
            outcome = reproduce_segmentation(
                data,
                folder,
                quick=quick,
                seed=seed,
                progress=lambda what, done, total: shown.stage(f"{what}, {done} of {total} done"),
            )
    except InputError as error:
        raise UsageError(str(error)) from error
    if json:
        _print_json(outcome)
    elif not quiet:
        lines = [outcome.page, *(f"wrote {file}" for file in outcome.files)]
        sys.stdout.write("\n".join(lines) + "\n")


def _print_json(outcome: SegmentationOutcome) -> None:
    """Print one JSON object; the unit stands in the name of every key."""
    from lab.segmentation.summary import calibration_rows, overlap_rows, volume_scores

    summary = {
        "files": [str(file) for file in outcome.files],
        "overlap": [asdict(row) for row in overlap_rows(outcome.turns)],
        "calibration": [asdict(row) for row in calibration_rows(outcome.turns)],
        "volumes": [_plain(asdict(row)) for row in volume_scores(outcome.turns)],
    }
    text = json_format.dumps(_plain(summary), indent=2, allow_nan=False)
    sys.stdout.write(text + "\n")


def _plain(value: object) -> object:
    """Return a value with "inf" for infinity and null for what is not a number."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, float) and value == float("inf"):
        return "inf"
    return None if isinstance(value, float) and value != value else value  # noqa: PLR0124
