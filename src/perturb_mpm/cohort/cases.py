"""Which cases a cohort has: found in folders or a table, chosen by name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

from perturb_mpm.files import CaseFiles, CaseFolders, InputError, find_cases

RECORDS = "cohort"
"""The folder in the output that holds a record of every case; no case may have its name."""
_LONGEST_NAME = 200


def find_cohort(
    folders: CaseFolders, layout: str | None = None, match: Sequence[str] = ()
) -> list[CaseFiles]:
    """Return the cases sorted by name; without a ``layout`` it is recognised by what is there.

    ``match`` are names of cases, or patterns such as BraTS2021_00*; without any, all are taken.

    Examples
    --------
    >>> from pathlib import Path
    >>> from perturb_mpm.cohort import find_cohort
    >>> from perturb_mpm.files import CaseFolders
    >>> cases = find_cohort(CaseFolders(Path("imagesTs"), (Path("predicted"),)))
    >>> [case.name for case in cases]
    ['A', 'B']
    """
    found = find_cases(folders, layout)
    _check_names(found)
    if not match:
        return found
    chosen = [case for case in found if any(fnmatchcase(case.name, each) for each in match)]
    if not chosen:
        raise InputError(
            f"`match` must choose at least one of {len(found)} cases, got {' '.join(match)}; "
            f"the first case is {found[0].name}"
        )
    return chosen


def _check_names(cases: Sequence[CaseFiles]) -> None:
    """Refuse names that cannot be those of folders in the output."""
    seen: set[str] = set()
    for name in (case.name for case in cases):
        if (
            not name.isprintable()
            or name != name.strip()
            or name.startswith(".")
            or re.search(r'[/\\:*?"<>|]', name)
            or not 0 < len(name.encode()) <= _LONGEST_NAME
            or name.split(".")[0].lower() == RECORDS
        ):
            raise InputError(
                "`images` must name cases so that a folder can have their name, without slashes, "
                f'a dot in front or the name "{RECORDS}", got {name!r}'
            )
        if name.lower() in seen:  # some file systems ignore upper and lower case
            raise InputError(f"`images` must hold a case once, got {name} twice")
        seen.add(name.lower())
