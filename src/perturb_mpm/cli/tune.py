"""``perturb-mpm tune``: the settings of ``run``, learned on labelled cases."""

from __future__ import annotations

import json as json_format
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from perturb_mpm.cli.console import UsageError, prepare_folder, shown_progress

if TYPE_CHECKING:
    from perturb_mpm.progress import StagedProgress
    from perturb_mpm.run import RunSettings
    from perturb_mpm.tune import Tuned, TuningCase, TuningOptions


Flag = Annotated[bool, Parameter(negative="")]
Objective = Literal["iou", "mean_iou", "log_likelihood", "both", "hamming"]
Phase = Literal["unary", "weights", "compatibility", "bandwidths"]
Phases = Annotated[tuple[Phase, ...], Parameter(consume_multiple=True, negative="")]

SETTINGS_NAME = "settings.toml"
PICTURE_NAME = "convergence.png"


def tune(
    *,
    data: Path,
    layout: Literal["table", "brats", "nnunet", "bids"],
    labels: str,
    output: Path,
    probabilities: Path | None = None,
    model: Path | None = None,
    settings: Path | None = None,
    objective: Objective = "iou",
    phases: Phases = ("unary", "weights", "compatibility", "bandwidths"),
    iterations: int = 10,
    steps: int = 15,
    strength: float = 1e-3,
    crop_mm: float = 10.0,
    whole: Flag = False,
    folds: int = 5,
    fields: int = 0,
    threads: int | None = None,
    quiet: Flag = False,
    json: Flag = False,
) -> None:
    """Learn the CRF's settings on labelled cases; write a TOML file that run takes.

    Parameters
    ----------
    data
        The cases: a folder, or a CSV table with the columns case, labels and one a sequence.
    layout
        How the cases lie in it.
    labels
        The scheme of their label maps: brats2021, brats2023, brats2024, or values and names such
        as 0:background,1:tumour. It is never guessed from the values.
    output
        The folder to write settings.toml and convergence.png to; made where it is missing.
    probabilities
        A folder with each case's probabilities, CASE.nii.gz (4-D, labels last) or nnU-Net's
        CASE.npz, by a classifier that did not see the case.
    model
        A model trained by perturb-mpm, instead; a case that it was trained on is answered by those
        of its trees that never saw it.
    settings
        A TOML file to start from; else the defaults of run.
    objective
        iou for overlap, all cases pooled; mean_iou for overlap, every case counting alike;
        log_likelihood for calibrated marginals; both, the sum of these two; hamming for accuracy.
    phases
        What is learned, in this order: unary (temperature and bias), weights, compatibility,
        bandwidths.
    iterations
        Mean-field updates. What is learned holds for this many, and the TOML file says so.
    steps
        The most steps of the optimiser in each phase.
    strength
        How strongly parameters are pulled towards the start.
    crop_mm
        Learn on the voxels within so many mm of foreground, true or likely.
    whole
        Learn on whole volumes instead.
    folds
        Folds of the cross-validation.
    fields
        Also learn smooth random fields, with so many samples for each setting tried: 32 is usual;
        0 learns none.
    threads
        How many threads to use; else all cores.
    quiet
        Print nothing, and show no progress.
    json
        Print the result as JSON instead of a table.
    """
    from perturb_mpm.files import InputError
    from perturb_mpm.tune import TuningOptions

    options = TuningOptions(
        objective=objective,
        phases=phases,
        steps=_at_least(steps, 1, "steps"),
        strength=strength,
        crop_mm=None if whole else crop_mm,
        folds=_at_least(folds, 2, "folds"),
        field_samples=_at_least(fields, 0, "fields"),
        threads=threads,
    )
    if strength < 0 or crop_mm < 0:
        raise UsageError("--strength and --crop-mm must not be negative")
    start = _start(settings, _at_least(iterations, 1, "iterations"))
    try:
        with shown_progress(quiet=quiet) as progress:
            cases = _cases(data, layout, labels, probabilities, model, options, progress)
            folder = prepare_folder(output)
            tuned = _tuned(cases, start, options, progress)
    except InputError as error:
        raise UsageError(str(error)) from error
    files = _write(folder, tuned, options)
    if json:
        _print_json(tuned, files)
    elif not quiet:
        _print_table(tuned, files)


def _at_least(value: int, minimum: int, name: str) -> int:
    if value < minimum:
        raise UsageError(f"--{name} must be at least {minimum}, got {value}")
    return value


def _start(path: Path | None, iterations: int) -> RunSettings:

    from perturb_mpm.run import RunSettings, read_settings

    try:
        start = RunSettings() if path is None else read_settings(path)
    except ValueError as error:
        raise UsageError(f"--settings {error}") from error
    return start.changed(iterations=iterations)


def _cases(
    data: Path,
    layout: str,
    labels: str,
    probabilities: Path | None,
    model: Path | None,
    options: TuningOptions,
    progress: StagedProgress,
) -> list[TuningCase]:
    from perturb_mpm.files import labels_from_text
    from perturb_mpm.segmenter import common_sequences, find_cases
    from perturb_mpm.tune import cases_of_model, cases_with_probabilities

    if (probabilities is None) == (model is None):
        raise UsageError("either --probabilities or --model must be given, and not both")
    scheme = labels_from_text([labels])
    files = find_cases(data, layout)
    if len(files) < options.folds:
        raise UsageError(
            f"--folds must be at most the number of cases, {len(files)}, got {options.folds}"
        )
    progress.stage("reading the cases")
    if model is not None:
        return cases_of_model(files, model, scheme, progress.stage)
    if probabilities is None or not probabilities.is_dir():
        raise UsageError(f"--probabilities must be a folder, got {probabilities}")
    return cases_with_probabilities(files, probabilities, common_sequences(files), scheme)


def _tuned(
    cases: list[TuningCase], start: RunSettings, options: TuningOptions, progress: StagedProgress
) -> Tuned:
    from perturb_mpm.evaluation import default_regions
    from perturb_mpm.tune import tune as tuned

    regions = default_regions(cases[0].case.labels.names)
    try:
        return tuned(cases, start, options, regions, progress.stage)
    except ValueError as error:
        raise UsageError(str(error)) from error


def _write(folder: Path, tuned: Tuned, options: TuningOptions) -> list[Path]:
    from perturb_mpm.run import write_settings
    from perturb_mpm.tune import write_convergence

    cases = sum(len(fold) for fold in tuned.folds)
    comment = (
        f"Tuned by perturb-mpm on {cases} cases: objective {options.objective}, "
        f"phases {', '.join(options.phases)}.\n"
        f"It holds for {tuned.settings.sampling.iterations} mean-field iterations."
    )
    files = [folder / SETTINGS_NAME, folder / PICTURE_NAME]
    write_settings(files[0], tuned.settings, comment)
    write_convergence(files[1], tuned.learned.trace, options.objective)
    return files


def _print_json(tuned: Tuned, files: list[Path]) -> None:
    """Print one JSON object; a label that no case has is null."""
    summary = {
        "files": [str(file) for file in files],
        "objective": tuned.learned.objective,
        "objective_before": tuned.learned.objective_before,
        "objective_after": tuned.learned.objective_after,
        "folds": [list(fold) for fold in tuned.folds],
        "labels": [
            {
                "label": gain.label,
                "untuned_iou": _known(gain.untuned_iou),
                "tuned_iou": _known(gain.tuned_iou),
            }
            for gain in tuned.gains
        ],
        "settings": tuned.settings.identity(),
    }
    sys.stdout.write(json_format.dumps(summary, indent=2, ensure_ascii=False) + "\n")


def _print_table(tuned: Tuned, files: list[Path]) -> None:
    """Print the cross-validated IoU of every label before and after, and what was written."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="IoU of cases that were left out")
    table.add_column("label")
    for heading in ("untuned", "tuned"):
        table.add_column(heading, justify="right")
    for gain in tuned.gains:
        table.add_row(gain.label, _cell(gain.untuned_iou), _cell(gain.tuned_iou))
    console = Console()
    console.print(table, highlight=False)
    for file in files:
        console.print(f"wrote {file}", highlight=False, soft_wrap=True)


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _cell(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3f}"
