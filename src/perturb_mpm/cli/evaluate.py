"""``perturb-mpm evaluate``: uncertainty against a truth or several raters, one case or a cohort."""

from __future__ import annotations

import json as json_format
import math
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from perturb_mpm.cli.console import UsageError, prepare_folder

if TYPE_CHECKING:
    from perturb_mpm.assess import Entry
    from perturb_mpm.evaluation import Summary
    from perturb_mpm.files import LabelScheme


Flag = Annotated[bool, Parameter(negative="")]
Repeated = Annotated[list[Path] | None, Parameter(consume_multiple=True, negative="")]
COLUMNS = ("case", "method", "against", "region", "domain", "metric", "value")


def evaluate(
    *,
    prediction: Path | None = None,
    truth: Path | None = None,
    rater: Repeated = None,
    mask: Path | None = None,
    table: Path | None = None,
    region: Annotated[list[str] | None, Parameter(consume_multiple=True, negative="")] = None,
    label_values: Annotated[list[int] | None, Parameter(consume_multiple=True, negative="")] = None,
    label_names: Annotated[list[str] | None, Parameter(consume_multiple=True, negative="")] = None,
    output: Path = Path("evaluation"),
    quiet: Flag = False,
    json: Flag = False,
) -> None:
    """Measure how good an uncertainty is; write metrics.csv, summary.json and evaluation.html.

    Parameters
    ----------
    prediction
        A folder of perturb-mpm run, or a 4-D NIfTI file from elsewhere: sampled label maps (whole
        numbers, one map a sample) or marginals (one map a label).
    truth
        The true label map, NIfTI, on the same grid and with the same label values.
    rater
        A rater's label map; several give measures of how alike samples and raters spread.
    mask
        The voxels that count, for a prediction that is a file; a run has its own.
    table
        A cohort instead of one case: CSV with the columns case, prediction, truth, mask, rater_1 …
    region
        A set of labels by its name and label values, as in core=1,4; each label by default.
    label_values
        The label values of a prediction that is a file, background first.
    label_names
        Their names.
    output
        The folder to write to; made where it is missing.
    quiet
        Print nothing.
    json
        Print the summary as JSON instead of a table.
    """
    entries = _entries(prediction, truth, rater or [], mask, table)
    scheme = _scheme(label_values, label_names)
    folder = prepare_folder(output)

    from perturb_mpm.assess import measure_entry, write_evaluation
    from perturb_mpm.evaluation import summarise
    from perturb_mpm.files import InputError, write_table
    from perturb_mpm.storage import write_json

    try:
        measured = [
            each for entry in entries for each in measure_entry(entry, scheme, region or [])
        ]
    except InputError as error:
        raise UsageError(str(error)) from error
    rows = [row for each in measured for row in each.rows]
    summaries = summarise(rows)
    write_table(
        folder / "metrics.csv",
        COLUMNS,
        [(r.case, r.method, r.against, r.region, r.domain, r.metric, r.value) for r in rows],
    )
    plain = [_plain(each) for each in summaries]
    write_json(folder / "summary.json", plain)
    title = entries[0].case if len(entries) == 1 else f"{len(entries)} cases"
    write_evaluation(folder / "evaluation.html", title, measured)
    if json:
        sys.stdout.write(json_format.dumps(plain, indent=2) + "\n")
    elif not quiet:
        _print(summaries, folder)


def _entries(
    prediction: Path | None,
    truth: Path | None,
    raters: list[Path],
    mask: Path | None,
    table: Path | None,
) -> list[Entry]:
    from perturb_mpm.assess import Entry, read_cohort
    from perturb_mpm.files import InputError

    if (prediction is None) == (table is None):
        raise UsageError("give --prediction for one case or --table for a cohort, one of the two")
    if table is not None:
        if truth is not None or raters or mask is not None:
            raise UsageError("--truth, --rater and --mask belong into the --table of a cohort")
        try:
            return read_cohort(table)
        except InputError as error:
            raise UsageError(str(error)) from error
    if prediction is None or not prediction.exists():
        raise UsageError(f"--prediction {prediction}: there is no such file or folder")
    if truth is None and not raters:
        raise UsageError("--truth or --rater must be given: there is nothing to compare with")
    name = prediction.name.removesuffix(".gz").removesuffix(".nii")
    return [Entry(name, prediction, truth, tuple(raters), mask)]


def _scheme(values: list[int] | None, names: list[str] | None) -> LabelScheme | None:
    from perturb_mpm.files import LabelScheme

    if values is None:
        if names is not None:
            raise UsageError("--label-names must come with --label-values")
        return None
    try:
        return LabelScheme(tuple(values), tuple(names or (f"label {value}" for value in values)))
    except ValueError as error:
        raise UsageError(f"--label-values and --label-names: {error}") from error


def _plain(summary: Summary) -> dict[str, object]:
    """Return what JSON can hold: None where a value is not defined."""
    return {
        name: None if isinstance(value, float) and math.isnan(value) else value
        for name, value in asdict(summary).items()
    }


_PRINTED = (
    ("Dice", "brain", "dice"),
    ("true\nml", "brain", "volume_true_ml"),
    ("found\nml", "brain", "volume_ml"),
    ("ROC\narea", "dilated", "auroc"),
    ("average\nprecision", "dilated", "auprc"),
    ("share of\nerrors", "dilated", "error_prevalence"),
)


def _print(summaries: list[Summary], folder: Path) -> None:
    """Print the means of a few measures, a line a region and truth."""
    from rich.console import Console
    from rich.table import Table

    from perturb_mpm.assess import number

    means = {(s.region, s.against, s.domain, s.metric): s.mean for s in summaries}
    table = Table(caption="within 10 mm of the foreground where not of the whole region")
    table.add_column("region")
    table.add_column("against")
    for heading, _, _ in _PRINTED:
        table.add_column(heading, justify="right")
    for region, against in dict.fromkeys((s.region, s.against) for s in summaries):
        values = [
            means.get((region, against, domain, metric), math.nan) for _, domain, metric in _PRINTED
        ]
        if not all(math.isnan(value) for value in values):
            table.add_row(region, against, *(number(value) for value in values))
    console = Console()
    console.print(table)
    for name in ("metrics.csv", "summary.json", "evaluation.html"):
        console.print(f"wrote {folder / name}", highlight=False, soft_wrap=True)
