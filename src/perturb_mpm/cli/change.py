"""``perturb-mpm change``: two runs of one patient, and whether what changed is real."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from perturb_mpm.assess import (
    ChangeQuestion,
    change_as_json,
    check_change_folder,
    compare_runs,
    read_pair,
    write_change,
)
from perturb_mpm.biomarkers import ResponseLimits
from perturb_mpm.cli.console import (
    SHOW,
    Show,
    UsageError,
    Words,
    prepare_folder,
    require_run,
    text_table,
    usage_errors,
)
from perturb_mpm.run import load_run


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ChangeOptions:
    """What is compared, and where the numbers go."""

    measure: Words = None
    """What is compared, as in perturb-mpm measure: volume, bidirectional, diameter …"""
    structure: Words = None
    """Which regions and labels, the most important first; all that both runs have by default."""
    progression: float | None = None
    """The relative growth from which on a structure progressed, as in 0.4; that of RANO 2.0 by
    default, for volume and bidirectional."""
    response: float | None = None
    """The relative change from which on it responded, as in -0.65."""
    correlation: float | None = None
    """How far the errors of both scans are correlated, 0 to 1, where they lie on one grid: 0 is
    careful, and more makes intervals narrower. What perturb-mpm tune --pairs taught the settings of
    both runs by default, else 0."""
    subject: str | None = None
    """A subject of a cohort, whose folder is BEFORE: two of its sessions are compared."""
    sessions: Annotated[tuple[str, str] | None, Parameter(negative="")] = None
    """Which sessions of the subject, the earlier first; its two by default, where pre and post or
    numbers say which is the earlier."""
    output: Path = Path("change")
    """The folder to write to; made where it is missing."""
    show: Show = SHOW


_NO_OPTIONS = ChangeOptions()
_HEADINGS = (
    *("structure", "measure", "before", "after"),
    *("change\n95 %", "grew\n%", "progr.\n%", "resp.\n%"),
)


def change(
    before: Annotated[Path, Parameter(name="BEFORE")],
    after: Annotated[Path | None, Parameter(name="AFTER")] = None,
    /,
    *,
    options: ChangeOptions = _NO_OPTIONS,
) -> None:
    """Compare two runs of one patient; write change.csv, change.json and report.html.

    Two rows of a cohort are named by its folder, --subject and --sessions.

    Parameters
    ----------
    before
        The folder that ``perturb-mpm run`` wrote of the earlier scan, or that of a cohort.
    after
        That of the later scan; none with ``--subject``.
    options
        What is compared.
    """
    first, second = _find_folders(before, after, options)
    if not 0 <= (options.correlation or 0.0) <= 1:
        raise UsageError(f"--correlation must be between 0 and 1, got {options.correlation:g}")
    check_change_folder(options.output)
    with usage_errors(), options.show.progress() as progress:
        question = ChangeQuestion(
            tuple(options.measure or ("volume",)),
            None if options.structure is None else tuple(options.structure),
            _limits(options.progression, options.response),
            options.correlation,
        )
        found = compare_runs(load_run(first), load_run(second), question, progress)
    files = write_change(prepare_folder(options.output), found)
    options.show.warn(found.warnings)
    content = change_as_json(found)
    table = text_table(_HEADINGS, map(_cells, content["changes"]), words=2)
    options.show.result(content, content["answer"], table, files=files)


def _find_folders(before: Path, after: Path | None, options: ChangeOptions) -> tuple[Path, Path]:
    """Return the folders of two runs, as given or of a cohort's subject."""
    if options.subject is not None and after is None:
        pair = read_pair(before, options.subject, options.sessions)
        before, after = pair.before, pair.after
    elif options.subject is not None or options.sessions is not None or after is None:
        raise UsageError("give BEFORE and AFTER, or the folder of a cohort and --subject")
    require_run(before, "BEFORE")
    require_run(after, "AFTER")
    return before, after


def _limits(progression: float | None, response: float | None) -> ResponseLimits | None:
    if progression is None and response is None:
        return None
    if progression is None or response is None:
        raise UsageError("--progression and --response must be given together, got one of them")
    return ResponseLimits("the limits given", progression, response)


def _cells(row: dict[str, Any]) -> list[str]:
    ends = row["difference_lower"], row["difference_upper"]
    unit = f", {row['unit']}".replace("mm2", "mm²") if row["unit"] else ""
    return [
        row["structure"],
        row["measure"] + unit,
        *(_text(row[name]) for name in ("before", "after")),
        "–" if ends[0] is None else f"{_text(ends[0])} to {_text(ends[1])}",
        *(_percent(row[f"{name}_probability"]) for name in ("grew", "progression", "response")),
    ]


def _text(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f}"
