"""What the experiments' commands share: options, the files they write, and what they print."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from perturb_mpm.storage import atomic_open, json_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Flag = Annotated[bool, Parameter(negative="", show_default=False)]
"""An option that is given or not, without ``--no-``."""
OutputFolder = Annotated[Path, Parameter(help="The folder to write to; made where it is missing.")]
Quiet = Annotated[Flag, Parameter(help="Print nothing, and show no progress.")]
Json = Annotated[Flag, Parameter(help="Print the numbers as JSON instead of text.")]


def write_text(path: Path, text: str) -> None:
    """Write a text whole or not at all."""
    with atomic_open(path) as file:
        file.write(text.encode())


def write_figure(path: Path, figure: Figure) -> None:
    """Write a figure as a PNG; the same figure gives the same bytes."""
    from lab.figures import save_png

    with atomic_open(path) as file:
        save_png(figure, file)


def print_results(
    files: Sequence[Path], text: str, numbers: Mapping[str, object], *, quiet: bool, json: bool
) -> None:
    """Print the files and numbers as one JSON object, or the text and the files' names."""
    if json:
        sys.stdout.write(json_text({"files": files, **numbers}))
    elif not quiet:
        wrote = "".join(f"wrote {file}\n" for file in files)
        sys.stdout.write(text.rstrip("\n") + "\n" + wrote)
