"""One case of a cohort: how its files are read, whether it is finished, how it is run."""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from perturb_mpm.checks import ExpectedError
from perturb_mpm.cohort.records import CaseRecord, FileStamp, read_record, summarise_run
from perturb_mpm.files import (
    Case,
    CaseFiles,
    InputError,
    LabelScheme,
    Source,
    prediction_files,
    read_case,
    read_images,
    read_label_map,
)
from perturb_mpm.run import RunSettings, begin_case, draw_part, run_case
from perturb_mpm.storage import LockedError, error_text, json_ready
from perturb_mpm.version import version

_LOG = logging.getLogger("perturb_mpm")
_STATUS = Path("/proc/self/status")
_RESET = Path("/proc/self/clear_refs")
# Tells processes apart in records that people share, where no machine is to be named.
_WORKER = secrets.token_hex(4)


@dataclass(frozen=True)
class Usage:
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
    npz_axes: str | None = None
    image_names: tuple[str, ...] | None = None
    model: Path | None = None
    """Made by ``perturb-mpm train``: computes the probabilities instead of reading them."""

    def describe(self) -> dict[str, object]:
        """Return what the files themselves do not say, as ``run_case`` stores it."""
        if self.model is not None:
            return {"kind": "model"}
        confidence = {"confidence": self.confidence} if self.kind == "labels" else {}
        given = {"background": self.background, "npz_axes": self.npz_axes}
        stated = {name: value for name, value in given.items() if value is not None}
        return {"kind": self.kind, **confidence, **stated}

    def resolve(self) -> CaseReading:
        """Return the same with absolute paths, which hold in any working folder."""
        return replace(
            self,
            model=self.model and self.model.resolve(),
            dataset_json=self.dataset_json and self.dataset_json.resolve(),
        )

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
            npz_axes=self.npz_axes,  # type: ignore[arg-type] # is checked there
            truth=case.truth,
            mask=case.mask,
            image_names=names,
            background=self.background,
            keep_members=keep_members,
        )


def build_request(settings: RunSettings, reading: CaseReading) -> dict[str, Any]:
    """Return what a cohort is asked for, as values that JSON can hold."""
    labels = reading.labels
    named: object = labels
    if isinstance(labels, LabelScheme):
        named = {"values": labels.values, "names": labels.names}
    paths = {"dataset_json": reading.dataset_json, "model": reading.model}
    request: dict[str, Any] = json_ready(
        {
            "version": version(),
            **settings.identity(),
            **reading.describe(),
            "labels": named,
            "image_names": reading.image_names,
            **{name: path and path.resolve() for name, path in paths.items()},
        }
    )
    return request


@dataclass(frozen=True)
class CaseRunner:
    """What all cases of a cohort have in common, and the work on one of them.

    Errors never leave ``run``: they are the record of the case.
    """

    settings: RunSettings
    reading: CaseReading
    folder: Path  # of the cohort
    request: Mapping[str, Any]  # what was asked for

    def is_finished(self, case: CaseFiles) -> bool:
        """Whether a case is done as asked for, from the same files, and its outputs are there.

        Files are compared by path, size and time of change: where one has changed, the case is
        read again, and its run then compares the SHA-256 of all that it read.
        """
        record = read_record(self.folder, case.name)
        if record is None or record.outcome is None:
            return False
        if record.request != self.request or record.inputs != _stamp_files(case):
            return False
        return all((self.folder / case.name / file).is_file() for file in record.outcome.files)

    def run(
        self,
        case: CaseFiles,
        before: Sequence[Usage] = (),
        wait_s: float = 0.0,
    ) -> CaseRecord:
        """Run one case, or go on with it, and write its record; errors are in the record.

        ``before`` is what drawing ranges of its samples took, which counts as this case's. For up
        to ``wait_s`` seconds the call waits for another process that writes to the case's folder.
        """
        until = time.monotonic() + wait_s
        while True:
            started = time.monotonic()
            _reset_peak()
            outcome, words = None, None
            try:
                with _limit_threads(self.settings.compute.threads):
                    run = run_case(
                        self._read(case),
                        self.settings,
                        self.folder / case.name,
                        title=case.name,
                        resume=True,
                        reading=self.reading.describe(),
                    )
                    outcome = summarise_run(run, case.truth)
            except LockedError as error:
                if time.monotonic() < until:
                    time.sleep(1)
                    continue
                words = str(error)
            except Exception as error:  # noqa: BLE001 - one case must not stop the others
                words = _describe_error(error)
            usage = (Usage(time.monotonic() - started, _peak_mb()), *before)
            peaks = [each.peak_memory_mb for each in usage if each.peak_memory_mb is not None]
            record = replace(
                self.record(case, words, _WORKER),
                outcome=outcome,
                seconds=round(sum(each.seconds for each in usage), 3),
                peak_memory_mb=max(peaks, default=None),
            )
            record.write(self.folder)
            return record

    def begin(self, case: CaseFiles) -> int | None:
        """Begin a case; return how many samples are already drawn, None where it cannot be begun.

        Why it cannot, ``run`` says in its record.
        """
        try:
            with _limit_threads(self.settings.compute.threads):
                return begin_case(
                    self._read(case),
                    self.settings,
                    self.folder / case.name,
                    title=case.name,
                    reading=self.reading.describe(),
                )
        except Exception:  # noqa: BLE001 - ``run`` meets it again
            _LOG.debug("%s cannot be begun", case.name, exc_info=True)
            return None

    def draw(self, case: CaseFiles, part: range) -> Usage:
        """Draw a range of the samples of a case that is begun; what fails, ``run`` does again."""
        started = time.monotonic()
        _reset_peak()
        try:
            with _limit_threads(self.settings.compute.threads):
                draw_part(
                    self._read(case),
                    self.settings,
                    self.folder / case.name,
                    part,
                    title=case.name,
                    reading=self.reading.describe(),
                )
        except Exception:  # noqa: BLE001 - ``run`` draws these itself
            _LOG.debug("samples %s of %s are not drawn", part, case.name, exc_info=True)
        return Usage(time.monotonic() - started, _peak_mb())

    def record(self, case: CaseFiles, error: str | None, worker: str | None = None) -> CaseRecord:
        """Return a record of a case that says no more than its error, if any."""
        return CaseRecord(case.name, error, self.request, _stamp_files(case), worker)

    def _read(self, case: CaseFiles) -> Case:
        return self.reading.read(case, keep_members=self.settings.unary.members == "cycle")


def _stamp_files(case: CaseFiles) -> tuple[FileStamp, ...]:
    """Return the stamps of every file that a case is read from."""
    archives = [path for path in case.probabilities if path.suffix == ".npz"]
    beside = [each for path in archives for each in prediction_files(path)]
    found: list[FileStamp] = []
    for path in dict.fromkeys(each.resolve() for each in (*case.paths, *beside)):
        try:
            status = path.stat()
        except OSError:
            found.append((str(path), None, None))
        else:
            found.append((str(path), status.st_size, status.st_mtime_ns))
    return tuple(found)


@contextmanager
def _limit_threads(threads: int | None) -> Iterator[None]:
    """Limit the threads of linear algebra to those that a case may use."""
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
    return None if found is None else round(int(found[1]) * 1024 / 1e6)


def _describe_error(error: Exception) -> str:
    """Return what an error says, in one line; one that nobody expected with its kind."""
    if isinstance(error, ExpectedError) or (isinstance(error, MemoryError) and str(error)):
        return " ".join(str(error).split())
    kind = "" if isinstance(error, OSError | MemoryError) else f"{type(error).__name__}: "
    return f"{kind}{error_text(error)}"
