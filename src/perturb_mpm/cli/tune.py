"""``perturb-mpm tune``: the settings of ``run``, learned on labelled cases."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from perturb_mpm.cli.console import (
    UsageError,
    prepare_folder,
    print_json,
    print_plain,
    shown_progress,
)

if TYPE_CHECKING:
    from perturb_mpm.files import Case, LabelScheme
    from perturb_mpm.progress import StagedProgress
    from perturb_mpm.run import RunSettings
    from perturb_mpm.tune import Tuned, TuningOptions


Flag = Annotated[bool, Parameter(negative="")]
Objective = Literal["iou", "mean_iou", "log_likelihood", "both", "hamming"]
Phase = Literal["unary", "weights", "compatibility", "bandwidths"]
Words = Annotated[list[str], Parameter(consume_multiple=True, negative="")]
Phases = Annotated[tuple[Phase, ...], Parameter(consume_multiple=True, negative="")]

SETTINGS_NAME = "settings.toml"
PICTURE_NAME = "convergence.png"


def tune(
    *,
    data: Path,
    layout: Literal["table", "brats", "nnunet", "bids"],
    labels: Words,
    output: Path,
    probabilities: Path | None = None,
    model: Path | None = None,
    settings: Path | None = None,
    objective: Objective = "iou",
    phases: Phases = ("unary", "weights", "compatibility", "bandwidths"),
    iterations: int | None = None,
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
        The labels of their label maps: brats2021, brats2023, brats2024, or values and names such
        as 0:background 1:tumour. They are never guessed from the values.
    output
        The folder to write settings.toml and convergence.png to; made where it is missing.
    probabilities
        A folder with each case's probabilities, CASE.nii.gz (4-D, labels last) or nnU-Net's
        CASE.npz, by a classifier that did not see the case.
    model
        A model trained by perturb-mpm, instead; a case that it was trained on is answered by those
        of its trees that never saw it.
    settings
        A TOML file to start from; else the defaults of run. Learning and cross-validation follow
        its engine, accuracy and iterations, and --fields its law of sampling.
    objective
        iou for overlap, all cases pooled; mean_iou for overlap, every case counting alike;
        log_likelihood for calibrated marginals; both, the sum of these two; hamming for accuracy.
    phases
        What is learned, in this order: unary (temperature and bias), weights, compatibility,
        bandwidths.
    iterations
        Mean-field updates in place of those of --settings. What is learned holds for this many,
        and the TOML file says so.
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
        How many threads in place of those of --settings; all cores by default.
    quiet
        Print nothing, and show no progress.
    json
        Print the result as JSON instead of a table.
    """
    from perturb_mpm.evaluation import default_regions
    from perturb_mpm.files import labels_from_text
    from perturb_mpm.tune import TuningOptions
    from perturb_mpm.tune import tune as tune_settings

    try:
        options = TuningOptions(
            objective=objective,
            phases=phases,
            steps=steps,
            strength=strength,
            crop_mm=None if whole else crop_mm,
            folds=folds,
            fields=fields,
        )
    except ValueError as error:
        raise UsageError(str(error)) from error
    start = _start(settings)
    changed = _changed(start, iterations, threads)
    scheme = labels_from_text(labels)
    with shown_progress(quiet=quiet) as progress:
        workers = changed.compute.threads
        cases = _cases(data, layout, scheme, probabilities, model, options, workers, progress)
        folder = prepare_folder(output)
        regions = default_regions(scheme.names)
        tuned = tune_settings(cases, changed, options, regions, progress)
    # How many threads this machine had is no part of what was learned.
    own = tuned.settings.changed(threads=start.compute.threads)
    tuned = replace(tuned, settings=own)
    files = _write(folder, tuned, options)
    if json:
        _print_json(tuned, files)
    elif not quiet:
        _print_table(tuned, files)


def _start(path: Path | None) -> RunSettings:
    from perturb_mpm.run import RunSettings, read_settings

    try:
        start = RunSettings.of_paper()
        return start if path is None else read_settings(path, start)
    except ValueError as error:
        raise UsageError(f"--settings {error}") from error


def _changed(start: RunSettings, iterations: int | None, threads: int | None) -> RunSettings:
    """Return the settings with what was given on the command line."""
    values = {"iterations": iterations, "threads": threads}
    try:
        return start.changed(**{name: value for name, value in values.items() if value is not None})
    except ValueError as error:
        raise UsageError(f"--{error}") from error


def _cases(
    data: Path,
    layout: str,
    scheme: LabelScheme,
    probabilities: Path | None,
    model: Path | None,
    options: TuningOptions,
    threads: int | None,
    progress: StagedProgress,
) -> dict[str, Case]:
    from perturb_mpm.segmenter import common_sequences, find_cases
    from perturb_mpm.tune import cases_of_model, cases_with_probabilities

    if (probabilities is None) == (model is None):
        raise UsageError("either --probabilities or --model must be given, and not both")
    files = find_cases(data, layout)
    if len(files) < options.folds:
        raise UsageError(
            f"--folds must be at most the number of cases, {len(files)}, got {options.folds}"
        )
    if model is not None:
        return cases_of_model(files, model, scheme, progress, threads)
    if probabilities is None or not probabilities.is_dir():
        raise UsageError(f"--probabilities must be a folder, got {probabilities}")
    return cases_with_probabilities(files, probabilities, common_sequences(files), scheme, progress)


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
                "untuned_iou": gain.untuned_iou,
                "tuned_iou": gain.tuned_iou,
            }
            for gain in tuned.gains
        ],
        "settings": tuned.settings.identity(),
    }
    print_json(summary)


def _print_table(tuned: Tuned, files: list[Path]) -> None:
    """Print the cross-validated IoU of every label before and after, and what was written."""
    from rich.table import Table

    table = Table(title="IoU of cases that were left out")
    table.add_column("label")
    for heading in ("untuned", "tuned"):
        table.add_column(heading, justify="right")
    for gain in tuned.gains:
        table.add_row(gain.label, _cell(gain.untuned_iou), _cell(gain.tuned_iou))
    print_plain(table, *(f"wrote {file}" for file in files))


def _cell(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3f}"
