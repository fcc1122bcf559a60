"""Run docs/tutorial.md; write its outputs, pictures and notebook: ``python -m lab.tutorial``.

Blocks marked ``python`` run one after the other, those marked ``bash`` as commands, all in one
folder. A block marked ``text`` is what the block before it prints.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "tutorial.md"
NOTEBOOK = PAGE.with_suffix(".ipynb")

_MARK = "----- cell -----"
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A piece of the page: prose (no language), code, a command, or what one of these prints."""

    language: str
    text: str


def read_blocks(page: str) -> Iterator[Block]:
    """Yield the pieces of a page in order."""
    start = 0
    for fence in _FENCE.finditer(page):
        if prose := page[start : fence.start()].strip():
            yield Block("", prose)
        yield Block(fence.group(1), fence.group(2))
        start = fence.end()
    if prose := page[start:].strip():
        yield Block("", prose)


def make_notebook(page: str) -> dict[str, Any]:
    """Return the page as a notebook without outputs, in version 4.5 of the format."""
    cells = []
    for number, block in enumerate(read_blocks(page)):
        if block.language == "text":
            continue
        code = block.language in {"python", "bash"}
        text = block.text
        if block.language == "bash":
            text = "".join(f"!{line}\n" for line in commands(text))
        elif block.language == "console":
            text = f"```\n{text}```"
        cell: dict[str, Any] = {
            "cell_type": "code" if code else "markdown",
            "id": f"cell-{number}",
            "metadata": {},
            "source": _without_site(text).rstrip("\n").splitlines(keepends=True),
        }
        if code:
            cell |= {"execution_count": None, "outputs": []}
        cells.append(cell)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {
        "cells": cells,
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def commands(text: str) -> list[str]:
    """Return the commands of a block, each on one line."""
    return [line for line in text.replace("\\\n", " ").splitlines() if line.strip()]


def run_notebook(notebook: dict[str, Any], folder: Path) -> list[str]:
    """Run the cells of a notebook in a folder; return what each cell of code prints."""
    script = "import subprocess, sys\n" + "".join(
        f"print({_MARK!r}, flush=True)\n{_as_python(''.join(cell['source']))}\n"
        for cell in notebook["cells"]
        if cell["cell_type"] == "code"
    )
    cells = folder / "cells.py"
    cells.write_text(script, encoding="utf-8")
    done = subprocess.run(  # noqa: S603 - the page's own code
        [sys.executable, "-W", "error", cells.name],
        check=True,
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
    )
    return done.stdout.split(f"{_MARK}\n")[1:]


def with_outputs(page: str, outputs: list[str]) -> str:
    """Return the page with what its blocks of code printed."""
    left = iter(outputs)
    printed = ""

    def replace_outputs(fence: re.Match[str]) -> str:
        nonlocal printed
        if fence.group(1) in {"python", "bash"}:
            printed = next(left)
        return f"```text\n{printed}```" if fence.group(1) == "text" else fence.group()

    return _FENCE.sub(replace_outputs, page)


def _as_python(cell: str) -> str:
    """Return a cell as Python: its commands start this Python's perturb-mpm."""
    if not cell.startswith("!"):
        return cell
    lines = []
    for line in cell.splitlines():
        program, *arguments = shlex.split(line.removeprefix("!"))
        if program != "perturb-mpm":
            raise ValueError(f"a command of the tutorial must be perturb-mpm, got {program}")
        start = "from perturb_mpm.cli import main; main()"
        lines.append(
            f"subprocess.run([sys.executable, '-c', {start!r}, *{arguments!r}], check=True)"
        )
    return "\n".join(lines)


def _without_site(text: str) -> str:
    """Leave out what only the site understands, and lead links to pages nowhere."""
    text = re.sub(r"^\{download\}.*\n+", "", text, flags=re.MULTILINE)
    text = re.sub(r"^!\[.*\n+", "", text, flags=re.MULTILINE)
    return re.sub(r"\[([^\]]+)\]\([\w-]+\.md\)", r"\1", text)


def main() -> None:
    """Write the page, its pictures and its notebook."""
    page = PAGE.read_text(encoding="utf-8")
    notebook = make_notebook(page)
    with TemporaryDirectory() as folder:
        outputs = run_notebook(notebook, Path(folder))
        for picture in Path(folder).glob("*.png"):
            shutil.copy(picture, PAGE.parent / picture.name)
    PAGE.write_text(with_outputs(page, outputs), encoding="utf-8")
    NOTEBOOK.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
