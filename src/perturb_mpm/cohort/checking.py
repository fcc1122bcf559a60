"""A cohort before any work: each case is read, and what it will take is estimated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from perturb_mpm.cohort.one_case import CaseReading, is_finished, read_record, request_of
from perturb_mpm.engines import resolve_budget
from perturb_mpm.files import Case, CaseFiles
from perturb_mpm.run import RunSettings
from perturb_mpm.storage import DAMAGE, error_text

_BASE = 400 * 10**6  # bytes: the interpreter with everything loaded
_BATCH = 32  # samples that are solved at once where the memory allows it
_OF_VALUE, _OF_CORNER = 2, 28  # bytes: half precision; a voxel's corner of the lattice


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
    out, how = Path(folder), reading or CaseReading()
    request = request_of(settings, how)
    pace = _seconds_a_voxel(cases, out)
    for case in cases:
        finished = is_finished(case, request, out)
        try:
            found = how.read(case)
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
    build = voxels * (12 * features + _OF_CORNER * (features + 1)) + 8 * voxels * labels
    batch = min(settings.compute.batch or _BATCH, settings.sampling.samples)
    others = labels - 1
    # Of each voxel energies, marginals and a row of the lattice, of which there may be as many.
    each = voxels * (others * (2 * _OF_VALUE + 4 + _OF_VALUE) + 1)
    engine = min(build + batch * each, resolve_budget(settings.compute.memory))
    return _BASE + arrays + engine


def _seconds_a_voxel(cases: Sequence[CaseFiles], folder: Path) -> float | None:
    """Return how long a voxel took in the cases that are done, None where none is."""
    found = (read_record(folder, case.name) for case in cases)
    done = [each for each in found if each is not None and each.get("status") == "done"]
    voxels = sum(each["mask_voxels"] for each in done)
    return sum(each["seconds"] for each in done) / voxels if voxels else None
