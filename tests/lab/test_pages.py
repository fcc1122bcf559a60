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
MEASURED = [
    *PAGES,
    *sorted(DOCS.glob("tune-*.md")),
    *(DOCS / f"{name}.md" for name in ("compare", "frozen")),
]


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


@pytest.mark.parametrize("page", MEASURED, ids=lambda page: page.stem)
def test_the_first_sentence_of_a_page_says_what_is_real_and_what_made_up(page: Path) -> None:
    opening = page.read_text(encoding="utf-8").split("\n\n")[1]
    first = re.split(r"[.;] ", " ".join(opening.split()))[0]
    assert re.search(r"\breal\b|\bmade[- ]up\b", first), first


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_names_a_command_that_is_there(page: Path) -> None:
    found = re.findall(r"python -m lab (\w+)((?: --[a-z-]+)?)", page.read_text(encoding="utf-8"))
    assert found
    for name, option in found:
        command = app[name]
        arguments = command.assemble_argument_collection()
        names = {each for argument in arguments for each in argument.names}
        assert not option or option.strip() in names


def test_the_index_of_the_paper_has_every_item_and_commands_that_parse() -> None:
    text = (DOCS / "paper.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in text.splitlines() if re.match(r"\| [FAPN]\w+ \d", line)]
    items = [row[0].removeprefix("| ") for row in rows]
    propositions, numbers = (
        ["Proposition 1", "Proposition 2"],
        ["Numbers 1", "Numbers 2", "Numbers 3"],
    )
    assert items == [*(f"Figure {n}" for n in range(1, 9)), "Algorithm 1", *propositions, *numbers]
    for row in rows:
        words = row[2].strip("`").split()
        if words[:3] == ["python", "-m", "lab"]:
            app.parse_args(words[3:], print_error=False, exit_on_error=False)
        else:
            assert words[:2] == ["perturb-mpm", "run"]
        assert "](" in row[3]


def test_every_experiment_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        app(["--help"])
    text = capsys.readouterr().out
    for name in ("synthetic", "volumes", "segmentation", "quality", "biomarkers", "bias", "raters"):
        assert name in text


def read_rows(page: Path) -> dict[str, dict[str, set[str]]]:
    """Return the cells of every method's rows, by the classifier that a section is about."""
    found: dict[str, dict[str, set[str]]] = {}
    section = ""
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ").partition(":")[0]
        elif line.startswith("| "):
            method, *cells = [each.strip() for each in line.strip("| ").split(" | ")]
            found.setdefault(section, {}).setdefault(method, set()).update(cells)
    return found


def test_the_readme_has_the_shares_of_volumes_that_its_page_measured() -> None:
    measured = read_rows(DOCS / "reproduce-network.md")["3-D U-Net"]
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    for words, method in {
        "ensemble of five networks": "ensemble of 5",
        "20 dropout samples": "20 dropout samples",
        "**perturb-mpm, no labelled case**": "defaults of run",
    }.items():
        (counts,) = (re.findall(r"(\d+)/80", each) for each in measured[method] if "/80" in each)
        shares = sorted(round(100 * int(inside) / 80) for inside in counts)
        row = next(line for line in readme.splitlines() if line.startswith(f"| {words}"))
        assert f"{shares[0]}–{shares[-1]} %" in row


def test_the_whole_story_has_the_numbers_of_the_pages_that_it_tells() -> None:
    names = ("reproduce-network", "reproduce-gliomas", "tune-hippocampi", "tune-gliomas")
    pages = [DOCS / f"{name}.md" for name in (*names, "tune-gliomas-trees")]
    measured = read_rows(pages[0]) | read_rows(pages[1])
    story = (DOCS / "evidence.md").read_text(encoding="utf-8")
    compared = 0
    for line in story.splitlines():
        classifier, *cells = [each.strip() for each in line.strip("| ").split(" | ")]
        if line.startswith("| ") and classifier in measured:
            method, *cells = cells
            for cell in cells:
                assert cell in measured[classifier][method], (classifier, method, cell)
                compared += 1
    assert compared > 50
    # Of what is told in sentences, every number with three digits, and every count.
    known = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    told = "\n".join(line for line in story.splitlines() if not line.startswith("| "))
    assert len(re.findall(r"\d+ of \d+", told)) > 4
    for pattern in (r"\d\.\d{3,}", r"(\d+)(?:/| of )(\d+)"):
        assert set(re.findall(pattern, told)) <= set(re.findall(pattern, known))
