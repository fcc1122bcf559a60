"""``make torture``: every attack for a share of the time, and a table of what it came to."""

from __future__ import annotations

import math
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from lab.torture.attack import Attack, Outcome, run_attack
from lab.torture.cohorts import COHORTS
from lab.torture.costs import BAD, COSTS
from lab.torture.headers import HEADERS
from lab.torture.interface import ODD
from lab.torture.interruptions import DISKS, FOLDERS, KILLS
from lab.torture.memory import MEMORY
from lab.torture.readers import READING
from lab.torture.requests import REQUESTS
from lab.torture.sequences import CORRECTIONS, SEQUENCES
from lab.torture.sets import CACHES, SETS
from perturb_mpm.cli import UsageError
from perturb_mpm.storage import read_json, write_json

ATTACKS: dict[str, Attack] = {
    each.name: each
    for each in (
        *(READING, HEADERS, COSTS, ODD, KILLS, DISKS, FOLDERS, SEQUENCES, CORRECTIONS, SETS),
        *(CACHES, REQUESTS, MEMORY, COHORTS),
    )
}

_COLUMNS = (
    *("trials", "refused", "wrong", "mixed", "lost"),
    *("tracebacks", "crashes", "hangs", "growth"),
)


_PAGE = """# Torture

`python -m lab torture --page docs/torture.md` attacks the program and writes this page. Each
attack draws its trials from a seed; what goes wrong is kept with its input. `make torture
SECONDS=600` runs all of them for ten minutes.

{table}
The counts are sums over the versions since this page was first written; a fault that an attack
finds is mended, and its attack counted anew.{notes}

A trial may be refused, in one line of plain words. Everything to the right of that column is a
fault:

- **wrong**: another voxel, position or number than another reader gives, or the definition of the
  format.
- **mixed**: files of two runs, of two revisions of a correction or of two questions in one
  folder.
- **lost**: a file of the user was changed, a saved correction is gone, or a run cannot go on.
- **growth**: more memory than 600 MiB, more than 1,000 bytes left behind by each of many cases, or
  a cost that grows faster than the size of the input.

What the attacks do:

- *readers* damages files of every kind; *headers* draws the documented fields of NIfTI, NRRD,
  MetaImage and MGH headers (not lists of files or pairs of .hdr and .img) and compares voxels and
  positions with SimpleITK and with the definitions; *costs* doubles the size of {kinds} kinds of
  bad files, also those whose voxels lie beside them; *interface* calls the Python interface with
  odd arrays.
- *kills*, *disks* and *folders* kill runs, fill their disks and let two share a folder; the same
  command must then end with the same bytes.
- *sequences* are random steps in one folder: run, overwrite, resume, open one viewer or two,
  edit, undo, update, a tab that has not seen the latest revision, another patient, a file of the
  user, kills, full disks and power cuts. After every step each file is compared with what its run
  and its revision give in a folder of their own.
- *corrections* kills a viewer while it saves, and counts only those that were killed before they
  ended; *sets* kills `evaluate`, `change`, `measure`, `train`, `tune` and `cohort` while they
  replace their files, fills the disk or empties a file as a power cut does; *caches* does so to
  compiled kernels.
- *requests* sends the viewer what no browser sends; *memory* reads, runs and loads a case again
  and again in one process, corrects every tenth, and counts what the allocator has handed out;
  *cohorts* kills workers, scheduler and client.

Where nnU-Net is installed, `pytest tests/files/test_nnunet_itself.py` lets its own exporters write
24 predictions (six readers, four orders of the axes, labels and regions, folds, ensembles, NIfTI,
NRRD, MetaImage, TIFF and PNG) and compares them with its label maps, voxel for voxel.
"""


def torture(
    *,
    seconds: float = 60.0,
    trials: int | None = None,
    seed: int = 1,
    attacks: Annotated[tuple[str, ...], Parameter(name="--attack", consume_multiple=True)] = (),
    output: Path = Path("torture"),
    page: Path | None = None,
) -> None:
    """Attack every reader, the Python interface, the disk and the server for a given time.

    Parameters
    ----------
    seconds
        How long, all attacks together.
    trials
        How many of each attack at most; as many as the time allows by default.
    seed
        Of the attack: the same one makes the same trials.
    attacks
        Which attacks: readers, headers, costs, interface, kills, disks, folders, sequences,
        corrections, sets, caches, requests, memory, cohorts; all of them where none is named,
        and the time is enough.
    output
        A folder for the table and for what went wrong.
    page
        A page to write, with the sums of all attacks whose outcome is in the folder.
    """
    unknown = [name for name in attacks if name not in ATTACKS]
    if unknown:
        raise UsageError(f"--attack must be among {', '.join(ATTACKS)}, got {unknown[0]}")
    chosen = [ATTACKS[name] for name in attacks or ATTACKS]
    whole = sum(each.share for each in chosen)
    kept = output / f"seed-{seed}"
    kept.mkdir(parents=True, exist_ok=True)
    sys.stdout.write(f"seed {seed}\n")
    outcomes = []
    for attack in chosen:
        if seconds * attack.share / whole < attack.least:
            sys.stdout.write(f"{attack.name}: left out, it takes {attack.least:.0f} s or more\n")
            continue
        most = math.inf if trials is None else trials
        outcome = run_attack(attack, seconds * attack.share / whole, seed, kept, most)
        outcomes.append(outcome)
        sys.stdout.write(table_line(attack, outcome) + "\n")
        sys.stdout.flush()
        write_json(kept / f"outcome-{attack.name}.json", asdict(outcome))
    sys.stdout.write("\n" + findings_table(outcomes))
    if page is not None:
        found = read_outcomes(output)
        notes = "".join(f" *{each.name}*: {each.note}." for each in found if each.note)
        text = _PAGE.format(table=findings_table(found), notes=notes, kinds=len(BAD))
        page.write_text(text, encoding="utf-8")
    if any(outcome.faults for outcome in outcomes):
        sys.stdout.write(f"what went wrong is kept in {kept}\n")
        raise SystemExit(1)


def table_line(attack: Attack, outcome: Outcome) -> str:
    """Return an outcome in one line."""
    return (
        f"{attack.name}: {outcome.trials} {attack.trials} in {outcome.seconds:.0f} s, "
        f"{outcome.faults} faults{', ' if outcome.note else ''}{outcome.note}"
    )


def read_outcomes(output: Path) -> list[Outcome]:
    """Return the sum of all outcomes of each attack in a folder, in the attacks' order."""
    found = []
    for name in ATTACKS:
        every = [read_json(path) for path in sorted(output.glob(f"seed-*/outcome-{name}.json"))]
        if every:
            sums = {column: sum(each[column] for each in every) for column in _COLUMNS}
            notes = [each.get("note") for each in every]  # of all trials, or none
            found.append(Outcome(name, **sums, note="; ".join(notes) if all(notes) else ""))
    return found


def findings_table(outcomes: list[Outcome]) -> str:
    """Return the outcomes as a Markdown table."""
    rows = [["attack", "trials of", *_COLUMNS]]
    rows.append(["---", "---", *["--:"] * len(_COLUMNS)])
    for outcome in outcomes:
        values = [f"{getattr(outcome, name):,}" for name in _COLUMNS]
        about = ATTACKS[outcome.name].trials
        rows.append([outcome.name, about, *values])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)
