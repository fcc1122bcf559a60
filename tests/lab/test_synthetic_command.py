from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.reproduction import RESULTS, TINY
from lab.__main__ import main

COMMAND = ("synthetic",)


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ending:
        main(arguments)
    assert isinstance(ending.value.code, int)
    return ending.value.code


@pytest.fixture(autouse=True)
def quick_is_tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lab.synthetic.plan.QUICK", TINY)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("synthetic") / "made" / "here"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lab.synthetic.plan.QUICK", TINY)
        assert call(*COMMAND, "--quick", "--output", str(folder), "--quiet") == 0
    return folder


@pytest.fixture
def without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw nothing, which takes most of the time of a run that is only written again."""
    for name in ("draw_curves", "draw_map"):
        monkeypatch.setattr(
            f"lab.synthetic.synthetic_figures.{name}",
            lambda stream, *_: stream.write(b"\x89PNG\r\n"),
        )


def test_the_command_writes_a_table_figures_and_a_page(folder: Path) -> None:
    assert set(os.listdir(folder)) >= RESULTS
    for name in RESULTS:
        content = (folder / name).read_bytes()
        if name.endswith(".png"):
            assert content.startswith(b"\x89PNG\r\n")
            assert len(content) < 300_000


def test_the_page_shows_the_figures_and_every_claim(folder: Path) -> None:
    text = (folder / "reproduce-synthetic.md").read_text()
    for name in RESULTS:
        if name.endswith(".png"):
            assert f"]({name})" in text
    for words in ("self term", "log-probability error", "conditional", "L = 3", "Gibbs"):
        assert words in text
    assert "nan" not in text


@pytest.mark.usefixtures("without_figures")
def test_quiet_prints_nothing_and_a_finished_run_is_only_written_again(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = (folder / "reproduce-synthetic.csv").read_bytes()
    assert call(*COMMAND, "--quick", "--output", str(folder), "--quiet") == 0
    printed = capfd.readouterr()
    assert printed.out == printed.err == ""
    assert (folder / "reproduce-synthetic.csv").read_bytes() == before


@pytest.mark.usefixtures("without_figures")
def test_json_tells_the_verdicts_and_the_main_numbers(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert call(*COMMAND, "--quick", "--output", str(folder), "--json") == 0
    found = json.loads(capfd.readouterr().out)
    assert {Path(file).name for file in found["files"]} == RESULTS
    assert (found["seed"], found["draws"], found["samples"]) == (0, 2, 50)
    assert len(found["readings"]) == 8
    for reading in found["readings"]:
        assert [size["voxels"] for size in reading["sizes"]] == [6, 9]
        assert isinstance(reading["holds"], bool)
    assert all(set(claim) == {"statement", "verdict", "evidence"} for claim in found["claims"])


@pytest.mark.usefixtures("without_figures")
def test_the_table_names_verdicts_and_files_and_there_is_no_bar_off_a_terminal(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert call(*COMMAND, "--quick", "--output", str(folder)) == 0
    printed = capfd.readouterr()
    for text in ("unit variance", "does not hold", *RESULTS):
        assert text in printed.out
    assert printed.err == "perturb-mpm: measuring\n"


@pytest.mark.usefixtures("without_figures")
def test_a_terminal_sees_a_bar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    for name in ("TERM", "COLUMNS"):
        monkeypatch.setenv(name, {"TERM": "xterm", "COLUMNS": "80"}[name])
    assert call(*COMMAND, "--quick", "--output", str(tmp_path)) == 0
    assert "measuring" in capfd.readouterr().err


@pytest.mark.parametrize("arguments", [["--quick", "--seed", "1"], []])
def test_a_folder_with_other_settings_is_refused(
    arguments: list[str], folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = sorted((path, path.stat().st_mtime_ns) for path in folder.rglob("*"))
    assert call(*COMMAND, "--output", str(folder), *arguments) == 2
    printed = capfd.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines()[-1].startswith(
        "python -m lab: --output must be a folder for this run: "
    )
    assert "name another" in printed.err.splitlines()[-1]
    assert sorted((path, path.stat().st_mtime_ns) for path in folder.rglob("*")) == before


@pytest.mark.parametrize("seed", ["-1", "4294967296", "one"])
def test_a_bad_seed_is_refused_before_anything_is_made(
    seed: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert call(*COMMAND, "--output", str(tmp_path / "new"), "--seed", seed) == 2
    assert "--seed" in capfd.readouterr().err
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "example"),
    [
        (["--help"], "python -m lab synthetic --quick"),
        ([*COMMAND, "--help"], "python -m lab synthetic --quick --output synthetic"),
    ],
)
def test_help_shows_an_example_and_loads_nothing_heavy(arguments: list[str], example: str) -> None:
    code = (
        "import sys\nfrom lab.__main__ import main\n"
        f"try:\n    main({arguments})\nexcept SystemExit as ending:\n    assert not ending.code\n"
        "sys.stderr.write(' '.join(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert f"Example:  {example}" in done.stdout
    assert not set(done.stderr.split()) & {"numba", "torch", "matplotlib", "nibabel", "scipy"}
