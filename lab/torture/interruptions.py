"""Runs that are killed, find no disk space or no permission, or meet another run in their folder.

After each, every output is whole or absent, and ``--resume`` ends with the same bytes.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

from lab.torture.attack import Attack, Finding, Trial
from lab.torture.patient import IMAGES, SAME_BYTES, write_patient
from perturb_mpm.cli import main

_LOADED_ONCE = ["perturb_mpm.cli", "perturb_mpm.run", "perturb_mpm.report", "nibabel"]
_LONGEST = 120.0  # seconds of one run
_CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree"}
_NOBODY = 65534


def _settings(folder: Path, output: Path) -> list[str]:
    images = [str(folder / f"{name}.nii.gz") for name in IMAGES]
    return [
        *("run", "--image", *images, "--probabilities", str(folder / "p.nii.gz")),
        *("--samples", "30", "--iterations", "3", "--engine", "reference", "--quiet", "--resume"),
        *("--output", str(output)),
    ]


Disturb = Callable[[], None]


def _run(arguments: list[str], said: Path, disturb: Disturb | None) -> None:
    """Run the command in this process; what it says goes to a file."""
    with said.open("w") as file:
        os.dup2(file.fileno(), 2)
        sys.stderr = os.fdopen(2, "w", closefd=False)
        if disturb is not None:
            disturb()
        main(arguments)


def kill_self() -> None:
    """End this process as ``kill -9`` does."""
    os.kill(os.getpid(), signal.SIGKILL)


def refuse_space() -> None:
    """Fail as a full disk does."""
    raise OSError(28, "No space left on device")


class AtChange:
    """Disturbs at one of the changes of what lies in a folder, by number.

    A full disk stays full: it takes no new file, but lets files be renamed and removed.
    It is called once in the process that it disturbs.
    """

    def __init__(
        self, folder: Path | None = None, number: int = 0, do: Callable[[], None] = kill_self
    ) -> None:
        self.folder, self.left, self.do = str(folder), number, do

    def __call__(self) -> None:
        """Watch this process to its end."""
        sys.addaudithook(self._look)

    def arm(self, folder: Path, number: int, do: Callable[[], None]) -> None:
        """Disturb at this change from now on."""
        self.folder, self.left, self.do = str(folder), number, do

    def disarm(self) -> None:
        """Disturb no more."""
        self.left, self.do = 0, kill_self

    def _look(self, event: str, arguments: tuple[object, ...]) -> None:
        full = self.do is refuse_space
        if event == "open":
            path, mode, _ = (*arguments, None, None, None)[:3]
            changes = isinstance(mode, str) and any(each in mode for each in "wxa+")
        else:
            path = (arguments or (None,))[0]
            changes = event == "os.mkdir" if full else event in _CHANGES
        if changes and isinstance(path, str | os.PathLike) and self.folder in os.fspath(path):
            self.left -= 1
            if self.left == 0 or (full and self.left < 0 and event == "open"):
                self.do()


class _SmallFiles:
    """Lets no file grow beyond so many bytes."""

    def __init__(self, most: int) -> None:
        self.most = most

    def __call__(self) -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.most, resource.RLIM_INFINITY))


def _become_nobody() -> None:
    if os.getuid() == 0:
        os.setgid(_NOBODY)
        os.setuid(_NOBODY)


class Runs:
    """Starts runs of one patient, and compares what they leave with an undisturbed one."""

    def __init__(self, folder: Path) -> None:
        self.patient = folder / "patient"
        self.patient.mkdir()
        folder.chmod(0o755)
        write_patient(self.patient)
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(_LOADED_ONCE)
        whole = folder / "expected"
        began = time.monotonic()
        if self.finish(self.start(whole, folder / "said.txt")) != 0:
            raise RuntimeError((folder / "said.txt").read_text())
        self.seconds = time.monotonic() - began
        self.expected = _content(whole)

    def start(self, output: Path, said: Path, disturb: Disturb | None = None) -> BaseProcess:
        """Start a run in a process of its own."""
        arguments = _settings(self.patient, output)
        process = self._context.Process(target=_run, args=(arguments, said, disturb))
        process.start()
        return process

    def finish(self, process: BaseProcess) -> int | None:
        """Wait for the end of a run; None where it hangs."""
        process.join(_LONGEST)
        if process.is_alive():
            process.kill()
            process.join()
            return None
        return process.exitcode

    def compare(self, output: Path, said: Sequence[Path], codes: Sequence[int | None]) -> Finding:
        """Check what disturbed runs said and left, then finish the run and compare all bytes."""
        for file in said:
            text = file.read_text() if file.exists() else ""
            if "Traceback" in text or text.count("\n") > 1:
                return Finding(kind="traceback", words=text)
        lost = self._lost(output, codes)
        return Finding(refused=any(codes), kind="lost" if lost else "", words=lost)

    def _lost(self, output: Path, codes: Sequence[int | None]) -> str:
        """Say what is lost, nothing where nothing is."""
        again = output.parent / "again.txt"
        changed = [n for n, content in _content(output).items() if content != self.expected[n]]
        if None in codes or changed:
            return f"{changed or 'a run that did not end'} after {codes}"
        code = self.finish(self.start(output, again))
        if code != 0 or _content(output) != self.expected:
            return f"resuming ended with {code}, or with other bytes: {again.read_text()}"
        left = [str(path) for path in output.rglob("*.part")]
        return f"left behind: {left}" if left else ""


def _content(output: Path) -> dict[str, bytes]:
    return {name: (output / name).read_bytes() for name in SAME_BYTES if (output / name).exists()}


def prepare_kills(folder: Path) -> Trial:
    """Return a trial that kills a run at one of its writes, or at a random moment."""
    runs = Runs(folder)

    def trial(rng: random.Random, trial_folder: Path) -> Finding:
        output, said = trial_folder / "out", trial_folder / "said.txt"
        at_write = rng.random() < 0.5
        disturb = AtChange(output, rng.randrange(1, 45), kill_self) if at_write else None
        process = runs.start(output, said, disturb)
        if not at_write:
            time.sleep(rng.uniform(0, runs.seconds))
            process.kill()
        return runs.compare(output, [said], [runs.finish(process)])

    return trial


def prepare_full_disks(folder: Path) -> Trial:
    """Return a trial in which a disk is full: a small mounted one, else one that says so."""
    runs = Runs(folder)
    mounts = _can_mount(folder / "mount")

    def trial(rng: random.Random, trial_folder: Path) -> Finding:
        output, said = trial_folder / "out", trial_folder / "said.txt"
        kind = rng.choice(("event", "size", "mount" if mounts else "size"))
        if kind == "mount":
            return _on_small_disk(
                runs, trial_folder, rng.randrange(1, 45), rng.randrange(0, 300_000)
            )
        disturb: Disturb = _SmallFiles(rng.randrange(0, 60_000))
        if kind == "event":
            disturb = AtChange(output, rng.randrange(1, 45), refuse_space)
        process = runs.start(output, said, disturb)
        return runs.compare(output, [said], [runs.finish(process)])

    return trial


class _Fill:
    """Fills a disk but for some bytes, as another program may at any moment."""

    def __init__(self, disk: Path, left: int) -> None:
        self.disk, self.left = disk, left

    def __call__(self) -> None:
        free = shutil.disk_usage(self.disk).free
        descriptor = os.open(self.disk / "filler", os.O_CREAT | os.O_WRONLY)
        os.posix_fallocate(descriptor, 0, max(free - self.left, 1))
        os.close(descriptor)


def _on_small_disk(runs: Runs, trial_folder: Path, number: int, left: int) -> Finding:
    """Run on a disk that fills up meanwhile, then free some space and go on."""
    disk, said = trial_folder / "disk", trial_folder / "said.txt"
    disk.mkdir()
    _mount("-t", "tmpfs", "-o", "size=160m", "torture", str(disk))
    try:
        disturb = AtChange(disk / "out", number, _Fill(disk, left))
        code = runs.finish(runs.start(disk / "out", said, disturb))
        (disk / "filler").unlink(missing_ok=True)
        return runs.compare(disk / "out", [said], [code])
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=False)  # noqa: S603, S607


def _mount(*options: str) -> None:
    subprocess.run(["mount", *options], check=True, capture_output=True)  # noqa: S603, S607


def _can_mount(trial_folder: Path) -> bool:
    trial_folder.mkdir()
    try:
        _mount("-t", "tmpfs", "-o", "size=64k", "torture", str(trial_folder))
    except (OSError, subprocess.CalledProcessError):
        return False
    subprocess.run(["umount", "--lazy", str(trial_folder)], check=False)  # noqa: S603, S607
    return True


def prepare_folders(folder: Path) -> Trial:
    """Return a trial of two runs in one folder, or of a folder that may not be written to."""
    runs = Runs(folder)

    def trial(rng: random.Random, trial_folder: Path) -> Finding:
        output = trial_folder / "out"
        if rng.random() < 0.3:
            return _read_only(runs, trial_folder)
        said = [trial_folder / "first.txt", trial_folder / "second.txt"]
        first = runs.start(output, said[0])
        time.sleep(rng.uniform(0, runs.seconds))
        second = runs.start(output, said[1])
        codes = [runs.finish(first), runs.finish(second)]
        if 0 not in codes:
            return Finding(kind="lost", words=f"neither run ended well: {codes}")
        return runs.compare(output, said, codes)

    return trial


def _read_only(runs: Runs, trial_folder: Path) -> Finding:
    trial_folder.parent.chmod(0o755)
    output, said = trial_folder / "out", trial_folder / "said.txt"
    output.mkdir(mode=0o555)
    code = runs.finish(runs.start(output, said, _become_nobody))
    text = said.read_text()
    if code != 2 or "Traceback" in text or list(output.iterdir()):
        return Finding(kind="traceback", words=f"code {code}: {text}")
    shutil.rmtree(output)
    return Finding(refused=True)


KILLS = Attack("kills", "killed runs", prepare_kills, share=2.0, longest=300, grows=False)
DISKS = Attack("disks", "full disks", prepare_full_disks, longest=300, grows=False)
FOLDERS = Attack("folders", "shared folders", prepare_folders, share=0.5, longest=300, grows=False)
