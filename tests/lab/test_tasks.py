"""The table of docs/tasks.md has every task that the command does, with what it took."""

from __future__ import annotations

import re
from pathlib import Path

from lab.benchmarks.figures import with_figures
from lab.benchmarks.tasks import BEGIN, END, HEADER, PAGE, TASKS

ROOT = Path(__file__).parents[2]


def rows(text: str) -> list[list[str]]:
    """The cells of a table in Markdown, without its head."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_every_task_is_explained_and_measured() -> None:
    page = PAGE.read_text(encoding="utf-8")
    explained, measured = page.split(BEGIN)
    assert [name for name, _ in rows(explained)] == list(TASKS)
    found = rows(measured.split(END)[0])
    assert [row[0] for row in found] == list(TASKS)
    for row in found:
        commands, clicks, seconds, of_a_core = row[1:5]
        assert len(row) == len(HEADER)
        assert int(commands) + int(clicks) > 0
        assert float(seconds) > 0
        assert float(of_a_core) >= 0


def test_the_page_can_be_written_again() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_figures(page, "new", BEGIN, END).count("new") == page.count("new") + 1


def test_links_between_pages_of_the_gallery_lead_somewhere() -> None:
    patients = ROOT / "docs" / "gallery" / "patients"
    cohort = (patients / "cohort.html").read_text(encoding="utf-8")
    links = set(re.findall(r'href="([^"#]+\.html)#', cohort))
    assert len(links) > 3
    assert {link for link in links if not (patients / link).is_file()} == set()
