"""The segmentation experiment: forest, default CRF and tuned CRF, one patient left out at a time.

Every turn that is done is kept in the folder: after an interruption the same call goes on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.figures import save_png
from lab.segmentation.patients import (
    Experiment,
    Turn,
    glioma_experiment,
    load_turn,
    phantom_experiment,
    save_turn,
)
from lab.segmentation.plan import FULL, QUICK, SegmentationPlan
from lab.segmentation.segmentation_page import (
    calibration_figure,
    page,
    table,
    volume_csv,
    volume_figure,
)
from lab.segmentation.summary import with_fields
from lab.segmentation.turn import measure_turn
from perturb_mpm.storage import atomic_open

CSV_NAME = "segmentation.csv"
VOLUMES_NAME = "volumes.csv"
PAGE_NAME = "segmentation.md"
TURNS = "turns"

Progress = Callable[[str, int, int], None]


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
    seed: int = 0,
    progress: Progress = lambda _what, _done, _total: None,
) -> SegmentationOutcome:
    """Run every turn that is not done yet; write the tables, the page and the pictures.

    Parameters
    ----------
    data
        A folder of patients in the BraTS layout; made-up patients where it is None.
    output
        The folder to write to, which must exist.
    quick
        Do little of everything.
    seed
        Of the forests, or of the made-up patients.
    progress
        Called with what is done, how many are done and how many there are.
    """
    plan = QUICK if quick else FULL
    folder = output / TURNS
    folder.mkdir(exist_ok=True)
    if data is None:
        experiment = phantom_experiment(plan.phantoms, plan.phantom_mm, seed)
    else:
        experiment = glioma_experiment(data, output, seed, progress)
    turns = with_fields(_measured(experiment, plan, folder, progress))
    options = f"{'' if data is None else f' --data {data.name}'}{' --quick' if quick else ''}"
    text = page(turns, plan, experiment.origin, experiment.unaries, options)
    contents = {CSV_NAME: table(turns), VOLUMES_NAME: volume_csv(turns), PAGE_NAME: text}
    for name, content in contents.items():
        _write(output / name, content)
    figures = {"calibration.png": calibration_figure, "volumes.png": volume_figure}
    for name, draw in figures.items():
        with atomic_open(output / name) as file:
            save_png(draw(turns), file)
    return SegmentationOutcome(turns, text, [output / name for name in (*contents, *figures)])


def _measured(
    experiment: Experiment, plan: SegmentationPlan, folder: Path, progress: Progress
) -> list[dict[str, Any]]:
    """Return the measurements of all turns, those on disk read from there."""
    names = list(experiment.patients)
    missing = [name for name in names if not (folder / f"{name}.json").exists()]
    for number, turn in enumerate(_turns(experiment, missing, folder)):
        progress("tuning and measuring", len(names) - len(missing) + number, len(names))
        _write(folder / f"{turn.test}.json", json.dumps(measure_turn(experiment, turn, plan)))
    return [json.loads((folder / f"{name}.json").read_bytes()) for name in names]


def _turns(experiment: Experiment, names: Sequence[str], folder: Path) -> Iterator[Turn]:
    """Yield the turns of these patients; their probabilities are kept as soon as they are there."""
    kept = [name for name in names if (folder / f"{name}.npz").exists()]
    for name in kept:
        yield load_turn(folder / f"{name}.npz", name)
    for turn in experiment.turns([name for name in names if name not in kept]):
        save_turn(folder / f"{turn.test}.npz", turn)
        yield turn


def _write(path: Path, text: str) -> None:
    with atomic_open(path) as file:
        file.write(text.encode())
