"""What kills, full disks and poor file systems left behind, and must not any more."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from helpers.small_case import call, content, write_files
from perturb_mpm.storage import atomic_open

QUICK = ["--samples", "4", "--iterations", "1", "--engine", "reference", "--quiet"]


def test_a_run_killed_in_its_first_write_is_resumed(tmp_path: Path) -> None:
    command = ["run", *write_files(tmp_path / "patient"), *QUICK, "--output"]
    assert call(*command, str(tmp_path / "whole")) == 0
    state = tmp_path / "out" / "state"
    state.mkdir(parents=True)
    (state / ".run.json.0123abcd.part").write_bytes(b"{")
    assert call(*command, str(tmp_path / "out"), "--resume") == 0
    assert content(tmp_path / "out") == content(tmp_path / "whole")
    assert list(tmp_path.rglob("*.part")) == []


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP, errno.ENOSYS])
def test_a_file_system_without_fsync_and_locks_is_good_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def missing(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("os.fsync", missing)
    monkeypatch.setattr("fcntl.flock", missing)
    command = ["run", *write_files(tmp_path / "patient"), *QUICK, "--output"]
    assert call(*command, str(tmp_path / "out")) == 0
    assert len(content(tmp_path / "out")) == 5


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_fails_to_write_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def failing(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("os.fsync", failing)
    with pytest.raises(OSError, match=os.strerror(code)), atomic_open(tmp_path / "a") as file:
        file.write(b"lost")
    assert os.listdir(tmp_path) == []


def test_a_full_disk_is_told_in_one_line_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["run", *write_files(tmp_path / "patient"), *QUICK, "--output"]
    assert call(*command, str(tmp_path / "whole")) == 0
    capsys.readouterr()
    real, calls = os.fsync, [0]

    def full(descriptor: int) -> Any:
        calls[0] += 1
        if calls[0] > 9:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        assert call(*command, str(tmp_path / "out")) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "--output has no room left" in said
    assert call(*command, str(tmp_path / "out"), "--resume") == 0
    assert content(tmp_path / "out") == content(tmp_path / "whole")
