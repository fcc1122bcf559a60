from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


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
