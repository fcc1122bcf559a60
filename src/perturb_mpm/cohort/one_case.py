"""One case of a cohort: whether it is finished, how it is run, and the record that is kept of it.

A record is one small JSON file, written last. It says what was asked for, which files that was
read from, and what came out, the error included: the tables and the page are made of records.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from perturb_mpm.checks import ExpectedError
from perturb_mpm.cohort.cases import RECORDS
from perturb_mpm.files import (
    Case,
    CaseFiles,
    InputError,
    LabelScheme,
    Source,
    read_case,
    read_images,
    read_label_map,
)
from perturb_mpm.run import Run, RunSettings, begin_case, draw_part, run_case, volume_rows
from perturb_mpm.storage import DAMAGE, LockedError, error_text, json_ready, read_json, write_json
from perturb_mpm.version import version

if TYPE_CHECKING:
    from perturb_mpm.progress import StagedProgress

_UNCERTAIN = 2  # of uncertainty.nii.gz
_STATUS = Path("/proc/self/status")
_RESET = Path("/proc/self/clear_refs")
_BESIDE = ("dataset.json", "plans.json")  # what is read with an .npz

Record = dict[str, Any]


@dataclass(frozen=True)
class Work:
    """What some of the work on a case took."""

    seconds: float = 0.0
    peak_memory_mb: int | None = None


@dataclass(frozen=True)
class CaseReading:
    """How the files of every case are read; see ``perturb_mpm.files.read_case``."""

    kind: str = "probabilities"
    confidence: float = 0.9
    labels: LabelScheme | tuple[int, ...] | None = None
    background: int | None = None
    dataset_json: Path | None = None
    image_names: tuple[str, ...] | None = None
    model: Path | None = None
    """Made by ``perturb-mpm train``: gives the probabilities, in place of files."""

    def described(self) -> dict[str, object]:
        """Return what the files themselves do not say, as ``run_case`` keeps it."""
        if self.model is not None:
            return {"kind": "model"}
        confidence = {"confidence": self.confidence} if self.kind == "labels" else {}
        background = {} if self.background is None else {"background": self.background}
        return {"kind": self.kind, **confidence, **background}

    def read(self, case: CaseFiles, *, keep_members: bool = False) -> Case:
        """Read a case with its truth; ``InputError`` says what is wrong with it."""
        if case.missing is not None:
            raise InputError(case.missing)
        found = self._read_without_truth(case, keep_members=keep_members)
        if case.truth is None:
            return found
        first = Source("images", case.images[0])
        source = Source("truth", case.truth)
        truth = read_label_map(source, found.labels, found.geometry, first, mask=found.mask)
        return replace(found, truth=truth)

    def _read_without_truth(self, case: CaseFiles, *, keep_members: bool) -> Case:
        names = case.image_names or self.image_names
        if self.model is not None:
            from perturb_mpm.segmenter import case_from_model

            images = read_images(case.images, mask=case.mask, image_names=names)
            return case_from_model(self.model, images, self.labels, self.background)
        return read_case(
            case.images,
            case.probabilities,
            kind=self.kind,  # type: ignore[arg-type] # is checked there
            confidence=self.confidence,
            labels=self.labels,
            dataset_json=self.dataset_json,
            mask=case.mask,
            image_names=names,
            background=self.background,
            keep_members=keep_members,
        )


def request_of(settings: RunSettings, reading: CaseReading) -> dict[str, Any]:
    """Return what a cohort was asked for, as values that JSON can hold."""
    labels = reading.labels
    named: object = labels
    if isinstance(labels, LabelScheme):
        named = {"values": labels.values, "names": labels.names}
    request: dict[str, Any] = json_ready(
        {
            "version": version(),
            **settings.identity(),
            **reading.described(),
            "labels": named,
            "image_names": reading.image_names,
            "dataset_json": _path_text(reading.dataset_json),
            "model": _path_text(reading.model),
        }
    )
    return request


def record_path(folder: Path, name: str) -> Path:
    """Return where the record of a case lies."""
    return folder / RECORDS / f"{name}.json"


def read_record(folder: Path, name: str) -> Record | None:
    """Return the record of a case, None where there is none or it is damaged."""
    try:
        found = read_json(record_path(folder, name))
    except (FileNotFoundError, *DAMAGE):
        return None
    return found if isinstance(found, dict) and found.get("case") == name else None


def is_finished(case: CaseFiles, request: Mapping[str, Any], folder: Path) -> bool:
    """Whether a case is done as asked for, from the same files, and its outputs are there.

    Files are told by path, size and time of change: where one has changed, the case is read again,
    and its run then compares the SHA-256 of all that it read.
    """
    record = read_record(folder, case.name)
    if record is None or record.get("status") != "done":
        return False
    asked = {"request": json_ready(request), "inputs": _stamps(case)}
    if any(record.get(key) != value for key, value in asked.items()):
        return False
    return all((folder / case.name / file).is_file() for file in record["files"])


def run_one(
    case: CaseFiles,
    settings: RunSettings,
    reading: CaseReading,
    folder: Path,
    *,
    request: Mapping[str, Any],
    worker: str | None = None,
    progress: StagedProgress | None = None,
    before: Sequence[Work] = (),
    wait_s: float = 0.0,
) -> Record:
    """Run one case, or go on with it, and write its record; what goes wrong is in the record.

    ``before`` is what drawing ranges of its samples took, which counts as this case's. For up to
    ``wait_s`` seconds the call waits for another process that is writing to the case's folder.
    """
    until = time.monotonic() + wait_s
    while True:
        try:
            return _run_now(
                case,
                settings,
                reading,
                folder,
                request=request,
                worker=worker,
                progress=progress,
                before=before,
                may_wait=time.monotonic() < until,
            )
        except LockedError:
            time.sleep(1)


def _run_now(
    case: CaseFiles,
    settings: RunSettings,
    reading: CaseReading,
    folder: Path,
    *,
    request: Mapping[str, Any],
    worker: str | None,
    progress: StagedProgress | None,
    before: Sequence[Work],
    may_wait: bool,
) -> Record:
    """Run one case; raise ``LockedError`` only where the caller may wait."""
    started = time.monotonic()
    _reset_peak()
    record: Record = {
        "case": case.name,
        "status": "failed",
        "error": None,
        "request": dict(request),
        "inputs": _stamps(case),
        "worker": worker or f"{socket.gethostname()} {os.getpid()}",
    }
    try:
        with _limited(settings.compute.threads):
            run = run_case(
                reading.read(case, keep_members=settings.unary.members == "cycle"),
                settings,
                folder / case.name,
                title=case.name,
                resume=True,
                reading=reading.described(),
                progress=progress,
            )
            truth = None if case.truth is None else str(case.truth.resolve())
            record |= {"status": "done", "truth": truth, **_outcome(run)}
    except Exception as error:
        if may_wait and isinstance(error, LockedError):
            raise
        record["error"] = _in_words(error)
    took = Work(time.monotonic() - started, _peak_mb())
    record["seconds"] = round(sum(each.seconds for each in (took, *before)), 3)
    peaks = [each.peak_memory_mb for each in (took, *before) if each.peak_memory_mb is not None]
    record["peak_memory_mb"] = max(peaks, default=None)
    record_path(folder, case.name).parent.mkdir(parents=True, exist_ok=True)
    write_json(record_path(folder, case.name), record)
    return record


def begin_one(
    case: CaseFiles, settings: RunSettings, reading: CaseReading, folder: Path
) -> int | None:
    """Begin one case; return how many samples it holds, None where it cannot be begun.

    Why it cannot, ``run_one`` says in its record.
    """
    try:
        with _limited(settings.compute.threads):
            return begin_case(
                reading.read(case, keep_members=settings.unary.members == "cycle"),
                settings,
                folder / case.name,
                title=case.name,
                reading=reading.described(),
            )
    except Exception:  # noqa: BLE001 - it is met again by ``run_one``
        return None


def draw_one(
    case: CaseFiles, settings: RunSettings, reading: CaseReading, folder: Path, part: range
) -> Work:
    """Draw a range of the samples of a case that is begun; what fails is left to ``run_one``."""
    started = time.monotonic()
    _reset_peak()
    with suppress(Exception), _limited(settings.compute.threads):
        draw_part(
            reading.read(case, keep_members=settings.unary.members == "cycle"),
            settings,
            folder / case.name,
            part,
            title=case.name,
            reading=reading.described(),
        )
    return Work(time.monotonic() - started, _peak_mb())


def failed_record(
    case: CaseFiles, folder: Path, error: str, request: Mapping[str, Any], worker: str
) -> Record:
    """Write and return the record of a case that failed where nobody could say so itself."""
    record: Record = {
        "case": case.name,
        "status": "failed",
        "error": error,
        "request": dict(request),
        "inputs": _stamps(case),
        "worker": worker,
        "seconds": None,
        "peak_memory_mb": None,
    }
    write_json(record_path(folder, case.name), record)
    return record


def _outcome(run: Run) -> Record:
    """Return what a finished run comes to."""
    from perturb_mpm.cohort.picture import case_picture

    summary, case, posterior = run.summary, run.case, run.posterior
    first = 1 if case.labels.has_background else 0
    foreground = list(range(first, len(case.labels)))
    return {
        "files": [file.relative_to(run.folder).as_posix() for file in run.files.values()],
        "report": run.files["report"].relative_to(run.folder).as_posix(),
        "samples": posterior.samples,
        "intervals_rest_on": summary["intervals"]["rest_on"],
        "mask_ml": summary["mask"]["volume_ml"],
        "mask_voxels": summary["mask"]["voxels"],
        "mean_entropy_bits": summary["entropy"]["mean_bits"],
        "active_share": posterior.active_share,
        **_expected(run, foreground),
        "rows": [_row(run, row) for row in volume_rows(run) if row.kind != "background"],
        "warnings": summary["warnings"],
        "picture": case_picture(run),
    }


def _row(run: Run, row: Any) -> Record:  # noqa: ANN401 - a VolumeRow, which loads with the report
    """Return volume, interval and doubt of one region or label."""
    members = [run.case.labels.values.index(value) for value in row.values]
    here = np.isin(run.labels, members) & run.case.mask
    found = bool(here.any())
    confidence = run.case.probabilities[:, here].max(axis=0)  # (voxels,)
    return {
        "name": row.name,
        "kind": row.kind,
        "label": ",".join(map(str, row.values)),
        "volume_ml": row.volume_ml,
        "interval_lower_ml": row.interval_ml[0],
        "interval_upper_ml": row.interval_ml[1],
        "mean_entropy_bits": float(run.entropy[here].mean(dtype=np.float64)) if found else None,
        "uncertain_frac": float((run.uncertainty[here] == _UNCERTAIN).mean()) if found else None,
        "network_confidence": float(confidence.mean(dtype=np.float64)) if found else None,
        **_expected(run, members),
        "true_volume_ml": None if run.case.truth is None else row.truth_ml,
    }


def _expected(run: Run, members: Sequence[int]) -> Record:
    """Return the Dice that the marginals expect of a set of labels, and the true one if known."""
    inside = run.case.mask
    here = np.isin(run.labels[inside], members)  # (N,)
    share = run.marginals[list(members)][:, inside].sum(axis=0, dtype=np.float64)  # (N,)
    true = None
    if run.case.truth is not None:
        there = np.isin(run.case.truth[inside], members)
        true = _dice(float((here & there).sum()), float(here.sum()), float(there.sum()))
    return {
        "expected_dice": _dice(float(share[here].sum()), float(here.sum()), float(share.sum())),
        "dice": true,
    }


def _dice(both: float, one: float, other: float) -> float | None:
    return 2 * both / (one + other) if one + other else None


def _stamps(case: CaseFiles) -> list[list[object]]:
    """Return path, size and time of change of every file that a case is read from."""
    archives = [path for path in case.probabilities if path.suffix == ".npz"]
    beside = [path.with_name(name) for path in archives for name in _BESIDE]
    beside += [path.with_suffix(".nii.gz") for path in archives]
    found: list[list[object]] = []
    for path in dict.fromkeys(each.resolve() for each in (*case.paths, *beside)):
        try:
            status = path.stat()
        except OSError:
            found.append([str(path), None, None])
        else:
            found.append([str(path), status.st_size, status.st_mtime_ns])
    return found


@contextmanager
def _limited(threads: int | None) -> Iterator[None]:
    """Keep libraries of linear algebra to as many threads as a case may use."""
    if threads is None:
        yield
        return
    from threadpoolctl import threadpool_limits

    with threadpool_limits(limits=threads):
        yield


def _reset_peak() -> None:
    """Let the system measure the peak from here on, where it can (Linux)."""
    try:
        _RESET.write_text("5")
    except OSError:
        return


def _peak_mb() -> int | None:
    """Return the most memory since ``_reset_peak``, MB, None where the system does not tell."""
    try:
        found = re.search(r"^VmHWM:\s+(\d+) kB", _STATUS.read_text(), re.MULTILINE)
    except OSError:
        found = None
    if found is None:
        return None
    return round(int(found[1]) * 1024 / 1e6)


def _path_text(path: Path | None) -> str | None:
    return None if path is None else str(path.resolve())


def _in_words(error: Exception) -> str:
    """Return what an error says, in one line; one that nobody expected with its kind."""
    if isinstance(error, ExpectedError) or (isinstance(error, MemoryError) and str(error)):
        return " ".join(str(error).split())
    kind = "" if isinstance(error, OSError | MemoryError) else f"{type(error).__name__}: "
    return f"{kind}{error_text(error)}"
