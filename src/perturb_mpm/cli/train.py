"""``perturb-mpm train``: labelled cases in, a model file and a report of unseen patients out."""

from __future__ import annotations

import json as json_format
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from perturb_mpm.cli.console import UsageError

if TYPE_CHECKING:
    from perturb_mpm.segmenter import EnsembleSettings, TrainingReport


Flag = Annotated[bool, Parameter(negative="")]
Tell = Callable[[str, int, int], None]


def train(
    *,
    data: Path,
    layout: str,
    labels: str,
    output: Path = Path("model.skops"),
    sequences: Annotated[list[str] | None, Parameter(consume_multiple=True, negative="")] = None,
    folds: int = 10,
    kind: Literal["boosted", "random"] = "boosted",
    trees: int | None = None,
    seed: int = 0,
    cache: Path | None = None,
    quiet: Flag = False,
    json: Flag = False,
) -> None:
    """Train a segmenter; write the model, and a report of how it does on patients it never saw.

    Parameters
    ----------
    data
        A folder of cases, or with the layout table a CSV file with the columns case, labels,
        perhaps mask, and one for each sequence.
    layout
        How the cases lie there: brats (P/P_t1ce.nii.gz, P/P_seg.nii.gz), nnunet, bids or table.
    labels
        The scheme of the label maps: brats2021, brats2023, brats2024, or values and names such as
        0:background,1:tumour. It is never guessed from the values.
    output
        The model file; the report is put beside it with the ending .report.json.
    sequences
        Which images to learn from, and in which order; t1 t1c t2 flair by default.
    folds
        Into how many parts patients are dealt; each part is judged by trees that never saw it.
    kind
        How trees are grown: boosted, one after the other on what the ones before got wrong; or
        random, the paper's: side by side, each on its own draw of voxels and features.
    trees
        How many are grown without each part: 24 random ones, or 150 rounds of boosting with one
        for each label.
    seed
        The same cases and seed give the same model, byte for byte.
    cache
        A folder to keep features in, so that each case's are computed once and not twice: about
        0.5 GB a case at 1 mm, 70 MB at 2 mm. It is for one set of cases only.
    quiet
        Print nothing, and show no progress.
    json
        Print the report as JSON instead of a table.
    """
    from perturb_mpm.files import InputError
    from perturb_mpm.segmenter import training_settings
    from perturb_mpm.storage import write_json

    if folds < 3:
        raise UsageError(f"--folds must be at least 3, got {folds}")
    if trees is not None and trees < 1:
        raise UsageError(f"--trees must be at least 1, got {trees}")
    if seed < 0:
        raise UsageError(f"--seed must not be negative, got {seed}")
    if cache is not None and not cache.is_dir():
        raise UsageError(f"--cache must be a folder that is there, got {cache}")
    if not output.parent.is_dir() or output.is_dir():
        raise UsageError(f"--output must be a file in a folder that is there, got {output}")
    try:
        with _progress(quiet=quiet) as tell:
            settings = training_settings(folds=folds, kind=kind, trees=trees)
            model, report = _train(data, layout, labels, sequences, settings, seed, cache, tell)
    except InputError as error:
        raise UsageError(str(error)) from error
    except ValueError as error:
        raise UsageError(f"--data: {error}") from error
    model.save(output)
    beside = output.with_suffix(".report.json")
    write_json(beside, asdict(report))
    if json:
        sys.stdout.write(json_format.dumps(asdict(report), indent=2) + "\n")
    elif not quiet:
        _print(report, [output, beside])


def _train(
    data: Path,
    layout: str,
    labels: str,
    sequences: list[str] | None,
    settings: EnsembleSettings,
    seed: int,
    cache: Path | None,
    tell: Tell,
) -> tuple[Any, TrainingReport]:
    from perturb_mpm.files import labels_from_text
    from perturb_mpm.segmenter import (
        STANDARD,
        find_cases,
        standard_name,
        train_segmenter,
        training_cases,
    )

    scheme = labels_from_text([labels])
    wanted = tuple(standard_name(name) for name in sequences) if sequences else STANDARD
    cases = training_cases(find_cases(data, layout), wanted, scheme)
    return train_segmenter(
        cases,
        wanted,
        scheme,
        seed=seed,
        settings=settings,
        cache=cache,
        progress=tell,
    )


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Tell]:
    """Show a bar on a terminal, and nothing elsewhere."""
    if quiet or not sys.stderr.isatty():
        yield lambda _what, _done, _total: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=None)
        yield lambda what, done, total: bar.update(
            task, description=what, completed=done, total=total
        )


def _print(report: TrainingReport, files: list[Path]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Dice on patients that the trees never saw")
    table.add_column("case")
    for name in report.mean_dice:
        table.add_column(name, justify="right")
    for case, row in report.dice.items():
        table.add_row(case, *(_number(value) for value in row.values()))
    table.add_section()
    table.add_row("mean", *(_number(value) for value in report.mean_dice.values()))
    console = Console()
    console.print(table)
    before, after = (report.calibration_error[when] for when in ("before", "after"))
    calibrated = (
        f"power of the prior {report.prior_power:.2f}, temperature {report.temperature:.2f}: "
        f"calibration error {before:.4f} before, {after:.4f} after"
    )
    used = "features used most: " + ", ".join(name for name, _ in report.best_features)
    for line in (calibrated, used, *(f"wrote {file}" for file in files)):
        console.print(line, highlight=False, soft_wrap=True)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
