from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_pictures_and_the_pages_of_the_gallery_are_small() -> None:
    docs = ROOT / "docs"
    pages = sorted((docs / "gallery").rglob("*.html"))
    assert {"demo-report.html", "cohort.html", "change.html"} <= {page.name for page in pages}
    pictures = [docs / name for name in ("report.png", "hero.png", "hero-dark.png")]
    for path in [*pages, *pictures]:
        assert path.stat().st_size < 400_000, path


@pytest.mark.slow
def test_the_readmes_first_command_runs_in_a_fresh_clone(tmp_path: Path) -> None:
    """``make demo`` with what is committed alone; the environment is this one, by a link."""
    clone = tmp_path / "clone"
    git = ["git", "clone", "--quiet", "--shared", str(ROOT), str(clone)]
    if subprocess.run(git, check=False, capture_output=True).returncode:
        pytest.skip("this is no checkout")
    commands = clone / ".venv" / "bin"
    commands.mkdir(parents=True)
    program = commands / "perturb-mpm"
    start = "from perturb_mpm.cli import main; main()"
    quick = "--spacing 8 --samples 8 --quiet"
    program.write_text(
        f"#!/bin/sh\nPYTHONPATH={clone}/src exec {sys.executable} -c '{start}' \"$@\" {quick}\n"
    )
    program.chmod(0o755)
    (clone / ".venv" / ".base").touch()  # make finds its environment made
    make = ["make", "demo", "--old-file=.venv/.base"]
    done = subprocess.run(make, check=False, cwd=clone, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (clone / "demo" / "report.html").is_file()


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


def test_the_recipe_for_conda_asks_for_what_the_wheel_does() -> None:
    text = (ROOT / "recipe" / "meta.yaml").read_text()
    (version,) = re.findall(r'set version = "(.+?)"', text)
    assert version == PROJECT["version"]
    (block,) = re.findall(r"^  run:\n(.*?)^$", text, re.MULTILINE | re.DOTALL)
    wanted = [line.strip("- ").replace(" ", "") for line in block.splitlines()]
    wanted = [line.replace("matplotlib-base", "matplotlib") for line in wanted]
    assert wanted == [f"python{PROJECT['requires-python']}", *PROJECT["dependencies"]]
    assert all(f"- {name}\n" in text for name in PROJECT["license-files"])


def test_the_workflow_calls_the_commands_that_everybody_calls() -> None:
    read_yaml = pytest.importorskip("yaml").safe_load
    jobs = read_yaml((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
    steps = {
        name: [each["run"] for each in job["steps"] if "run" in each] for name, job in jobs.items()
    }
    assert steps["everything"] == [".ci/run"]
    assert "python -m pytest -n auto" in steps["elsewhere"]
    matrix = jobs["elsewhere"]["strategy"]["matrix"]
    assert matrix["os"] == ["ubuntu-latest", "macos-latest", "windows-latest"]
    claimed = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))
    assert set(claimed) <= set(matrix["python"])
    for path in [*(ROOT / ".github").rglob("*.yml"), ROOT / ".pre-commit-config.yaml"]:
        assert isinstance(read_yaml(path.read_text()), dict), path
