"""README.md and docs/: their code runs, their commands exist, their links lead somewhere."""

from __future__ import annotations

import functools
import importlib
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from cyclopts import CycloptsError

from perturb_mpm.cli import app
from perturb_mpm.files import save_nifti
from perturb_mpm.phantom import glioblastoma
from perturb_mpm.run.settings import plain_values, settings_from_text

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
MADE = {"_build", "generated"}  # by `make docs`
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *(page for page in sorted(DOCS.rglob("*.md")) if not MADE & set(page.parts)),
]
BLOCK = re.compile(r"^```([\w{}-]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Languages whose blocks are run or read by a test of this file, are directives, or show output.
KNOWN = {"python", "bash", "console", "toml", "text"}
DIRECTIVES = {"{toctree}", "{eval-rst}"}
# Options in the documents that belong to other programs: nnU-Net, Dask, SLURM, pip, make, git.
FOREIGN = {
    *("--save_probabilities", "--host", "--port", "--nthreads", "--no-nanny", "--resources"),
    *("--npz", "--ml"),  # nnU-Net, TotalSegmentator
    *("--wheel-dir", "--no-index", "--find-links"),  # pip
    *("--rm", "--network", "--volume", "--user", "--tag"),  # Docker
    *("--array", "--cpus-per-task", "--mem", "--wrap", "--parsable", "--dependency"),
}
NEEDED = ("zarr", "monai", "torchio")  # a page that imports one is skipped where it is missing


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, language: str) -> list[str]:
    return [text for kind, text in BLOCK.findall(page.read_text()) if kind == language]


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


def commands(page: Path) -> list[str]:
    """Return every command line of a page that starts perturb-mpm, its comment left out."""
    text = "\n".join(blocks(page, "bash") + blocks(page, "console")).replace("\\\n", " ")
    indented = re.findall(r"^    (perturb-mpm .*)$", page.read_text(), re.MULTILINE)
    lines = [line.strip() for line in [*text.splitlines(), *indented]]
    return [line.split(" #")[0] for line in lines if line.startswith("perturb-mpm ")]


@functools.cache
def options() -> set[str]:
    """Return every option of every command."""
    text = app.generate_docs(output_format="markdown")
    return set(re.findall(r"--[a-z][a-z0-9-]*", text)) | {"--help", "--version"}


def patient_files(folder: Path) -> None:
    """Write the files that the README speaks of: two images and nnU-Net's probabilities."""
    patient = glioblastoma(seed=0, spacing_mm=8.0)
    for name in ("T1c", "FLAIR"):
        image = patient.images[patient.channel_names.index(name)]
        save_nifti(folder / f"{name.lower()}.nii.gz", image, patient.affine)
    np.savez(folder / "case.npz", probabilities=patient.probabilities.transpose(0, 3, 2, 1))


def check_run(arguments: list[str], folder: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}  # the laboratory
    done = subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        check=False,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "python")], ids=name_of)
def test_the_python_of_a_page_runs_from_top_to_bottom(page: Path, tmp_path: Path) -> None:
    if page.name == "tutorial.md":
        pytest.skip("runs with its commands, in test_tutorial.py")
    code = shifted(page)
    for package in NEEDED:
        if re.search(rf"^(from|import) (perturb_mpm\.compat\.)?{package}\b", code, re.MULTILINE):
            pytest.importorskip(package)
    if page.name == "README.md":
        patient_files(tmp_path)
    script = tmp_path / f"{page.stem}_page.py"
    script.write_text(code)
    check_run([script.name], tmp_path)


@pytest.mark.slow
def test_the_commands_of_the_readme_run(tmp_path: Path) -> None:
    patient_files(tmp_path)
    quick = {"demo": ["--spacing", "8", "--samples", "8", "--quiet"], "run": ["--samples", "8"]}
    found = [shlex.split(line)[1:] for line in commands(ROOT / "README.md")]
    assert [name for name, *_ in found] == ["demo", "run", "view"]
    for command in found[:2]:
        start = ["-c", "from perturb_mpm.cli import main; main()"]
        check_run([*start, *command, *quick[command[0]]], tmp_path)
    assert (tmp_path / "demo" / "report.html").is_file()
    assert (tmp_path / "case" / "report.html").is_file()


def test_what_a_newcomer_types_first_are_targets_that_set_everything_up() -> None:
    text = (ROOT / "README.md").read_text()
    first = re.findall(r"^make (\w+)", text, re.MULTILINE)
    assert first == ["demo", "test"]
    makefile = (ROOT / "Makefile").read_text()
    for target in first:  # each needs an environment, which make itself makes
        assert re.search(rf"^{target}: \$\(VENV\)/\.\w+", makefile, re.MULTILINE)
    assert text.index("make demo") < text.index("pip install")


@pytest.mark.parametrize("page", [p for p in PAGES if commands(p)], ids=name_of)
def test_commands_are_such_as_the_parser_takes(page: Path) -> None:
    for line in commands(page):
        arguments = shlex.split(line.replace(" …", ""))[1:]
        if "--help" not in arguments:
            command, *_ = app.parse_args(arguments, exit_on_error=False, print_error=False)
            assert command.__name__ == arguments[0], line


def test_a_wrong_command_is_found() -> None:
    with pytest.raises(CycloptsError, match="--sample"):
        app.parse_args(["view", "case", "--sample", "3"], exit_on_error=False, print_error=False)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_options_that_are_named_exist(page: Path) -> None:
    if page.name == "CONTRIBUTING.md" or page.stem.startswith(("reproduce-", "frozen")):
        pytest.skip("names options of the laboratory")
    text = re.sub(r"`python\s+-m\s+lab[^`]*`|python -m lab.*", "", page.read_text())
    named = set(re.findall(r"(?<![\w<!-])--[a-z][\w-]*", text))
    assert named - options() - FOREIGN == set()


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "toml")], ids=name_of)
def test_settings_in_a_page_are_such_as_run_takes(page: Path) -> None:
    for text in blocks(page, "toml"):
        settings = settings_from_text(text)
        for name, written in tomllib.loads(text).items():
            if isinstance(written, dict):
                assert written.items() <= plain_values(getattr(settings, name)).items()
            else:
                assert len(getattr(settings, name)) == len(written)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_of_code_has_a_language_that_is_tested(page: Path) -> None:
    found = {kind for kind, _ in BLOCK.findall(page.read_text())}
    assert found - KNOWN - DIRECTIVES == set()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_to_files_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_tests_that_are_named_exist(page: Path) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)`", page.read_text())
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_names_of_the_package_that_are_named_exist(page: Path) -> None:
    for name in set(re.findall(r"`(perturb_mpm(?:\.\w+)+)", page.read_text())):
        module, _, last = name.rpartition(".")
        if name in {"perturb_mpm.compat.monai", "perturb_mpm.compat.torchio"}:
            continue  # needs the other library to be imported
        try:
            found = hasattr(importlib.import_module(module), last)
        except ModuleNotFoundError:
            found = False
        assert found or importlib.util.find_spec(name) is not None, name


def test_the_readme_is_short_and_shows_six_lines_of_python() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text) < 4500
    (example,) = blocks(ROOT / "README.md", "python")
    assert len([line for line in example.splitlines() if line]) == 6


def constant(file: str, name: str) -> float:
    """Return a number of an engine from its source, since not all can be imported everywhere."""
    text = (ROOT / "src" / "perturb_mpm" / "engines" / file).read_text()
    found = re.search(rf"^{name} = ([\d._]+)$", text, re.MULTILINE)
    assert found is not None
    return float(found[1])


def test_the_table_of_engines_has_their_own_numbers() -> None:
    page = (DOCS / "how-to.md").read_text()
    row = r'^\| `"(\w+)"` \|.*\| at most (\d+) \| (\d+) % of what is free'
    rows = re.findall(row, page, re.MULTILINE)
    host, card = (constant(file, "SHARE_OF_FREE") for file in ("compute.py", "gpu/device.py"))
    assert {name: (int(batch), int(share) / 100) for name, batch, share in rows} == {
        "cpu": (constant("cpu/batch.py", "DEFAULT_BATCH"), host),
        "gpu": (constant("gpu/memory.py", "DEFAULT_BATCH"), card),
        "reference": (constant("reference.py", "_DEFAULT_BATCH"), host),
    }
    worth = constant("gpu/device.py", "WORTH_IT")
    assert f"{worth:,.0f} voxels or more".replace(",", " ") in page
