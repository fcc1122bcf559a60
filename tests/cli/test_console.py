"""How far a command is, in a log: lines now and then, with the time that is left."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import subprocess
import sys

import pytest

from perturb_mpm.cli import console as progress
from perturb_mpm.cli.console import (
    Lines,
    amount_in_words,
    duration_in_words,
    print_json,
    print_plain,
    print_warning,
    shown_progress,
)


class Clock:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def test_lines_come_every_few_seconds(clock: Clock, capfd: pytest.CaptureFixture[str]) -> None:
    lines = Lines()
    lines.stage("sampling")
    for done in range(10, 101, 10):
        clock.now += 2.0
        lines(done, 100)
    lines.warn("it is late")
    assert capfd.readouterr().err.splitlines() == [
        "perturb-mpm: sampling",
        # 5 samples a second: 20 in the 4 s since the first were told, 70 to go.
        "perturb-mpm: sampling: 30 of 100, about 14 s left",
        "perturb-mpm: sampling: 60 of 100, about 8 s left",
        "perturb-mpm: sampling: 90 of 100, about 2 s left",
        "perturb-mpm: sampling: 100 of 100",
        "perturb-mpm: warning: it is late",
    ]


def test_amounts_and_times_in_words() -> None:
    assert amount_in_words(0, None, 0.2) == ""
    assert amount_in_words(0, None, 75) == "1 min 15 s"
    assert amount_in_words(0, 200, 3) == "0 of 200"
    assert amount_in_words(50, 200, 3) == "50 of 200, 9 s left"
    assert amount_in_words(200, 200, 3) == "200 of 200"
    words = {0.04: "0.0 s", 0.7: "0.7 s", 3.2: "3 s", 59.4: "59 s", 60: "1 min", 125: "2 min 5 s"}
    words |= {3599: "59 min 59 s", 3600: "1 h", 9000: "2 h 30 min"}
    assert {seconds: duration_in_words(seconds) for seconds in words} == words


def test_a_bar_on_a_terminal_never_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither "?" nor a "left" without a time, in a stage of known and of unknown length."""
    screen = io.StringIO()
    screen.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(progress.sys, "stderr", screen)
    with shown_progress(quiet=False) as shown:
        shown.stage("reading the files")
        shown._bar.refresh()  # type: ignore[attr-defined]
        shown.stage("sampling")
        for done in (0, 5, 10):
            shown(done, 10)
    text = screen.getvalue()
    assert "reading the files" in text
    assert "5 of 10" in text
    assert "?" not in re.sub(r"\x1b\[\?", "", text)  # but in what moves the cursor
    assert not re.search(r"(?<!\d s )(?<!min )(?<!h )left", text)


def test_quiet_shows_nothing(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    log = logging.getLogger("perturb_mpm")
    with shown_progress(quiet=True) as shown:
        shown.stage("sampling")
        shown.warn("never said")
        shown(3, 3)
        log.warning("compiling the kernels")
    assert capfd.readouterr() == ("", "")
    log.warning("said later")
    assert caplog.messages == ["said later"]


def test_control_characters_are_shown_and_not_obeyed(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.table import Table

    name = "\x1b]0;owned\x07\x9b2J\rA\u202e[red]1"
    shown = "\\x1b]0;owned\\x07\\x9b2J\\x0dA\\u202e[red]1"
    table = Table("case")
    table.add_row(name)
    print_plain(f"failed: {name}", table)
    Lines().stage(name)
    print_warning(name)
    print_json({"case": name})
    found = capsys.readouterr()
    assert found.out.count(shown) == 2
    assert found.err == f"perturb-mpm: {shown}\nperturb-mpm: warning: {shown}\n"
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", found.out + found.err)
    assert json.loads(found.out[found.out.index("{") :])["case"] == name


def test_the_bar_shows_control_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        encoding = "utf-8"

        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with shown_progress(quiet=False) as shown:
        shown.stage("reading \x1b]0;owned\x07")
        shown.warn("\x1b]0;owned\x07")
    assert terminal.getvalue().count("\\x1b]0;owned\\x07") >= 2
    assert "\x1b]0" not in terminal.getvalue()


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "ascii"])
def test_any_text_can_be_printed_in_any_encoding(encoding: str) -> None:
    lines = [
        "from perturb_mpm.cli import console",
        "console.accept_all_characters()",
        "name = 'caf\\udce9 \u2192 \\U0001f600 \u00e9'",
        "console.print_plain(name)",
        "console.print_line(name)",
        "console.print_json({'case': name})",
    ]
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    command = [sys.executable, "-c", "\n".join(lines)]
    found = subprocess.run(command, capture_output=True, env=environment, check=True)
    assert b"caf\\udce9" in found.stderr
    out = found.stdout.decode(encoding)
    said = json.loads(out[out.index("{") :])
    assert said == {"case": "caf\udce9 \u2192 \U0001f600 \u00e9"}
