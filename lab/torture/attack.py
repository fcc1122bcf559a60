"""How an attack is run: trials in a process of its own, watched for crashes, hangs and growth.

A trial is a function of the seed, the attack's name and its number alone. Whatever goes wrong is
counted, and what caused it is kept.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import random
import re
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.sharedctypes import SynchronizedArray
from pathlib import Path
from unittest import mock

from perturb_mpm.checks import LONGEST_MESSAGE, ExpectedError

GROWTH_LIMIT = 600 << 20  # bytes that one trial may add to what the process has ever held
NOTE = "note.txt"  # in the folder that an attack prepares
FILE_LIMIT_GB = "0.1"  # what a file may become in memory during an attack
_NUMBER, _BEGAN, _DONE, _REFUSED, _COMPUTED = range(5)
_PATIENCE = 12  # times as long by the clock where hardly anything is computed
_SOURCE = re.compile(r"[/\\](perturb_mpm|lab)[/\\]")


@dataclass(frozen=True)
class Finding:
    """How one trial ended: nothing wrong, or a fault of a kind, in words."""

    refused: int = 0  # how often, of what is counted
    kind: str = ""  # "wrong", "mixed", "lost", "traceback" or "growth"; empty where all is well
    words: str = ""


Trial = Callable[[random.Random, Path], Finding]
"""Makes one attempt in a folder of its own."""


@dataclass(frozen=True)
class Attack:
    """One kind of attack."""

    name: str
    trials: str  # what is counted, in words
    prepare: Callable[[Path], Trial]  # makes what all trials need, once
    share: float = 1.0  # of the time
    longest: float = 10.0  # seconds that a trial may compute
    grows: bool = True  # whether memory is watched
    least: float = 0.0  # seconds under which it is not begun: a trial takes as long
    each: int = 1  # how many of what is counted make one trial
    environment: tuple[tuple[str, str], ...] = ()  # variables of its process


@dataclass
class Outcome:
    """What an attack came to."""

    name: str
    trials: int = 0
    refused: int = 0
    wrong: int = 0  # another voxel or number
    mixed: int = 0  # files of two runs, or of two revisions of a correction
    lost: int = 0
    tracebacks: int = 0
    crashes: int = 0
    hangs: int = 0
    growth: int = 0
    seconds: float = 0.0
    kept: list[str] = field(default_factory=list)
    note: str = ""  # what an attack measures beside its faults

    @property
    def faults(self) -> int:
        """Everything that must not happen."""
        files = self.wrong + self.mixed + self.lost
        return files + self.tracebacks + self.crashes + self.hangs + self.growth

    def count(self, kind: str) -> None:
        """Count one fault."""
        name = {"traceback": "tracebacks", "crash": "crashes", "hang": "hangs"}.get(kind, kind)
        setattr(self, name, getattr(self, name) + 1)


def judge(call: Callable[[], object], allowed: tuple[type[Exception], ...] = ()) -> Finding:
    """Call what must either work or raise an expected error in one short line."""
    try:
        call()
    except ExpectedError as error:
        return _short(str(error))
    except allowed as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        if not _SOURCE.search(frame.filename):
            return Finding(refused=True, kind="traceback", words=traceback.format_exc())
        return _short(str(error))
    except Exception:  # noqa: BLE001 - this is what is looked for
        return Finding(refused=True, kind="traceback", words=traceback.format_exc())
    return Finding()


def _short(message: str) -> Finding:
    if len(message) > LONGEST_MESSAGE or "\n" in message or not message:
        words = f"a message of {len(message)} characters: {message}"
        return Finding(refused=True, kind="traceback", words=words)
    return Finding(refused=True)


def run_attack(
    attack: Attack, seconds: float, seed: int, kept: Path, trials: float = math.inf
) -> Outcome:
    """Run an attack for so many seconds or trials; one that crashes or hangs is begun anew."""
    outcome = Outcome(attack.name)
    context = multiprocessing.get_context("spawn")
    shared = context.Array("d", [0.0] * 5)
    began = time.monotonic()
    while (left := began + seconds - time.monotonic()) > 0 and shared[_NUMBER] < trials:
        with tempfile.TemporaryDirectory(prefix="torture-") as folder:
            shared[_BEGAN] = time.monotonic() + 300  # to import, compile and prepare
            process = context.Process(
                target=_work, args=(attack, seed, left, trials, Path(folder), kept, shared)
            )
            with mock.patch.dict(os.environ, attack.environment):
                process.start()
            kind = ""
            while process.is_alive() and not kind:
                process.join(0.2)
                if _hangs(process.pid, shared, attack.longest):
                    kind = "hang"
            if kind:
                process.kill()
                process.join()
            elif process.exitcode != 0:
                kind = "crash"
            if kind:
                number = int(shared[_NUMBER])
                target_folder = kept / attack.name / f"{number}-{kind}"
                shutil.copytree(Path(folder) / "trial", target_folder, dirs_exist_ok=True)
                words = f"seed {seed}, trial {number}, exit code {process.exitcode}\n"
                (target_folder / "what.txt").write_text(words, encoding="utf-8")
                shared[_NUMBER] = number + 1
            process.close()
            if (Path(folder) / NOTE).exists():
                outcome.note = (Path(folder) / NOTE).read_text(encoding="utf-8")
    outcome.trials, outcome.refused = int(shared[_DONE]) * attack.each, int(shared[_REFUSED])
    outcome.seconds = time.monotonic() - began
    for target_folder in sorted((kept / attack.name).glob("*-*")):
        outcome.count(target_folder.name.split("-")[1])
        outcome.kept.append(str(target_folder))
    return outcome


def _hangs(pid: int | None, shared: SynchronizedArray[float], longest: float) -> bool:
    """Whether a trial computes too long, or waits for what does not come.

    Where others use the machine too, a trial takes longer by the clock than it computes.
    """
    waited = time.monotonic() - shared[_BEGAN]
    computed = _compute(pid) - shared[_COMPUTED]
    return waited > longest and (computed > longest or waited > _PATIENCE * longest)


def _compute(pid: int | None) -> float:
    """Return the seconds that a process has computed, infinity where the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return math.inf


def _work(
    attack: Attack,
    seed: int,
    seconds: float,
    trials: float,
    folder: Path,
    kept: Path,
    shared: SynchronizedArray[float],
) -> None:
    """Make trials until the time is over; runs in a process of its own."""
    import warnings

    os.environ["PERTURB_MPM_LARGEST_FILE_GB"] = FILE_LIMIT_GB
    warnings.simplefilter("error")
    end = time.monotonic() + seconds
    (folder / "trial").mkdir()
    trial = attack.prepare(folder)
    held = _peak_bytes()
    while time.monotonic() < end and (number := int(shared[_NUMBER])) < trials:
        shared[_COMPUTED] = time.process_time()
        shared[_BEGAN] = time.monotonic()
        target_folder = folder / "trial"
        finding = attempt(trial, attack.name, seed, number, target_folder)
        if attack.grows and not finding.kind and _peak_bytes() - held > GROWTH_LIMIT:
            finding = Finding(finding.refused, "growth", f"{(_peak_bytes() - held) >> 20} MiB more")
        held = max(held, _peak_bytes())
        if finding.kind:
            keep(finding, kept / attack.name / f"{number}-{finding.kind}", target_folder, seed)
        shared[_REFUSED] += finding.refused
        shared[_DONE] += 1
        shared[_NUMBER] = number + 1
        shutil.rmtree(target_folder)
        target_folder.mkdir()
    shared[_BEGAN] = time.monotonic() + 60  # to end


def attempt(trial: Trial, name: str, seed: int, number: int, target_folder: Path) -> Finding:
    """Make one trial, the same one for the same seed, name and number."""
    return trial(random.Random(f"{seed} {name} {number}"), target_folder)  # noqa: S311 - no secret


def keep(finding: Finding, target_folder: Path, folder: Path, seed: int) -> None:
    """Keep what a trial was given, and what went wrong."""
    shutil.copytree(folder, target_folder, dirs_exist_ok=True)
    (target_folder / "what.txt").write_text(f"seed {seed}\n{finding.words}\n", encoding="utf-8")


def _peak_bytes() -> int:
    """Return the most memory that this process has ever used, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
