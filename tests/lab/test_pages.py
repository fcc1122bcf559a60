"""The committed pages of the experiments are those that the code writes, and name its commands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lab.__main__ import app
from lab.segmentation import segmentation_page
from lab.volumes import volume_page

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [*sorted(DOCS.glob("reproduce-*.md")), DOCS / "volumes.md"]


@pytest.mark.parametrize(
    ("template", "page"),
    [
        (segmentation_page._PAGE, "reproduce-segmentation.md"),
        (volume_page._HEAD, "volumes.md"),
    ],
)
def test_a_page_has_the_sentences_of_its_template(template: str, page: str) -> None:
    written = " ".join((DOCS / page).read_text(encoding="utf-8").split())
    for paragraph in template.split("\n\n"):
        for piece in re.split(r"\{[^}]*\}", paragraph):
            words = " ".join(piece.split())
            if len(words) > 20 and not words.startswith("!["):
                assert words in written


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_names_a_command_that_is_there(page: Path) -> None:
    found = re.findall(r"python -m lab (\w+)((?: --[a-z-]+)?)", page.read_text(encoding="utf-8"))
    assert found
    for name, option in found:
        command = app[name]
        arguments = command.assemble_argument_collection()
        names = {each for argument in arguments for each in argument.names}
        assert not option or option.strip() in names


def test_every_experiment_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        app(["--help"])
    text = capsys.readouterr().out
    for name in ("synthetic", "volumes", "segmentation", "quality", "biomarkers", "raters"):
        assert name in text
