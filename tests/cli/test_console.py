"""How far a command is, in a log: lines now and then, with the time that is left."""

from __future__ import annotations

import pytest

from perturb_mpm.cli import console as progress
from perturb_mpm.cli.console import Lines, shown_progress


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


def test_quiet_shows_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with shown_progress(quiet=True) as shown:
        shown.stage("sampling")
        shown.warn("never said")
        shown(3, 3)
    assert capfd.readouterr() == ("", "")
