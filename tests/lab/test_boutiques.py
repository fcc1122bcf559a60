"""boutiques.json is what the parser says, and Boutiques takes it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lab.boutiques import COMMAND, PATH, describe_command, descriptor_text
from perturb_mpm.cli import app


def test_the_descriptor_is_up_to_date() -> None:
    assert PATH.read_text(encoding="utf-8") == descriptor_text(), "run: python -m lab.boutiques"


def test_every_key_is_in_the_command_line_once() -> None:
    found = describe_command()
    keys = re.findall(r"\[\w+\]", found["command-line"])
    assert keys == [each["value-key"] for each in found["inputs"]]
    assert len(set(keys)) == len(keys)
    assert keys[:3] == ["[BIDS_DIR]", "[OUTPUT_DIR]", "[ANALYSIS_LEVEL]"]
    assert all(each["description"] for each in found["inputs"])


def test_a_command_made_from_the_descriptor_is_taken_by_the_parser() -> None:
    values = {"Number": "1", "String": "text", "File": "file", "Flag": ""}
    words = []
    for each in describe_command()["inputs"]:
        choices = each.get("value-choices")
        value = choices[0] if choices else values[each["type"]]
        words += [word for word in (each.get("command-line-flag", ""), value) if word]
    command, *_ = app.parse_args(
        [*COMMAND.split()[1:], *words], exit_on_error=False, print_error=False
    )
    assert command.__name__ == "bids"


def test_boutiques_takes_it(tmp_path: Path) -> None:
    places = (None, str(Path(sys.executable).parent))
    program = next((found for place in places if (found := shutil.which("bosh", path=place))), None)
    if program is None:
        pytest.skip("bosh (pip install boutiques) is not installed")

    def validate(path: Path) -> int:
        done = subprocess.run([program, "validate", str(path)], check=False, capture_output=True)
        return done.returncode

    assert validate(PATH) == 0
    broken = describe_command()
    del broken["inputs"][0]["id"]
    (tmp_path / "broken.json").write_text(json.dumps(broken))
    assert validate(tmp_path / "broken.json") != 0
