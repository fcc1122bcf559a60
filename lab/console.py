"""What the experiments' commands share: flags, the files they write, and what they print."""

from __future__ import annotations

import json as json_format
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from perturb_mpm.storage import atomic_open

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Flag = Annotated[bool, Parameter(negative="")]


def json_ready(value: object) -> object:
    """Return a value as JSON gives it back: null for NaN, "inf" for infinity, lists for tuples."""
    if is_dataclass(value) and not isinstance(value, type):
        return json_ready(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): json_ready(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [json_ready(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else f"{value:g}"
    return str(value) if isinstance(value, Path) else value


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
        content = json_ready({"files": files, **numbers})
        sys.stdout.write(json_format.dumps(content, indent=2, ensure_ascii=False) + "\n")
    elif not quiet:
        wrote = "".join(f"wrote {file}\n" for file in files)
        sys.stdout.write(text.rstrip("\n") + "\n" + wrote)
