"""The segmentation experiment: classifier, default and tuned CRF, one patient left out at a time.

Every turn that is done is kept in the folder: after an interruption the same call goes on.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lab.console import write_figure, write_text
from lab.segmentation.patients import (
    PROBABILITIES,
    LeaveOneOut,
    glioma_patients,
    made_up_patients,
)
from lab.segmentation.plan import FULL, QUICK, TUNINGS, SegmentationPlan
from lab.segmentation.segmentation_page import calibration_figure, page, patients_csv
from lab.segmentation.turn import measure_turn
from lab.store import PartStore
from perturb_mpm.progress import Silent, StagedProgress

CSV_NAME = "segmentation.csv"
PAGE_NAME = "segmentation.md"
FIGURE_NAME = "calibration.png"
TURNS = "turns"  # the folder of what was measured


@dataclass(frozen=True, eq=False)
class SegmentationOutcome:
    """The measurements of every turn, the page that tells them, and all files written."""

    turns: list[dict[str, Any]]
    page: str
    files: list[Path]


def reproduce_segmentation(
    data: Path | None,
    output: Path,
    *,
    quick: bool = False,
    forest: bool = False,
    seed: int = 0,
    progress: StagedProgress | None = None,
) -> SegmentationOutcome:
    """Run every turn that is not done yet; write the table, the page and the picture.

    Parameters
    ----------
    data
        A folder of patients in the BraTS layout; made-up patients where it is None.
    output
        The folder to write to, which must exist.
    quick
        Do little of everything.
    forest
        Grow a random forest instead of boosted trees.
    seed
        Of the trees, or of the made-up patients.
    progress
        Hears what is being done.

    Raises
    ------
    OtherSettingsError
        Where the folder holds turns of another plan, seed, trees or data.
    """
    plan = QUICK if quick else FULL
    progress = progress or Silent()
    if data is None:
        experiment = made_up_patients(plan.phantoms, plan.phantom_mm, seed)
    else:
        experiment = glioma_patients(data, output, seed, progress, forest=forest)
    turns = _measure(experiment, plan, output, progress)
    options = "" if data is None else f" --data {data.name}{' --forest' if forest else ''}"
    options += " --quick" if quick else ""
    text = page(turns, plan, experiment.origin, experiment.unaries, options)
    write_text(output / CSV_NAME, patients_csv(turns))
    write_text(output / PAGE_NAME, text)
    write_figure(output / FIGURE_NAME, calibration_figure(turns))
    files = [output / name for name in (CSV_NAME, PAGE_NAME, FIGURE_NAME)]
    return SegmentationOutcome(turns, text, files)


def _measure(
    experiment: LeaveOneOut, plan: SegmentationPlan, output: Path, progress: StagedProgress
) -> list[dict[str, Any]]:
    """Return the measurements of all turns, those on disk read from there."""
    tunings = [tuning._asdict() for tuning in TUNINGS]
    measuring = {**experiment.identity, "plan": asdict(plan), "tunings": tunings}
    store = PartStore(output / TURNS, measuring)
    probabilities = PartStore(output / PROBABILITIES, experiment.identity)
    names = list(experiment.patients)
    found = {name: store.load(name) for name in names}
    missing = [name for name, measured in found.items() if measured is None]
    for turn in experiment.stored_turns(missing, probabilities):
        progress.stage(f"tuning without {turn.test}, and measuring it")
        store.save(turn.test, measure_turn(experiment, turn, plan))
        found[turn.test] = store.load(turn.test)
    return [measured for measured in found.values() if measured is not None]
