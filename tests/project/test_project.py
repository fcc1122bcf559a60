from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DOCUMENTS = sorted(ROOT.glob("*.md"))


def python_blocks(document: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", document.read_text(), re.MULTILINE | re.DOTALL)


def test_the_readme_has_an_example_of_about_fifteen_lines() -> None:
    (example,) = python_blocks(ROOT / "README.md")
    assert len(example.splitlines()) <= 16


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_examples_in_documents_run_as_they_are(document: Path, tmp_path: Path) -> None:
    for example in python_blocks(document):
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", example],
            check=False,
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_to_files_lead_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\(([^)#:]+)\)", document.read_text())
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_the_readmes_picture_is_small() -> None:
    assert (ROOT / "docs" / "report.png").stat().st_size < 400_000


def test_the_citation_file_has_what_its_format_asks_for() -> None:
    lines = (ROOT / "CITATION.cff").read_text().splitlines()
    fields = dict(line.split(": ", 1) for line in lines if re.match(r"[a-z-]+: ", line))
    assert fields["cff-version"] == "1.2.0"
    assert fields["version"] == PROJECT["version"]
    assert fields["license"] == PROJECT["license"]
    assert fields["title"] == PROJECT["name"]
    assert {"message", "type"} <= set(fields)
    assert {"authors:", "preferred-citation:"} <= set(lines)


def test_the_changelog_knows_the_version_or_what_is_unreleased() -> None:
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] in ("Unreleased", PROJECT["version"])


def test_every_requirement_has_its_reason_beside_it() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    block = re.search(r"^dependencies = \[\n(.*?)^\]", text, re.MULTILINE | re.DOTALL)
    assert block is not None
    lines = block.group(1).splitlines()
    assert len(lines) == len(PROJECT["dependencies"])
    assert [line for line in lines if "#" not in line] == []
