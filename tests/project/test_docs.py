"""The pages under docs/: their Python runs, their links lead somewhere, their names exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[str]:
    return BLOCK.findall(page.read_text())


def shifted(page: Path) -> str:
    """Return all Python of a page at its own lines, so that an error names the line."""
    lines = page.read_text().splitlines()
    inside = False
    for number, line in enumerate(lines):
        fence = line.startswith("```")
        lines[number] = line if inside and not fence else ""
        if fence:
            inside = not inside and line == "```python"
    return "\n".join(lines)


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda page: page.name)
def test_the_python_of_a_page_runs_from_top_to_bottom(page: Path, tmp_path: Path) -> None:
    if "import zarr" in shifted(page):
        pytest.importorskip("zarr")
    script = tmp_path / f"{page.stem}.py"
    script.write_text(shifted(page))
    done = subprocess.run(
        [sys.executable, "-W", "error", script.name],
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},  # the laboratory
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#:]+)\)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.name)
def test_tests_that_are_named_exist(page: Path) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)`", page.read_text())
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_readme_keeps_the_place_of_its_figures() -> None:
    assert "<!-- figures -->" in (ROOT / "README.md").read_text()
