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
from lab.torture.costs import COSTS
from lab.torture.headers import HEADERS
from lab.torture.interface import ODD
from lab.torture.interruptions import DISKS, FOLDERS, KILLS
from lab.torture.memory import MEMORY
from lab.torture.readers import READING
from lab.torture.requests import REQUESTS
from lab.torture.sequences import CORRECTIONS, SEQUENCES
from lab.torture.sets import SETS
from perturb_mpm.cli import UsageError
from perturb_mpm.storage import write_json

ATTACKS: dict[str, Attack] = {
    each.name: each
    for each in (
        *(READING, HEADERS, COSTS, ODD, KILLS, DISKS, FOLDERS, SEQUENCES, CORRECTIONS, SETS),
        *(REQUESTS, MEMORY, COHORTS),
    )
}

_COLUMNS = (
    *("trials", "refused", "wrong", "mixed", "lost"),
    *("tracebacks", "crashes", "hangs", "growth"),
)


def torture(
    *,
    seconds: float = 60.0,
    trials: int | None = None,
    seed: int = 1,
    attacks: Annotated[tuple[str, ...], Parameter(name="--attack", consume_multiple=True)] = (),
    output: Path = Path("torture"),
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
        corrections, sets, requests, memory, cohorts; all of them where none is named, and the
        time is enough.
    output
        A folder for the table and for what went wrong.
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
        write_json(kept / "outcome.json", {"seed": seed, "attacks": list(map(asdict, outcomes))})
    (kept / "table.md").write_text(findings_table(outcomes), encoding="utf-8")
    sys.stdout.write("\n" + findings_table(outcomes))
    if any(outcome.faults for outcome in outcomes):
        sys.stdout.write(f"what went wrong is kept in {kept}\n")
        raise SystemExit(1)


def table_line(attack: Attack, outcome: Outcome) -> str:
    """Return an outcome in one line."""
    return (
        f"{attack.name}: {outcome.trials} {attack.trials} in {outcome.seconds:.0f} s, "
        f"{outcome.faults} faults{', ' if outcome.note else ''}{outcome.note}"
    )


def findings_table(outcomes: list[Outcome]) -> str:
    """Return the outcomes as a Markdown table."""
    rows = [["attack", *_COLUMNS, "seconds"], ["---"] * (len(_COLUMNS) + 2)]
    for outcome in outcomes:
        values = {name: getattr(outcome, name) for name in _COLUMNS}
        rows.append([outcome.name, *map(str, values.values()), f"{outcome.seconds:.0f}"])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)
