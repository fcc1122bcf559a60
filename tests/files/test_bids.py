"""A run under BIDS names, as the validator of the standard sees it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.small_case import read, write_files
from perturb_mpm.run import BidsNames, RunSettings, run_case


def errors_in(dataset: Path) -> list[str]:
    """Return what the validator (version 2 or later) calls errors."""
    names = ("bids-validator-deno", "bids-validator")
    places = (None, str(Path(sys.executable).parent))
    found = [shutil.which(name, path=place) for name in names for place in places]
    program = next((path for path in found if path), None)
    if program is None:
        pytest.skip("the BIDS validator is not installed")
    done = subprocess.run(
        [program, str(dataset), "--json"], capture_output=True, timeout=300, check=False
    )
    issues = json.loads(done.stdout)["issues"]["issues"]
    return [
        f"{issue['code']} {issue['location']}" for issue in issues if issue["severity"] == "error"
    ]


def test_the_validator_finds_no_error(tmp_path: Path) -> None:
    write_files(tmp_path / "in")
    dataset = tmp_path / "dataset"
    case = read(tmp_path / "in")
    settings = RunSettings.of_paper().changed(samples=2, iterations=1)
    run_case(case, settings, dataset, title="x", bids=BidsNames("01", "pre"))
    assert errors_in(dataset) == []
    # The check can fail: a line that validators do not take for a folder lets its files through.
    ignored = dataset / ".bidsignore"
    ignored.write_text(ignored.read_text().replace("**/state\n", "**/state/\n"))
    assert any("state" in error for error in errors_in(dataset))
