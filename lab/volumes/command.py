"""``python -m lab volumes``: how far sampled volumes spread on real patients."""

from __future__ import annotations

import json as json_format
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from perturb_mpm.cli import UsageError, prepare_folder

if TYPE_CHECKING:
    from lab.volumes.measuring import VolumeRow


Flag = Annotated[bool, Parameter(negative="")]


def volumes(
    *,
    data: Path,
    output: Path = Path("reproduce-volumes"),
    quick: Flag = False,
    quiet: Flag = False,
    json: Flag = False,
) -> None:
    """Sample the volumes of real tumours with and without random fields; write a table and a page.

    Parameters
    ----------
    data
        The folder of the BraTS 2021 patients, or one that has it as brats2021_2mm.
    output
        The folder to write to; made where it is missing.
    quick
        Two patients and few samples: under a minute instead of some minutes.
    quiet
        Print nothing, and show no progress.
    json
        Print every row as JSON instead of the page's findings.
    """
    from lab.volumes.patients import patient_folders

    try:
        patient_folders(data)
    except FileNotFoundError as error:
        raise UsageError(f"--{error}") from error
    folder = prepare_folder(output)
    rows = _run(data, folder, quick=quick, bar=not quiet and sys.stderr.isatty())
    if json:
        _print_json(folder, rows)
    elif not quiet:
        _print_findings(folder, rows)


def _run(data: Path, folder: Path, *, quick: bool, bar: bool) -> list[VolumeRow]:
    from lab.volumes.measuring import reproduce_volumes

    if not bar:
        return reproduce_volumes(data, folder, quick)
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("sampling", total=None)
        return reproduce_volumes(
            data,
            folder,
            quick,
            lambda done, total: progress.update(task, completed=done, total=total),
        )


def _print_json(folder: Path, rows: list[VolumeRow]) -> None:
    """Print one JSON object; the unit stands in the name of every key."""
    summary = {
        "files": [str(file) for file in _files(folder)],
        "rows": [_without_nan(asdict(row)) for row in rows],
    }
    sys.stdout.write(json_format.dumps(summary, indent=2) + "\n")


def _print_findings(folder: Path, rows: list[VolumeRow]) -> None:
    """Print what the page says about whole tumours, and what was written."""
    from lab.volumes.volume_page import findings

    lines = [findings(rows), *(f"wrote {file}" for file in _files(folder))]
    sys.stdout.write("\n".join(lines) + "\n")


def _files(folder: Path) -> list[Path]:
    from lab.volumes.measuring import CSV_NAME, PAGE_NAME

    return [folder / CSV_NAME, folder / PAGE_NAME]


def _without_nan(row: dict[str, object]) -> dict[str, object]:
    """Return the row with null for what is not a number, which JSON does not know."""
    return {name: None if value != value else value for name, value in row.items()}  # noqa: PLR0124
