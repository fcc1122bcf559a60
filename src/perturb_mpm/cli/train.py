"""``perturb-mpm train``: labelled cases in, a model file and a report of unseen patients out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from cyclopts import Parameter
from rich.table import Table

from perturb_mpm.cli.console import (
    SHOW,
    Flag,
    Names,
    Show,
    UsageError,
    Words,
    text_table,
    usage_errors,
    whole_number,
)
from perturb_mpm.engines import Compute
from perturb_mpm.files import STANDARD, find_labelled_cases, labels_from_text, standard_name
from perturb_mpm.optional import optional_package
from perturb_mpm.segmenter import (
    MOST_FOLDS,
    MOST_ROUNDS,
    Boosting,
    EnsembleSettings,
    RandomForest,
    TrainingReport,
    train_segmenter,
    training_cases,
)
from perturb_mpm.storage import write_json, write_set

_LARGEST_SEED = 2**64 - 1


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """What to learn from, how, and where the model goes."""

    data: Path
    """A folder of cases, or with the layout table a CSV file with the columns case, labels, perhaps
    mask, and one for each sequence."""
    layout: Literal["table", "brats", "nnunet", "bids"]
    """How the cases lie there: brats (P/P_t1ce.nii.gz, P/P_seg.nii.gz), nnunet, bids or table."""
    labels: Names
    """The labels of the label maps: brats2021, brats2023, brats2024, or values and names such as
    0:background 1:tumour. They are never guessed from the values."""
    output: Path = Path("model.npz")
    """The model file; the report is put beside it with the ending .report.json."""
    sequences: Words = None
    """Which images to learn from, and in which order; t1 t1c t2 flair by default."""
    folds: int = 10
    """Into how many parts patients are dealt; each part is judged by trees that never saw it."""
    forest: Flag = False
    """Grow a random forest, the paper's kind of classifier, instead of boosted trees; the features
    are the same."""
    trees: int | None = None
    """Rounds of boosting without each part, 150 by default; a round grows one tree for each label.
    With --forest its trees, 50 by default."""
    seed: int = 0
    """The same cases and seed give the same model, byte for byte."""
    cache: Path | None = None
    """A folder to keep features in, so that each case's are computed once and not twice: about 0.5
    GB a case at 1 mm, 70 MB at 2 mm. It is for one set of cases only."""
    threads: int | None = None
    """How many threads; all cores by default. They change no result."""
    show: Show = SHOW


def train(*, options: TrainOptions) -> None:
    """Train a segmenter; write the model, and a report of how it does on patients it never saw."""
    settings = _check_options(options)
    scheme = labels_from_text(options.labels)
    wanted = tuple(standard_name(name) for name in options.sequences or STANDARD)
    cases = training_cases(find_labelled_cases(options.data, options.layout), wanted, scheme)
    with options.show.progress() as progress:
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
    options.show.result(report, *_in_words(report), files=(options.output, beside))


def _check_options(options: TrainOptions) -> EnsembleSettings:
    """Return how to train, after checking every number and folder."""
    try:
        optional_package("sklearn", "training")
    except ImportError as error:
        raise UsageError(str(error)) from error
    whole_number(options.folds, "--folds", 3, MOST_FOLDS)
    if options.trees is not None:
        whole_number(options.trees, "--trees", 1, MOST_ROUNDS)
    whole_number(options.seed, "--seed", 0, _LARGEST_SEED)
    with usage_errors("--"):
        Compute(threads=options.threads)
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


def _in_words(report: TrainingReport) -> Iterator[str | Table]:
    rows = [(case, *map(_number, row.values())) for case, row in report.dice.items()]
    title = "Dice on patients that the trees never saw"
    table = text_table(("case", *report.mean_dice), rows, title=title)
    table.add_section()
    table.add_row("mean", *map(_number, report.mean_dice.values()))
    yield table
    before, after = (report.calibration_error[when] for when in ("before", "after"))
    yield (
        f"power of the prior {report.prior_power:.2f}, temperature {report.temperature:.2f}: "
        f"calibration error {before:.4f} before, {after:.4f} after"
    )
    yield "features used most: " + ", ".join(name for name, _ in report.best_features)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
