"""Commands that write several files at once, killed or without disk space while they replace these.

A folder has the files of one question already, and the same command asks another one. Whenever it
is disturbed, all files must be of one question: of the first, or of the second. A full disk leaves
a whole set, and the same command then gives the second one.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from lab.torture.attack import Attack, Finding, Trial
from lab.torture.interruptions import AtChange, kill_self, refuse_space
from lab.torture.patient import SETTINGS, patient_case, write_patient
from lab.torture.sequences import FolderError, run_apart
from perturb_mpm.cli import main
from perturb_mpm.run import run_case

_CHANGES = 14  # of the disk, about as many as the longest command makes


def prepare_sets(folder: Path) -> Trial:
    """Ask each command both questions undisturbed; a trial disturbs the second of one."""
    write_patient(folder)
    for seed in (1, 2):
        settings = SETTINGS.changed(seed=seed)
        run_case(patient_case(folder), settings, folder / f"run{seed}", title=f"run {seed}")
    at_change = AtChange()
    at_change()
    questions = {name: [ask(folder, n) for n in (1, 2)] for name, ask in COMMANDS.items()}
    known: dict[str, list[dict[str, bytes]]] = {}
    for name, asked in questions.items():
        known[name] = []
        for number, arguments in enumerate(asked):
            output = folder / f"{name}{number}"
            code = run_apart(Command(arguments, output), folder / "said.txt")
            known[name].append(_read_set(output))
            if code or not known[name][-1]:
                raise RuntimeError(f"{name}: {(folder / 'said.txt').read_text()}")

    def trial(rng: random.Random, trial_folder: Path) -> Finding:
        name = rng.choice(list(COMMANDS))
        output, said = trial_folder / "out", trial_folder / "said.txt"
        shutil.copytree(folder / f"{name}0", output)
        command = Command(questions[name][1], output)
        full = rng.random() < 0.5
        at_change.arm(output, rng.randrange(1, _CHANGES), refuse_space if full else kill_self)
        try:
            code = run_apart(command, said)
            at_change.disarm()
            words = _find_mixture(output, known[name], whole=full)
            if words:
                return Finding(kind="mixed", words=f"{name} ended with {code}: {words}")
            if run_apart(command, said) or _read_set(output) != known[name][1]:
                return Finding(kind="lost", words=f"{name} cannot be repeated after {code}")
        except FolderError as error:
            return Finding(kind=error.kind, words=f"{name}: {error}")
        finally:
            at_change.disarm()
        return Finding(refused=code > 0)

    return trial


def _find_mixture(output: Path, known: list[dict[str, bytes]], *, whole: bool) -> str:
    """Say which files are of neither set or of both; nothing where all are of one."""
    found = _read_set(output)
    if whole:
        return "" if found in known else f"no whole set: {sorted(found)}"
    if any(found.items() <= each.items() for each in known):
        return ""
    return f"files of two sets, or of none: {sorted(found)}"


def _read_set(output: Path) -> dict[str, bytes]:
    """Return the bytes of the files that are not hidden."""
    return {path.name: path.read_bytes() for path in output.glob("[!.]*") if path.is_file()}


class Command:
    """A command line and where it writes to; it says one line at most."""

    def __init__(self, arguments: list[str], output: Path) -> None:
        self.arguments = [*arguments, "--quiet", "--output", str(output)]
        self.said = output.with_name("stderr.txt")

    def __call__(self) -> None:
        """Run in this process, which ends with the command's code."""
        with self.said.open("w") as file:
            os.dup2(file.fileno(), 2)
            sys.stderr = os.fdopen(2, "w", closefd=False)
            try:
                main(self.arguments)
                code = 0
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else 1
            sys.stderr.flush()
        text = self.said.read_text(encoding="utf-8")
        if "Traceback" in text or text.count("\n") > 1:
            raise RuntimeError(text)
        os._exit(code)


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
}

SETS = Attack("sets", "replaced sets of files", prepare_sets, longest=120, grows=False)
