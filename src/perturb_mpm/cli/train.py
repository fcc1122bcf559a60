"""``perturb-mpm train``: labelled cases in, a model file and a report of unseen patients out."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from perturb_mpm.cli.console import (
    Flag,
    UsageError,
    print_json,
    print_plain,
    shown_progress,
    whole_number,
)

if TYPE_CHECKING:
    from perturb_mpm.segmenter import EnsembleSettings, TrainingReport


Words = Annotated[list[str], Parameter(consume_multiple=True, negative="")]

_LARGEST_SEED = 2**64 - 1


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """What to learn from, how, and where the model goes.

    Parameters
    ----------
    data
        A folder of cases, or with the layout table a CSV file with the columns case, labels,
        perhaps mask, and one for each sequence.
    layout
        How the cases lie there: brats (P/P_t1ce.nii.gz, P/P_seg.nii.gz), nnunet, bids or table.
    labels
        The labels of the label maps: brats2021, brats2023, brats2024, or values and names such as
        0:background 1:tumour. They are never guessed from the values.
    output
        The model file; the report is put beside it with the ending .report.json.
    sequences
        Which images to learn from, and in which order; t1 t1c t2 flair by default.
    folds
        Into how many parts patients are dealt; each part is judged by trees that never saw it.
    forest
        Grow a random forest, the paper's kind of classifier, instead of boosted trees; the features
        are the same.
    trees
        Rounds of boosting without each part, 150 by default; a round grows one tree for each label.
        With --forest its trees, 50 by default.
    seed
        The same cases and seed give the same model, byte for byte.
    cache
        A folder to keep features in, so that each case's are computed once and not twice: about
        0.5 GB a case at 1 mm, 70 MB at 2 mm. It is for one set of cases only.
    threads
        How many threads; all cores by default. They change no result.
    quiet
        Print nothing, and show no progress.
    json
        Print the report as JSON instead of a table.
    """

    data: Path
    layout: Literal["table", "brats", "nnunet", "bids"]
    labels: Words
    output: Path = Path("model.npz")
    sequences: Words | None = None
    folds: int = 10
    forest: Flag = False
    trees: int | None = None
    seed: int = 0
    cache: Path | None = None
    threads: int | None = None
    quiet: Flag = False
    json: Flag = False


def train(*, options: TrainOptions) -> None:
    """Train a segmenter; write the model, and a report of how it does on patients it never saw."""
    from perturb_mpm.files import STANDARD, find_labelled_cases, labels_from_text, standard_name
    from perturb_mpm.segmenter import train_segmenter, training_cases
    from perturb_mpm.storage import write_json, write_set

    settings = _check_options(options)
    scheme = labels_from_text(options.labels)
    wanted = tuple(standard_name(name) for name in options.sequences or STANDARD)
    cases = training_cases(find_labelled_cases(options.data, options.layout), wanted, scheme)
    with shown_progress(quiet=options.quiet) as progress:
        model, report = train_segmenter(
            cases,
            wanted,
            scheme,
            seed=options.seed,
            settings=settings,
            cache=options.cache,
            threads=options.threads,
            progress=progress,
        )
    beside = options.output.with_suffix(".report.json")
    with write_set():
        model.save(options.output)
        write_json(beside, asdict(report))
    if options.json:
        print_json(report)
    elif not options.quiet:
        _print(report, [options.output, beside])


def _check_options(options: TrainOptions) -> EnsembleSettings:
    """Return how to train, after checking every number and folder."""
    from perturb_mpm.engines import Compute
    from perturb_mpm.optional import optional_package
    from perturb_mpm.segmenter import (
        MOST_FOLDS,
        MOST_ROUNDS,
        Boosting,
        EnsembleSettings,
        RandomForest,
    )

    try:
        optional_package("sklearn", "training")
    except ImportError as error:
        raise UsageError(str(error)) from error
    whole_number(options.folds, "--folds", 3, MOST_FOLDS)
    if options.trees is not None:
        whole_number(options.trees, "--trees", 1, MOST_ROUNDS)
    whole_number(options.seed, "--seed", 0, _LARGEST_SEED)
    try:
        Compute(threads=options.threads)
    except ValueError as error:
        raise UsageError(f"--{error}") from error
    cache, output = options.cache, options.output
    if cache is not None and not cache.is_dir():
        raise UsageError(f"--cache must be a folder that is there, got {cache}")
    if not output.parent.is_dir() or output.is_dir():
        raise UsageError(f"--output must be a file in a folder that is there, got {output}")
    count = (
        {} if options.trees is None else {"trees" if options.forest else "rounds": options.trees}
    )
    trees = RandomForest(**count) if options.forest else Boosting(**count)
    return EnsembleSettings(folds=options.folds, trees=trees)


def _print(report: TrainingReport, files: list[Path]) -> None:
    from rich.table import Table

    table = Table(title="Dice on patients that the trees never saw")
    table.add_column("case")
    for name in report.mean_dice:
        table.add_column(name, justify="right")
    for case, row in report.dice.items():
        table.add_row(case, *(_number(value) for value in row.values()))
    table.add_section()
    table.add_row("mean", *(_number(value) for value in report.mean_dice.values()))
    before, after = (report.calibration_error[when] for when in ("before", "after"))
    calibrated = (
        f"power of the prior {report.prior_power:.2f}, temperature {report.temperature:.2f}: "
        f"calibration error {before:.4f} before, {after:.4f} after"
    )
    used = "features used most: " + ", ".join(name for name, _ in report.best_features)
    print_plain(table, calibrated, used, *(f"wrote {file}" for file in files))


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
