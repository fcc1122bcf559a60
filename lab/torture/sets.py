"""Commands that write several files at once, disturbed while they replace these.

A folder has the files of one question already, and the same command asks another one: it is killed,
finds no disk space, or finds a file that a power cut has emptied. Whenever it is disturbed, all
files must be of one question, of the first or of the second. A full disk leaves a whole set, and
the same command then gives the second one. The sets of a cohort are its tables, and each case.

The cache of compiled kernels is such a set, too: whatever happens to it, a kernel gives what it
gives without a cache, and is compiled once again at most.

A command runs in a copy of this process, which has imported all that the command did before; pages
of cases are one line.
"""

from __future__ import annotations

import csv
import json
import os
import random
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np

from lab.torture.attack import Attack, Finding, Trial
from lab.torture.interruptions import AtChange, kill_self, refuse_space
from lab.torture.patient import (
    AFFINE,
    SAME_BYTES,
    SETTINGS,
    SHAPE,
    patient_case,
    probabilities,
    write_patient,
)
from lab.torture.sequences import FolderError, quick_steps, run_apart
from perturb_mpm.cli import main
from perturb_mpm.files import save_nifti
from perturb_mpm.run import run_case, write_settings

Files = dict[str, bytes]
_CASES = 3  # that are learned from; a cohort has the first two
_NO_TIME = SimpleNamespace(seconds=0.0, peak_memory_mb=None)  # a table says what it took
_LABELS = ("--labels", "0:background", "1:oedema", "2:core")


def _table(folder: Path) -> list[str]:
    return ["--data", str(folder / "cases.csv"), "--layout", "table", *_LABELS]


def _predicted(folder: Path) -> list[str]:
    settings = str(folder / "settings.toml")
    return ["--probabilities", str(folder / "predicted"), "--settings", settings]


COMMANDS: dict[str, Callable[[Path, int], list[str]]] = {
    "evaluate": lambda folder, number: [
        *("evaluate", "--prediction", str(folder / f"run{number}")),
        *("--truth", str(folder / "P.nii.gz")),
    ],
    "change": lambda folder, number: [
        *("change", str(folder / f"run{number}"), str(folder / f"run{3 - number}")),
        *("--measure", "volume"),
    ],
    "measure": lambda folder, number: [
        *("measure", str(folder / f"run{number}"), "--measure", "volume"),
    ],
    "train": lambda folder, number: [
        *("train", *_table(folder), "--sequences", "t1", "--folds", "3", "--trees", "2"),
        *("--threads", "1", "--seed", str(number)),
    ],
    "tune": lambda folder, number: [
        *("tune", *_table(folder), *_predicted(folder), "--folds", "3"),
        *("--samples", str(6 + 2 * number)),
    ],
    "cohort": lambda folder, _: [  # the question is what lies in its folders
        *("cohort", "--images", str(folder / "imagesTs"), *_predicted(folder)),
    ],
}


def prepare_sets(folder: Path) -> Trial:
    """Ask each command both questions undisturbed; a trial disturbs the second of one."""
    write_patient(folder)
    for seed in (1, 2):
        settings = SETTINGS.changed(seed=seed)
        run_case(patient_case(folder), settings, folder / f"run{seed}", title=f"run {seed}")
    write_settings(folder / "settings.toml", SETTINGS, "of an attack")
    at_change = AtChange()
    at_change()
    with quick_steps():
        questions = {name: _ask_both(folder, name, at_change) for name in COMMANDS}

    @quick_steps()
    def trial(rng: random.Random, trial_folder: Path) -> Finding:
        name = rng.choice(list(COMMANDS))
        output = trial_folder / "out"
        shutil.copytree(folder / f"{name}0", output)
        asked, known = questions[name], questions[name].known
        fault = rng.choice(("kill", "full disk", "power cut"))
        if fault == "power cut":
            rng.choice([path for path in output.glob("*.*") if path.is_file()]).write_bytes(b"")
        else:
            do = kill_self if fault == "kill" else refuse_space
            at_change.arm(output, rng.randrange(1, asked.changes + 1), do)
        command = Command(asked.arguments, output)
        try:
            code = run_apart(command, trial_folder / "said.txt")
            at_change.disarm()
            words = _find_mixture(name, output, known, whole=fault == "full disk")
            if words:
                return Finding(kind="mixed", words=f"{name}, {fault}, code {code}: {words}")
            again = run_apart(command, trial_folder / "said.txt")
            found = _read_sets(name, output)
            if again or found != known[1]:
                other = [n for a, b in zip(found, known[1]) for n in a if a[n] != b.get(n)]
                words = f"{name}, {fault}: {code}, repeated {again}, other bytes in {other}"
                return Finding(kind="lost", words=words)
        except FolderError as error:
            return Finding(kind=error.kind, words=f"{name}, {fault}: {error}")
        finally:
            at_change.disarm()
        return Finding(refused=code > 0)

    return trial


@dataclass(frozen=True)
class Question:
    """The second question of a command, both answers, and how often it changes the disk."""

    arguments: list[str]
    known: tuple[list[Files], list[Files]]
    changes: int


def _ask_both(folder: Path, name: str, at_change: AtChange) -> Question:
    known = []
    for number in (0, 1):
        _write_cases(folder, number)
        arguments = COMMANDS[name](folder, number + 1)
        output = folder / f"{name}{number}"
        if number:
            shutil.copytree(folder / f"{name}0", output)
        output.mkdir(exist_ok=True)
        at_change.arm(output, 10_000, kill_self)
        code = run_apart(Command(arguments, output, at_change), folder / "said.txt")
        at_change.disarm()
        _import_all((folder / "modules.txt").read_text(encoding="utf-8").split())
        known.append(_read_sets(name, output))
        if code or not all(known[-1]):
            raise RuntimeError(f"{name}: {(output.parent / 'stderr.txt').read_text()}")
    if known[0] == known[1]:
        raise RuntimeError(f"{name}: both questions have one answer")
    changes = 10_000 - int((folder / "changes.txt").read_text())
    return Question(arguments, (known[0], known[1]), changes)


def _import_all(names: list[str]) -> None:
    for name in names:
        with suppress(ImportError):  # some are known by another name
            import_module(name)


def _write_cases(folder: Path, number: int) -> None:
    """Write labelled cases, other ones under the same names for each number."""
    rows = ["case,labels,t1"]
    for name in ("imagesTs", "predicted"):
        (folder / name).mkdir(exist_ok=True)
    for index in range(_CASES):
        rng = np.random.default_rng([number, index])
        p = probabilities() * rng.uniform(0.3, 3, (3, *SHAPE)).astype(np.float32)
        truth = np.roll(probabilities().argmax(axis=0), index % 2, axis=0)
        image = folder / "imagesTs" / f"C{index}_0000.nii.gz"
        save_nifti(image, (100 + 30 * truth + rng.normal(size=SHAPE)).astype(np.float32), AFFINE)
        save_nifti(folder / f"C{index}.nii.gz", truth.astype(np.uint8), AFFINE)
        maps = np.moveaxis(p / p.sum(axis=0), 0, -1)
        save_nifti(folder / "predicted" / f"C{index}.nii.gz", maps, AFFINE)
        rows.append(f"C{index},C{index}.nii.gz,{image.relative_to(folder)}")
    (folder / "cases.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")


def _find_mixture(
    name: str, output: Path, known: tuple[list[Files], list[Files]], *, whole: bool
) -> str:
    """Say which files are of neither set or of both; nothing where all are of one."""
    found = _read_sets(name, output)
    if name == "cohort":  # a table may say that a case failed
        tables, whole = found.pop(0), False
        if words := _contradiction(tables):
            return words
        known = (known[0][1:], known[1][1:])
    for number, each in enumerate(found):
        may = [answers[number] for answers in known]
        if whole and each not in may:
            return f"no whole set: {sorted(each)}"
        if not any(each.items() <= other.items() for other in may):
            return f"files of two sets, or of none: {sorted(each)}"
    return ""


def _contradiction(tables: Files) -> str:
    """Say whether the tables of a cohort are of two; nothing where they say the same."""
    if len(tables) < 3:
        return ""
    rows = csv.DictReader(tables["cohort.csv"].decode().splitlines())
    listed = {(row["case"], row["status"], row["expected_error_ml"]) for row in rows}
    told = {
        (each["case"], each["status"], str(each.get("expected_error_ml") or ""))
        for each in json.loads(tables["cohort.json"])["records"]
    }
    return "" if listed == told else f"cohort.csv has {listed}, cohort.json {told}"


def _read_sets(name: str, output: Path) -> list[Files]:
    """Return the sets of files of a command, those that are not hidden."""
    every = {path.name: path.read_bytes() for path in output.glob("[!.]*") if path.is_file()}
    if name != "cohort":
        return [every]
    if page := every.get("cohort.json"):
        told = json.loads(page)
        for each in told["records"]:
            each.pop("run_anew")  # why it was run again
        every["cohort.json"] = json.dumps(told).encode()
    cases = sorted(path for path in output.glob("C*") if path.is_dir())
    files = [[case / name for name in SAME_BYTES if (case / name).exists()] for case in cases]
    parts = [{path.name: path.read_bytes() for path in each} for each in files]
    return [every, *parts]


class Command:
    """A command line and where it writes to; it says plain lines, and no more."""

    def __init__(
        self, arguments: list[str], output: Path, at_change: AtChange | None = None
    ) -> None:
        target = output / "model.npz" if arguments[0] == "train" else output
        self.arguments = [*arguments, "--quiet", "--output", str(target)]
        self.said, self.at_change = output.with_name("stderr.txt"), at_change

    def __call__(self) -> None:
        """Run in this process, which ends with the command's code."""
        with self.said.open("w") as file:
            os.dup2(file.fileno(), 2)
            sys.stderr = os.fdopen(2, "w", closefd=False)
            try:
                with (
                    mock.patch("perturb_mpm.cohort.one_case.Usage", return_value=_NO_TIME),
                    mock.patch("perturb_mpm.cohort.one_case._WORKER", "one"),
                ):
                    main(self.arguments)
                code = 0
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else 1
            sys.stderr.flush()
        lines = self.said.read_text(encoding="utf-8").splitlines()
        if not all(line.startswith("perturb-mpm: ") for line in lines):
            raise RuntimeError("\n".join(lines))
        if self.at_change is not None:
            self.said.with_name("changes.txt").write_text(str(self.at_change.left))
            self.said.with_name("modules.txt").write_text("\n".join(sys.modules))
        os._exit(code)


SETS = Attack("sets", "replaced sets of files", prepare_sets, longest=300, grows=False)


def _multiply(a: float, b: float) -> float:
    return a * b


def _call_kernel(folder: Path, number: float, *, is_kept: bool = False) -> None:
    """Compile or load a kernel with its cache in a folder, and compare what it gives."""
    compiling = import_module("perturb_mpm.engines.cpu.compile")
    with mock.patch.object(compiling, "_FOLDER", folder):
        kernel = compiling.kernel(_multiply)
        if kernel(number, number) != number * number:
            raise FolderError("wrong", "a kernel of the cache gives another number")
        if is_kept and not sum(kernel.stats.cache_hits.values()):
            raise FolderError("lost", "the kernel is not kept")


def prepare_caches(folder: Path) -> Trial:
    """Return a trial that disturbs the cache of a kernel of two signatures."""
    for number in (2, 3.0):  # so that the copies of this process need not import the compiler
        _call_kernel(folder, number)
    at_change = AtChange()
    at_change()

    def trial(rng: random.Random, trial_folder: Path) -> Finding:
        cache, said = trial_folder / "cache", trial_folder / "said.txt"
        cache.mkdir()
        numbers = rng.sample((2, 3.0), 2)  # integers, floats
        try:
            for number in numbers:
                if rng.random() < 0.5:
                    do = rng.choice((kill_self, refuse_space))
                    at_change.arm(cache, rng.randrange(1, 6), do)
                run_apart(partial(_call_kernel, cache, number), said)
                at_change.disarm()
                for path in cache.rglob("*.nb?"):
                    if rng.random() < 0.3:
                        path.write_bytes(_cut_power(rng, path.read_bytes()))
            for number in numbers:
                run_apart(partial(_call_kernel, cache, number), said)
                run_apart(partial(_call_kernel, cache, number, is_kept=True), said)
        except FolderError as error:
            return Finding(kind=error.kind, words=str(error))
        finally:
            at_change.disarm()
        return Finding()

    return trial


def _cut_power(rng: random.Random, content: bytes) -> bytes:
    """Return what a power cut may leave of a file: nothing, a part, or some pages."""
    place = rng.randrange(0, len(content) + 1, 512)
    return rng.choice((b"", content[:place], content[:place] + bytes(512) + content[place + 512 :]))


CACHES = Attack("caches", "disturbed caches", prepare_caches, longest=120, grows=False)
