"""``perturb-mpm change``: two runs of one patient, and whether what changed is real."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from perturb_mpm.cli.console import (
    Flag,
    UsageError,
    Words,
    prepare_folder,
    print_json,
    print_plain,
    print_warning,
    shown_progress,
)

if TYPE_CHECKING:
    from perturb_mpm.biomarkers import ResponseLimits


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ChangeOptions:
    """What is compared, and where the numbers go.

    Parameters
    ----------
    measure
        What is compared, as in perturb-mpm measure: volume, bidirectional, diameter …
    structure
        Which regions and labels, the most important first; all that both runs have by default.
    progression
        The relative growth from which on a structure progressed, as in 0.4; that of RANO 2.0 by
        default, for volume and bidirectional.
    response
        The relative change from which on it responded, as in -0.65.
    correlation
        How far the errors of both scans go along, 0 to 1, where they lie on one grid: 0 is careful,
        and more makes intervals narrower.
    output
        The folder to write to; made where it is missing.
    quiet
        Print nothing.
    json
        Print the numbers as JSON instead of a sentence and a table.
    """

    measure: Words = None
    structure: Words = None
    progression: float | None = None
    response: float | None = None
    correlation: float = 0.0
    output: Path = Path("change")
    quiet: Flag = False
    json: Flag = False


_NO_OPTIONS = ChangeOptions()


def change(
    before: Annotated[Path, Parameter(name="BEFORE")],
    after: Annotated[Path, Parameter(name="AFTER")],
    /,
    *,
    options: ChangeOptions = _NO_OPTIONS,
) -> None:
    """Compare two runs of one patient; write change.csv, change.json and report.html.

    Parameters
    ----------
    before
        The folder that ``perturb-mpm run`` wrote of the earlier scan.
    after
        That of the later scan.
    options
        What is compared.
    """
    for name, folder in (("BEFORE", before), ("AFTER", after)):
        if not folder.is_dir():
            raise UsageError(f"{name} must be the folder of a run, got {folder}, which is none")
    if not 0 <= options.correlation <= 1:
        raise UsageError(f"--correlation must be between 0 and 1, got {options.correlation:g}")

    from perturb_mpm.assess import (
        ChangeQuestion,
        change_as_json,
        check_change_folder,
        compare_runs,
        write_change,
    )
    from perturb_mpm.run import load_run

    check_change_folder(options.output)
    try:
        question = ChangeQuestion(
            tuple(options.measure or ("volume",)),
            None if options.structure is None else tuple(options.structure),
            _limits(options.progression, options.response),
            options.correlation,
        )
        runs = load_run(before), load_run(after)
        with shown_progress(quiet=options.quiet) as show:
            found = compare_runs(*runs, question, show)
    except ValueError as error:
        raise UsageError(str(error)) from error
    files = write_change(prepare_folder(options.output), found)
    if not options.quiet:
        for words in found.warnings:
            print_warning(words)
    content = change_as_json(found)
    if options.json:
        print_json(content)
    elif not options.quiet:
        _print(content, files)


def _limits(progression: float | None, response: float | None) -> ResponseLimits | None:
    from perturb_mpm.biomarkers import ResponseLimits

    if progression is None and response is None:
        return None
    if progression is None or response is None:
        raise UsageError("--progression and --response must be given together, got one of them")
    return ResponseLimits("the limits given", progression, response)


def _print(content: dict[str, Any], files: Iterable[Path]) -> None:
    from rich.table import Table

    table = Table()
    for heading in ("structure", "measure"):
        table.add_column(heading)
    for heading in ("before", "after", "change\n95 %", "grew\n%", "progr.\n%", "resp.\n%"):
        table.add_column(heading, justify="right")
    for row in content["changes"]:
        ends = row["difference_lower"], row["difference_upper"]
        unit = f", {row['unit']}".replace("mm2", "mm²") if row["unit"] else ""
        table.add_row(
            row["structure"],
            row["measure"] + unit,
            *(_text(row[name]) for name in ("before", "after")),
            "–" if ends[0] is None else f"{_text(ends[0])} to {_text(ends[1])}",
            *(_percent(row[f"{name}_probability"]) for name in ("grew", "progression", "response")),
        )
    print_plain(content["answer"], table, *(f"wrote {file}" for file in files))


def _text(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f}"
