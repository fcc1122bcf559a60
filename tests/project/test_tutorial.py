"""The tutorial: its notebook is the page's, runs, and prints what the page shows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab import tutorial

PAGE = tutorial.PAGE.read_text(encoding="utf-8")
NOTEBOOK = json.loads(tutorial.NOTEBOOK.read_text(encoding="utf-8"))


def test_the_notebook_is_made_from_the_page() -> None:
    assert tutorial.make_notebook(PAGE) == NOTEBOOK
    assert tutorial.make_notebook(PAGE.replace("seed=7", "seed=8")) != NOTEBOOK


def test_the_notebook_has_what_its_format_asks_for() -> None:
    assert (NOTEBOOK["nbformat"], NOTEBOOK["nbformat_minor"]) == (4, 5)
    ids = [cell["id"] for cell in NOTEBOOK["cells"]]
    assert len(set(ids)) == len(ids)
    for cell in NOTEBOOK["cells"]:
        assert cell["cell_type"] in {"code", "markdown"}
        assert ("outputs" in cell) == (cell["cell_type"] == "code")
        assert ".md)" not in "".join(cell["source"])  # links lead nowhere outside the site


@pytest.mark.slow
def test_every_cell_runs_and_prints_what_the_page_shows(tmp_path: Path) -> None:
    outputs = tutorial.run_notebook(NOTEBOOK, tmp_path)
    assert tutorial.with_outputs(PAGE, outputs) == PAGE
    assert (tmp_path / "GBM" / "report.html").is_file()
    assert (tmp_path / "evaluation" / "evaluation.html").is_file()
    assert (tmp_path / "tutorial-overlay.png").is_file()


def test_an_output_that_is_not_the_pages_is_found() -> None:
    cells = [cell for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]
    assert tutorial.with_outputs(PAGE, ["something else\n"] * len(cells)) != PAGE
