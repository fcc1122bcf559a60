"""Many cases, one after the other or on workers; stopped at any moment, it goes on from there.

out/CASE/           what ``run_case`` writes
out/cohort/         request.json: what was asked for; CASE.json: the record of a case; lock
out/cohort.csv, cohort.json, cohort.html
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perturb_mpm import checks
from perturb_mpm.cohort.cases import RECORDS
from perturb_mpm.cohort.one_case import (
    CaseReading,
    Record,
    is_finished,
    read_record,
    request_of,
    run_one,
)
from perturb_mpm.cohort.tables import ranked, write_cohort_csv, write_cohort_json
from perturb_mpm.files import CaseFiles
from perturb_mpm.progress import Silent, StagedProgress
from perturb_mpm.run import OutputError, RunSettings, SettingsError
from perturb_mpm.storage import DAMAGE, error_text, lock_file, read_json, write_json

if TYPE_CHECKING:
    from distributed import Client

_REQUEST = "request.json"
_MOST_PARTS = 256
_MOST_NAMED = 3


@dataclass(frozen=True)
class CohortResult:
    """What became of a cohort.

    Examples
    --------
    >>> from pathlib import Path
    >>> from perturb_mpm.cohort import find_cohort, run_cohort
    >>> from perturb_mpm.files import CaseFolders
    >>> cases = find_cohort(CaseFolders(Path("imagesTs"), (Path("predicted"),)))
    >>> sorted(run_cohort(cases, pm.RunSettings().changed(samples=4), "cohort-2").files)
    ['csv', 'html', 'json']
    """

    folder: Path
    cases: int
    skipped: int  # that were finished before
    failed: dict[str, str]  # case -> error
    files: dict[str, Path]  # cohort.csv, cohort.json, cohort.html by their ending


def run_cohort(
    cases: Sequence[CaseFiles],
    settings: RunSettings,
    folder: str | Path,
    client: Client | None = None,
    *,
    reading: CaseReading | None = None,
    split: int = 1,
    progress: StagedProgress | None = None,
    finished: Callable[[Record], object] | None = None,
) -> CohortResult:
    """Run every case into a folder of its own, then write the cohort's tables and its page.

    The same call again skips cases that are done, goes on with those that were begun, and tries
    those that failed once more. A case that fails never stops the others.

    Parameters
    ----------
    cases
        The files of each case, as ``find_cohort`` returns them.
    settings
        The parameters of every case.
    folder
        Where to write; a folder of another cohort is refused where parameters differ.
    client
        A ``distributed.Client`` whose workers take the cases; without one they are run here, one
        after the other.
    reading
        How the files are read.
    split
        Over how many workers the samples of each case are spread; changes no result.
    progress
        Shows how many cases are done; a case that fails is a warning.
    finished
        Is called with the record of every case that ends.

    Examples
    --------
    >>> from pathlib import Path
    >>> from perturb_mpm.cohort import find_cohort, run_cohort
    >>> from perturb_mpm.files import CaseFolders
    >>> cases = find_cohort(CaseFolders(Path("imagesTs"), (Path("predicted"),)))
    >>> result = run_cohort(cases, pm.RunSettings().changed(samples=4), "cohort")
    >>> result.cases, result.failed
    (2, {})
    """
    out, show, how = Path(folder), progress or Silent(), reading or CaseReading()
    request = request_of(settings, how)
    _check_split(split, settings, client)
    with _cohort_folder(out, request):
        left = [case for case in cases if not is_finished(case, request, out)]
        skipped = len(cases) - len(left)
        if skipped:
            show.stage(f"{skipped} of {len(cases)} cases are done already")
        show.stage(f"running {len(left)} cases" + (" on workers" if client else ""))
        if client is None:
            records = _one_by_one(left, settings, how, out, request)
        else:
            from perturb_mpm.cohort.cluster import on_workers

            records = on_workers(client, left, settings, how, out, request, split)
        for count, record in enumerate(records, start=1):
            if record["status"] != "done":
                show.warn(f"{record['case']} failed: {record['error']}")
            if finished is not None:
                finished(record)
            show(count, len(left))
        show.stage("writing the tables and the page")
        return _write_all(out, cases, request, skipped)


def _check_split(split: int, settings: RunSettings, client: Client | None) -> None:
    """Refuse a split that cannot be."""
    try:
        checks.integer(split, "`split`", minimum=1, maximum=_MOST_PARTS)
    except (TypeError, ValueError) as error:
        raise SettingsError(str(error)) from error
    if split > 1 and client is None:
        raise SettingsError(f"`split` must be 1 where there are no workers, got {split}")
    if split > 1 and settings.sampling.until is not None:
        raise SettingsError(f"`split` must be 1 where `until` ends a case, got {split}")


def _one_by_one(
    cases: Sequence[CaseFiles],
    settings: RunSettings,
    reading: CaseReading,
    folder: Path,
    request: Mapping[str, Any],
) -> Iterator[Record]:
    for case in cases:
        yield run_one(case, settings, reading, folder, request=request)


def _write_all(
    folder: Path, cases: Sequence[CaseFiles], request: Mapping[str, Any], skipped: int
) -> CohortResult:
    """Write tables and page of the cases; the error of each that failed is returned."""
    from perturb_mpm.cohort.page import write_cohort_page

    found = (read_record(folder, case.name) for case in cases)
    records = ranked(record for record in found if record is not None)
    files = {ending: folder / f"cohort.{ending}" for ending in ("csv", "json", "html")}
    write_cohort_csv(files["csv"], records)
    write_cohort_json(files["json"], records, request)
    write_cohort_page(files["html"], records)
    failed = {each["case"]: each["error"] for each in records if each["status"] != "done"}
    return CohortResult(folder, len(cases), skipped, failed, files)


@contextmanager
def _cohort_folder(folder: Path, request: Mapping[str, Any]) -> Iterator[None]:
    """Take the folder for this cohort alone: locked, and of the same request if it was begun."""
    state = folder / RECORDS
    try:
        state.mkdir(parents=True, exist_ok=True)
        lock = (state / "lock").open("ab")
    except OSError as error:
        raise OutputError(
            f"`output` must be a folder you may write to, got {folder}: {error_text(error)}"
        ) from error
    with lock:
        lock_file(
            lock, f"`output` must not be in use, got {folder}, where another cohort is being run"
        )
        _check_same(state / _REQUEST, folder, request)
        yield


def _check_same(path: Path, folder: Path, request: Mapping[str, Any]) -> None:
    """Refuse the folder of a cohort that was asked for something else."""
    try:
        before = read_json(path)
    except FileNotFoundError:
        write_json(path, request)
        return
    except DAMAGE as error:
        raise OutputError(
            f"`output` holds a damaged {path}: {error_text(error)}; "
            "remove it or name another folder"
        ) from error
    known = before if isinstance(before, dict) else {}
    changed = [
        f"{key} was {_short(known.get(key))}, is {_short(value)}"
        for key, value in request.items()
        if known.get(key) != value
    ]
    if changed:
        more = f"; and {len(changed) - _MOST_NAMED} more" if len(changed) > _MOST_NAMED else ""
        raise OutputError(
            f"`output` must be a new folder or one of the same parameters, got {folder}, where "
            f"{'; '.join(changed[:_MOST_NAMED])}{more}; name another folder"
        )


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else text[:37] + "..."
