"""``python -m lab segmentation``: classifier, default CRF and tuned CRF, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lab.console import Flag, Json, OutputFolder, Quiet, print_results
from perturb_mpm.cli import UsageError, prepare_folder, shown_progress

if TYPE_CHECKING:
    from lab.segmentation.run import SegmentationOutcome


def segmentation(
    *,
    data: Path | None = None,
    forest: Flag = False,
    output: OutputFolder = Path("reproduce-segmentation"),
    seed: int = 0,
    quick: Flag = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Segment each patient with trees and a CRF learned on all others; write tables and a page.

    What is done is kept in the folder: after an interruption the same command goes on from there.

    Parameters
    ----------
    data
        The folder of the BraTS 2021 patients; made-up patients where it is not given.
    forest
        Grow a random forest, the paper's kind of classifier, instead of boosted trees.
    seed
        Of the trees, or of the made-up patients.
    quick
        Do little of everything: tells whether it runs, and nothing more.
    """
    from lab.segmentation.run import reproduce_segmentation

    if seed < 0:
        raise UsageError(f"--seed must not be negative, got {seed}")
    if data is not None and not data.is_dir():
        raise UsageError(f"--data must be a folder of patients, got {data}, which is not one")
    if forest and data is None:
        raise UsageError("--forest must come with --data: made-up patients bring a classifier")
    folder = prepare_folder(output)
    with shown_progress(quiet=quiet) as progress:
        outcome = reproduce_segmentation(
            data, folder, quick=quick, forest=forest, seed=seed, progress=progress
        )
    print_results(outcome.files, outcome.page, _numbers(outcome), quiet=quiet, json=json)


def _numbers(outcome: SegmentationOutcome) -> dict[str, object]:
    """Return the tables; the unit stands in the name of every key."""
    from lab.segmentation.summary import calibration_rows, overlap_rows

    return {
        "overlap": overlap_rows(outcome.turns),
        "calibration": calibration_rows(outcome.turns),
    }
