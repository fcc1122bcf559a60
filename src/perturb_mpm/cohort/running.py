"""Find, check and run the cases of a cohort; stopped at any moment, it goes on from there.

out/CASE/           what ``run_case`` writes
out/cohort/         request.json: what was asked for; CASE.json: the record of a case; lock
out/cohort.csv, cohort.json, cohort.html

An array of jobs runs parts of a cohort into one folder, each job its own cases; ``gather_cohort``
then writes the tables and the page of all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from perturb_mpm import checks
from perturb_mpm.checks import in_short
from perturb_mpm.cohort.cluster import run_on_workers
from perturb_mpm.cohort.one_case import CaseReading, CaseRunner, build_request
from perturb_mpm.cohort.records import RECORDS, TABLES, CaseRecord, read_record
from perturb_mpm.cohort.results import write_results
from perturb_mpm.engines import resolve_budget
from perturb_mpm.files import Case, CaseFiles, CaseFolders, InputError, find_cases
from perturb_mpm.progress import Silent, StagedProgress
from perturb_mpm.run import OutputError, RunSettings, SettingsError
from perturb_mpm.storage import (
    DAMAGE,
    DamagedError,
    error_text,
    fold_name,
    open_lock,
    read_json,
    write_json,
)

if TYPE_CHECKING:
    from distributed import Client

_Item = TypeVar("_Item")

MOST_PARTS = 256
"""Into how many ranges the samples of one case may be split."""
MOST_JOBS = 100_000
"""Into how many parts a cohort may be cut."""
_REQUEST = "request.json"
_NOT_RUN = "it was not run"
_HASHING_THREADS = 4
_MOST_NAMED = 3
_LONGEST_NAME = 200  # bytes
_BASE = 400 * 10**6  # bytes: the interpreter with everything loaded
_BATCH = 32  # samples that are solved at once where the memory allows it
_VALUE_BYTES, _CORNER_BYTES = 2, 28  # half precision; a voxel's corner of the lattice


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
    check_names(found)
    if not match:
        return found
    chosen = [case for case in found if any(fnmatchcase(case.name, each) for each in match)]
    if not chosen:
        raise InputError(
            f"`match` must choose at least one of {len(found)} cases, got {' '.join(match)}; "
            f"the first case is {found[0].name}"
        )
    return chosen


def check_names(cases: Sequence[CaseFiles]) -> None:
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
        folded = fold_name(name)
        if folded in seen:
            raise InputError(f"`images` must hold a case once, got {name} twice")
        seen.add(folded)


@dataclass(frozen=True)
class CohortPart:
    """One of ``count`` parts of a cohort: every ``count``-th case, by name.

    Examples
    --------
    >>> from perturb_mpm.cohort import CohortPart
    >>> CohortPart.from_text("2/3").choose(["A", "B", "C", "D", "E"])
    ['B', 'E']
    """

    number: int  # from 1
    count: int
    name: str | None = None  # of a part that was chosen otherwise

    @property
    def lock(self) -> str:
        """The name of the file that only one process of this part may lock."""
        return f"part-{self.name or f'{self.number}-of-{self.count}'}.lock"

    @classmethod
    def from_text(cls, text: str) -> CohortPart:
        """Return the part that "3/40" means."""
        found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text, re.ASCII)
        number, count = (int(found[1]), int(found[2])) if found else (0, 0)
        if not 1 <= number <= count <= MOST_JOBS:
            raise SettingsError(
                "`part` must be a number and how many parts there are, as in 3/40, at most "
                f"{MOST_JOBS}, got {text}"
            )
        return cls(number, count)

    def choose(self, cases: Sequence[_Item]) -> list[_Item]:
        """Return the cases of this part."""
        return list(cases[self.number - 1 :: self.count])


@dataclass(frozen=True)
class CaseCheck:
    """What is known of a case before it is run."""

    case: str
    finished: bool
    error: str | None = None
    shape: tuple[int, int, int] | None = None
    voxels: int | None = None  # inside the mask
    labels: int | None = None
    memory_bytes: int | None = None  # expected peak
    seconds: float | None = None  # expected, from cases that are done


def check_cohort(
    cases: Sequence[CaseFiles],
    settings: RunSettings,
    folder: str | Path,
    reading: CaseReading | None = None,
) -> Iterator[CaseCheck]:
    """Read every case in turn and yield what it takes, or why it cannot be read; write nothing.

    Examples
    --------
    >>> from pathlib import Path
    >>> from perturb_mpm.cohort import check_cohort, find_cohort
    >>> from perturb_mpm.files import CaseFolders
    >>> cases = find_cohort(CaseFolders(Path("imagesTs"), (Path("predicted"),)))
    >>> [check.error for check in check_cohort(cases, pm.RunSettings(), "out")]
    [None, None]
    """
    runner = _make_runner(settings, folder, reading)
    pace = _seconds_a_voxel(cases, runner.folder)
    for case in cases:
        finished = runner.inspect(case).finished
        try:
            found = runner.reading.read(case)
        except DAMAGE as error:
            yield CaseCheck(case.name, finished, error_text(error))
            continue
        voxels = int(found.mask.sum())
        yield CaseCheck(
            case.name,
            finished,
            shape=found.geometry.shape,
            voxels=voxels,
            labels=len(found.labels),
            memory_bytes=expected_memory(found, settings),
            seconds=None if pace is None else pace * voxels,
        )


def expected_memory(case: Case, settings: RunSettings) -> int:
    """Return about how much memory a case takes at most, bytes; ``memory`` limits the engine."""
    whole = case.mask.size
    voxels, labels = int(case.mask.sum()), len(case.labels)
    arrays = 4 * whole * (2 * len(case.images) + 3 * labels + 4)
    features = 3 + len(case.images)
    build = voxels * (12 * features + _CORNER_BYTES * (features + 1)) + 8 * voxels * labels
    batch = min(settings.compute.batch or _BATCH, settings.sampling.samples)
    others = labels - 1
    # Of each voxel energies, marginals and a row of the lattice, of which there may be as many.
    each = voxels * (others * (2 * _VALUE_BYTES + 4 + _VALUE_BYTES) + 1)
    engine = min(build + batch * each, resolve_budget(settings.compute.memory))
    return _BASE + arrays + engine


def _seconds_a_voxel(cases: Sequence[CaseFiles], folder: Path) -> float | None:
    """Return how long a voxel took in the cases that are done, None where none is."""
    records: list[CaseRecord | None] = []
    for case in cases:
        with suppress(DamagedError):
            records.append(read_record(folder, case.name))
    done = [
        (each.seconds or 0.0, each.outcome.mask_voxels) for each in records if each and each.outcome
    ]
    voxels = sum(count for _, count in done)
    return sum(seconds for seconds, _ in done) / voxels if voxels else None


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
    files: dict[str, Path]  # cohort.csv, cohort.json, cohort.html by their ending; none of a part


def run_cohort(
    cases: Sequence[CaseFiles],
    settings: RunSettings,
    folder: str | Path,
    client: Client | None = None,
    *,
    reading: CaseReading | None = None,
    split: int = 1,
    part: CohortPart | None = None,
    progress: StagedProgress | None = None,
    finished: Callable[[CaseRecord], object] | None = None,
) -> CohortResult:
    """Run every case into a folder of its own, then write the cohort's tables and its page.

    The same call again skips cases that are done, goes on with those that were begun, and tries
    those that failed once more. Every input is hashed: where its content has changed, the case is
    run anew. A case that fails never stops the others.

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
    part
        The part of the cases to run, while other processes run the others into the same folder;
        ``gather_cohort`` then writes the tables and the page.
    progress
        Shows how many cases are done; a case that fails is a warning.
    finished
        Called with each finished case's record.

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
    show, runner = progress or Silent(), _make_runner(settings, folder, reading)
    _check_split(split, settings, client)
    with _cohort_folder(runner.folder, runner.request, part):
        cases = cases if part is None else part.choose(cases)
        left = _find_unfinished(runner, cases, show, in_part=part is not None)
        skipped = len(cases) - len(left)
        if skipped:
            show.stage(f"{skipped} of {len(cases)} cases are done already")
        show.stage(f"running {len(left)} cases" + (" on workers" if client else ""))
        each = run_on_workers(client, runner, left, split) if client else map(runner.run, left)
        for count, record in enumerate(each, start=1):
            if record.outcome is None:
                show.warn(f"{record.case} failed: {record.error}")
            if finished is not None:
                finished(record)
            show(count, len(left))
        if part is None:
            show.stage("writing the tables and the page")
        return _conclude(runner, cases, skipped, with_tables=part is None)


def gather_cohort(
    cases: Sequence[CaseFiles],
    settings: RunSettings,
    folder: str | Path,
    *,
    reading: CaseReading | None = None,
    progress: StagedProgress | None = None,
) -> CohortResult:
    """Write the tables and the page of cases that were run in parts; run none.

    A case that no part has run, or whose inputs have changed since, counts as failed.

    Examples
    --------
    >>> from pathlib import Path
    >>> from perturb_mpm.cohort import CohortPart, find_cohort, gather_cohort, run_cohort
    >>> from perturb_mpm.files import CaseFolders
    >>> cases = find_cohort(CaseFolders(Path("imagesTs"), (Path("predicted"),)))
    >>> settings = pm.RunSettings().changed(samples=4)
    >>> run_cohort(cases, settings, "in-parts", part=CohortPart(1, 2)).cases
    1
    >>> gather_cohort(cases, settings, "in-parts").failed
    {'B': 'it was not run'}
    """
    show, runner = progress or Silent(), _make_runner(settings, folder, reading)
    with _cohort_folder(runner.folder, runner.request):
        left = _find_unfinished(runner, cases, show)
        show.stage("writing the tables and the page")
        return _conclude(runner, cases, len(cases) - len(left))


def gather_records(names: Sequence[str], folder: Path) -> tuple[CohortResult, list[CaseRecord]]:
    """Write the tables and the page of the cases whose names are given, as their records say.

    Inputs are not compared. Return the records too; one that was never run counts as failed.
    """
    path = folder / RECORDS / _REQUEST
    try:
        request = read_json(path)
    except (*DAMAGE, FileNotFoundError) as error:
        raise InputError(
            f"`output` must be a folder in which cases were run, got {folder}: {error_text(error)}"
        ) from error
    with _cohort_folder(folder, request):
        return _gather(names, folder, request)


def _gather(
    names: Sequence[str],
    folder: Path,
    request: Mapping[str, Any],
    skipped: int = 0,
    *,
    with_tables: bool = True,
) -> tuple[CohortResult, list[CaseRecord]]:
    """Return what became of some cases, and their records; one that was never run has failed."""
    records = [
        read_record(folder, name) or CaseRecord(name, _NOT_RUN, request, (), None) for name in names
    ]
    files = write_results(folder, records, request) if with_tables else {}
    failed = {each.case: each.error or "" for each in records if each.outcome is None}
    return CohortResult(folder, len(names), skipped, dict(sorted(failed.items())), files), records


def _find_unfinished(
    runner: CaseRunner, cases: Sequence[CaseFiles], show: StagedProgress, *, in_part: bool = False
) -> list[CaseFiles]:
    """Return the cases that are not done; results of other inputs leave the tables at once.

    A part of a cohort cannot write tables: it removes those that are out of date.
    """
    if any((runner.folder / RECORDS / f"{case.name}.json").exists() for case in cases):
        show.stage(f"comparing the inputs of {len(cases)} cases with those that were run")
    with ThreadPoolExecutor(_HASHING_THREADS) as pool:  # hashing and reading release Python's lock
        standings = list(pool.map(runner.inspect, cases))
    left: list[CaseFiles] = []
    withdrawn = 0
    for case, standing in zip(cases, standings):
        if standing.finished:
            continue
        left.append(case)
        withdrawn += runner.withdraw(case, standing)
        if (why := standing.describe()) is not None:
            show.warn(f"{case.name} is run anew: {why}")
    if withdrawn and in_part:
        for name in TABLES.values():
            (runner.folder / name).unlink(missing_ok=True)
    elif withdrawn:
        _conclude(runner, cases, len(cases) - len(left))
    return left


def _make_runner(
    settings: RunSettings, folder: str | Path, reading: CaseReading | None
) -> CaseRunner:
    how = reading or CaseReading()
    return CaseRunner(settings, how, Path(folder), build_request(settings, how))


def _check_split(split: int, settings: RunSettings, client: Client | None) -> None:
    """Refuse a split that cannot be."""
    try:
        checks.integer(split, "`split`", minimum=1, maximum=MOST_PARTS)
    except (TypeError, ValueError) as error:
        raise SettingsError(str(error)) from error
    if split > 1 and client is None:
        raise SettingsError(f"`split` must be 1 where there are no workers, got {split}")
    if split > 1 and settings.sampling.until is not None:
        raise SettingsError(f"`split` must be 1 where `until` ends a case, got {split}")


def _conclude(
    runner: CaseRunner, cases: Sequence[CaseFiles], skipped: int, *, with_tables: bool = True
) -> CohortResult:
    """Return what became of the cases, after writing their tables and page."""
    names = [case.name for case in cases]
    return _gather(names, runner.folder, runner.request, skipped, with_tables=with_tables)[0]


@contextmanager
def _cohort_folder(
    folder: Path, request: Mapping[str, Any], part: CohortPart | None = None
) -> Iterator[None]:
    """Lock the folder, which must be new or of the same request; parts share it."""
    state = folder / RECORDS
    in_use = f"`output` must not be in use, got {folder}, where another cohort"
    with ExitStack() as locks:
        try:
            lock = state / "lock"
            whole = open_lock(lock, f"{in_use} or part is being run", shared=part is not None)
            locks.enter_context(whole)
            if part is not None:
                own = open_lock(state / part.lock, f"{in_use} runs this part")
                locks.enter_context(own)
        except OSError as error:
            raise OutputError(
                f"`output` must be a folder you may write to, got {folder}: {error_text(error)}"
            ) from error
        _check_same(state / _REQUEST, folder, request)
        yield


def _check_same(path: Path, folder: Path, request: Mapping[str, Any]) -> None:
    """Refuse the folder of a cohort that was asked for something else."""
    try:
        known = read_json(path)
        if not isinstance(known, dict):
            raise TypeError("it does not say what was asked for")
    except FileNotFoundError:
        write_json(path, request)
        return
    except DAMAGE as error:
        raise OutputError(
            f"`output` holds a damaged {path}: {error_text(error)}; "
            "remove it or name another folder"
        ) from error
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
    return in_short(json.dumps(value, ensure_ascii=False), 40)
