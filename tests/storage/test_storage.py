"""Files that appear whole or not at all: bytes, JSON and named arrays."""

from __future__ import annotations

import errno
import json
import math
import os
import runpy
import signal
import stat
import subprocess
import sys
import threading
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import BinaryIO

import numpy as np
import pytest

from lab.torture.interruptions import AtChange, kill_self
from perturb_mpm import storage
from perturb_mpm.checks import ExpectedError
from perturb_mpm.storage import (
    LockedError,
    atomic_open,
    open_lock,
    read_arrays,
    write_arrays,
    write_json,
    write_set,
)


def test_a_finished_file_has_its_name_and_its_bytes(tmp_path: Path) -> None:
    with atomic_open(tmp_path / "a.bin") as file:
        file.write(b"whole")
        assert not (tmp_path / "a.bin").exists()
    assert (tmp_path / "a.bin").read_bytes() == b"whole"
    assert os.listdir(tmp_path) == ["a.bin"]


@pytest.mark.parametrize("problem", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_writer_that_raises_leaves_nothing(tmp_path: Path, problem: type[BaseException]) -> None:
    with pytest.raises(problem), atomic_open(tmp_path / "a.bin") as file:
        file.write(b"half")
        raise problem
    assert os.listdir(tmp_path) == []


def test_a_writer_that_raises_leaves_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"old")
    with pytest.raises(ValueError, match="half way"), atomic_open(tmp_path / "a.bin") as file:
        file.write(b"new")
        raise ValueError("half way")
    assert (tmp_path / "a.bin").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.bin"]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_writer_leaves_nothing_under_the_name(tmp_path: Path, how: signal.Signals) -> None:
    script = (
        "import os, sys\n"
        "from perturb_mpm.storage import LockedError, atomic_open\n"
        "with atomic_open(sys.argv[1]) as file:\n"
        "    file.write(b'half')\n"
        "    file.flush()\n"
        "    os.kill(os.getpid(), int(sys.argv[2]))\n"
    )
    path = tmp_path / "a.bin"
    done = subprocess.run([sys.executable, "-c", script, path, str(int(how))], check=False)
    assert done.returncode == -how
    assert not path.exists()


def test_the_umask_decides_who_may_read(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with atomic_open(tmp_path / "a.bin") as file:
            file.write(b"shared")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.bin").stat().st_mode) == 0o640


def test_json_keeps_order_and_takes_numpy(tmp_path: Path) -> None:
    content = {
        "z_ml": np.float64(1.5),
        "a": np.arange(2),
        "path": tmp_path,
        "name": "Ödem",
        "none": None,
        "flag": np.True_,
    }
    write_json(tmp_path / "a.json", content)
    text = (tmp_path / "a.json").read_text(encoding="utf-8")
    found = json.loads(text)
    assert list(found) == list(content)
    assert found == {
        "z_ml": 1.5,
        "a": [0, 1],
        "path": str(tmp_path),
        "name": "Ödem",
        "none": None,
        "flag": True,
    }
    assert "Ödem" in text
    assert text.endswith("}\n")


def test_numbers_that_json_does_not_have_become_null_and_text(tmp_path: Path) -> None:
    @dataclass
    class Row:
        value: float

    content = [Row(math.nan), {"a": np.array([np.inf, 1.0]), 2: (math.nan,)}]
    write_json(tmp_path / "a.json", content)
    found = json.loads((tmp_path / "a.json").read_text())
    assert found == [{"value": None}, {"a": ["inf", 1.0], "2": [None]}]


def test_what_json_cannot_hold_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="content must be made of what JSON has, got object"):
        write_json(tmp_path / "a.json", {"a": object()})
    assert os.listdir(tmp_path) == []


def test_arrays_come_back_and_have_the_same_bytes_every_time(tmp_path: Path) -> None:
    arrays = {"counts": np.arange(6).reshape(2, 3), "mask": np.array([True, False])}
    write_arrays(tmp_path / "a.npz", arrays)
    write_arrays(tmp_path / "b.npz", arrays)
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    found = read_arrays(tmp_path / "a.npz")
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)


def test_what_goes_to_a_cache_waits_for_no_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[int] = []
    monkeypatch.setattr(os, "fsync", waited.append)
    zeros = np.zeros(10**5)
    write_arrays(tmp_path / "cache.npz", {"a": zeros}, to_cache=True)
    assert waited == []
    assert (tmp_path / "cache.npz").stat().st_size > zeros.nbytes  # not compressed
    np.testing.assert_array_equal(read_arrays(tmp_path / "cache.npz")["a"], zeros)
    write_arrays(tmp_path / "kept.npz", {"a": zeros})
    assert len(waited) == 2  # the file, and its folder
    assert sorted(os.listdir(tmp_path)) == ["cache.npz", "kept.npz"]


def test_damaged_arrays_are_refused(tmp_path: Path) -> None:
    write_arrays(tmp_path / "a.npz", {"a": np.arange(100)})
    content = (tmp_path / "a.npz").read_bytes()
    (tmp_path / "a.npz").write_bytes(content[:-30])
    with pytest.raises(ValueError, match=r"a.npz cannot be read"):
        read_arrays(tmp_path / "a.npz")


def test_a_lock_keeps_everybody_else_out_until_its_file_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "lock"
    with open_lock(path, "in use"), pytest.raises(LockedError, match="in use"):
        open_lock(path, "in use")
    open_lock(path, "in use").close()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes here")
@pytest.mark.parametrize("kind", ["dangling link", "link", "pipe", "folder"])
def test_a_link_pipe_or_folder_is_no_lock(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "lock"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(tmp_path / "elsewhere")
        if kind == "link":
            (tmp_path / "elsewhere").touch()
    with pytest.raises(ExpectedError, match="lock must be a file, got a folder, link, pipe or"):
        open_lock(path, "in use")


def test_a_lock_whose_file_was_removed_is_taken_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between our opening the file and locking it, another process removes it."""
    path, real = tmp_path / "folder" / "lock", storage._lock

    def overtake(file: BinaryIO, *, shared: bool) -> None:
        monkeypatch.undo()
        path.unlink()
        path.parent.rmdir()
        real(file, shared=shared)

    monkeypatch.setattr(storage, "_lock", overtake)
    with open_lock(path, "in use"), pytest.raises(LockedError, match="in use"):
        open_lock(path, "in use")


def test_the_lock_of_windows_says_that_another_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its branch runs here on a stand-in for Windows' own module."""
    locked: list[int] = []

    def locking(descriptor: int, how: int, size: int) -> None:
        assert (how, size) == (2, 1)
        if locked:
            raise PermissionError(errno.EACCES, "denied")
        locked.append(descriptor)

    windows = ModuleType("msvcrt")
    windows.LK_NBLCK, windows.locking = 2, locking  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "msvcrt", windows)
    with monkeypatch.context() as there:
        there.setattr(sys, "platform", "win32")
        branch = runpy.run_path(str(Path(storage.__file__)))
    with branch["open_lock"](tmp_path / "lock", "in use") as first:
        assert locked == [first.fileno()]
        with pytest.raises(branch["LockedError"], match="in use"):
            branch["open_lock"](tmp_path / "lock", "in use")


def test_arrays_that_are_stored_come_back_beside_those_that_are_compressed(tmp_path: Path) -> None:
    arrays = {"plain": np.zeros(1000, np.float32), "small": np.arange(1000)}
    write_arrays(tmp_path / "a.npz", arrays, stored=["plain"])
    with zipfile.ZipFile(tmp_path / "a.npz") as archive:
        kinds = {entry.filename: entry.compress_type for entry in archive.infolist()}
    assert kinds == {"plain.npy": zipfile.ZIP_STORED, "small.npy": zipfile.ZIP_DEFLATED}
    for name, array in read_arrays(tmp_path / "a.npz").items():
        np.testing.assert_array_equal(array, arrays[name])


def test_arrays_are_compressed_at_the_level_that_is_meant(tmp_path: Path) -> None:
    labels = np.repeat(np.random.default_rng(0).integers(0, 3, 4000, dtype=np.uint8), 40)
    write_arrays(tmp_path / "a.npz", {"labels": labels})
    with zipfile.ZipFile(tmp_path / "a.npz") as archive:
        packed, content = archive.infolist()[0].compress_size, archive.read("labels.npy")
    sizes = []
    for level in (storage._COMPRESSION, 6):
        packer = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)
        sizes.append(len(packer.compress(content) + packer.flush()))
    assert abs(packed - sizes[0]) < 0.01 * sizes[0] < 0.1 * (sizes[0] - sizes[1])


def write_both(folder: Path, content: str) -> None:
    with write_set(folder / "old.json"):
        write_json(folder / "a.json", content)
        write_json(folder / "b.json", content)


def test_a_set_appears_at_the_end_and_takes_what_is_obsolete_along(tmp_path: Path) -> None:
    write_json(tmp_path / "old.json", "before")
    with write_set(tmp_path / "old.json"), write_set():
        write_json(tmp_path / "a.json", 1)
        assert not (tmp_path / "a.json").exists()
    assert (tmp_path / "a.json").read_text() == "1\n"
    assert os.listdir(tmp_path) == ["a.json"]
    write_json(tmp_path / "c.json", 2)  # after the block, at once
    assert (tmp_path / "c.json").exists()


def test_a_set_that_cannot_be_written_leaves_the_one_before(tmp_path: Path) -> None:
    write_both(tmp_path, "before")
    with pytest.raises(OSError, match="No space"), write_set(tmp_path / "a.json"):
        write_json(tmp_path / "a.json", "after")
        raise OSError(errno.ENOSPC, "No space left on device")
    assert sorted(os.listdir(tmp_path)) == ["a.json", "b.json"]
    assert (tmp_path / "a.json").read_text() == '"before"\n'


@pytest.mark.skipif(sys.platform == "win32", reason="no folder is locked on Windows")
def test_two_sets_in_one_folder_are_never_mixed(tmp_path: Path) -> None:
    import fcntl

    write_both(tmp_path, "before")
    other = os.open(tmp_path, os.O_RDONLY)  # stands for a process that replaces a set
    fcntl.flock(other, fcntl.LOCK_EX)
    writer = threading.Thread(target=write_both, args=(tmp_path, "after"))
    writer.start()
    while len(list(tmp_path.glob(".*.part"))) < 2:
        assert writer.is_alive()
    assert {file.read_text() for file in tmp_path.glob("*.json")} == {'"before"\n'}
    os.close(other)
    writer.join()
    assert {file.read_text() for file in tmp_path.glob("*.json")} == {'"after"\n'}


@pytest.mark.parametrize("change", range(12))
def test_a_killed_set_is_never_of_two(tmp_path: Path, change: int) -> None:
    write_both(tmp_path, "before")
    write_json(tmp_path / "old.json", "before")
    child = os.fork()
    if not child:
        at_change = AtChange(tmp_path, change + 1, kill_self)
        at_change()
        try:
            write_both(tmp_path, "after")
        finally:
            os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code == (-signal.SIGKILL if change < 7 else 0)
    found = {file.read_text() for file in tmp_path.glob("*.json")}
    assert len(found) <= 1
    if code == 0:
        assert found == {'"after"\n'}
