"""One case of a cohort: how its files are read, whether it is finished, how it is run."""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from perturb_mpm.checks import ExpectedError, visible_text
from perturb_mpm.cohort.records import (
    CaseRecord,
    FileStamp,
    changed_files,
    read_record,
    stamp_file,
    summarise_run,
)
from perturb_mpm.engines import give_back, keep_freed_memory
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
from perturb_mpm.progress import Silent, StagedProgress
from perturb_mpm.run import (
    STATE,
    OutputError,
    Run,
    RunSettings,
    UnusableRunError,
    begin_case,
    draw_part,
    list_files,
    run_case,
)
from perturb_mpm.segmenter import case_from_model
from perturb_mpm.storage import DamagedError, LockedError, error_text, json_ready, read_json
from perturb_mpm.version import version

_LOG = logging.getLogger("perturb_mpm")
_STATUS = Path("/proc/self/status")
_RESET = Path("/proc/self/clear_refs")
# Tells processes apart in records that people share, where no machine is to be named.
_WORKER = secrets.token_hex(4)
_RUN = "run.json"
_NOT_ENDED = "it was begun and has not ended: the same command goes on with it"
_OUT_OF_DATE = "its results are out of date: the same command runs it"


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
    reference: Path | None = None  # says where the voxels of an .npz are

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

    def read(
        self, case: CaseFiles, *, keep_members: bool = False, progress: StagedProgress | None = None
    ) -> Case:
        """Read a case with its truth; ``InputError`` says what is wrong with it."""
        if case.missing is not None:
            raise InputError(case.missing)
        show = progress or Silent()
        show.stage("reading the files")
        found = self._read_without_truth(case, show, keep_members=keep_members)
        if case.truth is None:
            return found
        first = Source("images", case.images[0])
        source = Source("truth", case.truth)
        truth = read_label_map(source, found.labels, found.geometry, first, mask=found.mask)
        return replace(found, truth=truth)

    def _read_without_truth(
        self, case: CaseFiles, show: StagedProgress, *, keep_members: bool
    ) -> Case:
        names = self.image_names or case.image_names
        if self.model is not None:
            images = read_images(case.images, mask=case.mask, image_names=names)
            show.stage("classifying the voxels")
            return case_from_model(self.model, images, self.labels, self.background)
        return read_case(
            case.images,
            case.probabilities,
            kind=self.kind,  # type: ignore[arg-type] # is checked there
            confidence=self.confidence,
            labels=self.labels,
            dataset_json=self.dataset_json,
            reference=self.reference,
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
    return json_ready(
        {
            "version": version(),
            **settings.identity(),
            **reading.describe(),
            "labels": named,
            "image_names": reading.image_names,
            **{name: path and path.resolve() for name, path in paths.items()},
        }
    )


@dataclass(frozen=True)
class Standing:
    """How far a case is: finished, or what is known of the run before."""

    finished: bool = False
    record: CaseRecord | None = None
    inputs: tuple[FileStamp, ...] = ()  # as they are now; none where there is no record
    changed: tuple[str, ...] = ()  # inputs whose content is no longer what was run
    others: tuple[str, ...] = ()  # inputs that lie elsewhere than those that were run, and differ
    damage: str | None = None  # of its record

    def describe(self) -> str | None:
        """Return in words why a case that was done is run again, None where there is no news."""
        if self.damage is not None:
            return self.damage
        if self.changed and self.record is not None and self.record.begun:
            return f"the content of {', '.join(self.changed)} has changed since it was run"
        if self.others and self.record is not None and self.record.begun:
            return f"it was run from other files than {', '.join(self.others)}"
        return None


@dataclass(frozen=True)
class CaseRunner:
    """What all cases of a cohort have in common, and the work on one of them.

    Errors never leave ``run``: they are the record of the case.
    """

    settings: RunSettings
    reading: CaseReading
    folder: Path  # of the cohort
    request: Mapping[str, Any]  # what was asked for

    def inspect(self, case: CaseFiles) -> Standing:
        """Return whether a case is done as asked for, from the same files, with its outputs there.

        Files are known by their content, of which every byte is read: another patient's file may
        have the size and the time of the one before.
        """
        try:
            record = read_record(self.folder, case.name)
        except DamagedError as error:
            return Standing(damage=str(error))
        if record is None:
            return Standing()
        now = self._stamp_inputs(case)
        beside = [stamp_file(Path(stamp.path)) for stamp in record.other_inputs]
        changed = changed_files((*record.inputs, *record.other_inputs), (*now, *beside))
        same = [stamp.path for stamp in now] == [stamp.path for stamp in record.inputs]
        known = {stamp.sha256 for stamp in record.inputs}
        elsewhere = {stamp.path for stamp in now} - {stamp.path for stamp in record.inputs}
        found = [stamp for stamp in now if stamp.path in elsewhere and stamp.sha256 is not None]
        own = self.folder / case.name
        finished = (
            record.outcome is not None
            and record.request == self.request
            and same
            and not changed
            and record.run_sha256 == stamp_file(own / STATE / _RUN).sha256
            and _is_whole(own, record.outcome.files)
        )
        others = tuple(stamp.path for stamp in found if stamp.sha256 not in known)
        return Standing(finished, record, now, changed, others)

    def run(self, case: CaseFiles, before: Sequence[Usage] = (), wait_s: float = 0.0) -> CaseRecord:
        """Run one case, or go on with it, and write its record; errors are in the record.

        ``before`` is what drawing ranges of its samples took, which counts as this case's. For up
        to ``wait_s`` seconds the call waits for another process that writes to the case's folder.
        """
        until = time.monotonic() + wait_s
        _begin_with_little_memory()
        attempt = self._begin_attempt(case)
        while True:
            started = time.monotonic()
            _reset_peak()
            outcome, words, finished = None, None, None
            try:
                with _limit_threads(self.settings.compute.threads):
                    finished = attempt.run_or_replace(run_case, resume=True)
                    outcome = summarise_run(finished, case.truth)
            except LockedError as error:
                if time.monotonic() < until:
                    time.sleep(1)
                    continue
                words = str(error)
            except Exception as error:  # noqa: BLE001 - one case must not stop the others
                words = _describe_error(error)
            usage = (Usage(time.monotonic() - started, _peak_mb()), *before)
            peaks = [each.peak_memory_mb for each in usage if each.peak_memory_mb is not None]
            state = stamp_file(self.folder / case.name / STATE / _RUN)
            record = replace(
                attempt.record,
                error=words,
                other_inputs=() if finished is None else _other_inputs(finished, attempt.record),
                begun=outcome is not None or (attempt.record.begun and state.sha256 is not None),
                run_sha256=None if outcome is None else state.sha256,
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
        _begin_with_little_memory()
        try:
            with _limit_threads(self.settings.compute.threads):
                drawn: int = self._begin_attempt(case).run_or_replace(begin_case)
        except Exception as error:  # noqa: BLE001 - ``run`` meets it again
            _LOG.warning("%s cannot be begun: %s", case.name, _describe_error(error))
            return None
        return drawn

    def draw(self, case: CaseFiles, part: range) -> Usage:
        """Draw a range of the samples of a case that is begun; what fails, ``run`` does again."""
        _begin_with_little_memory()
        started = time.monotonic()
        _reset_peak()
        try:
            with _limit_threads(self.settings.compute.threads):
                draw_part(
                    self.read(case, self._stamp_inputs(case)),
                    self.settings,
                    self.folder / case.name,
                    part,
                    title=case.name,
                    reading=self.reading.describe(),
                )
        except Exception as error:  # noqa: BLE001 - ``run`` draws these itself, or says why not
            _LOG.warning(
                "samples %d to %d of %s are not drawn: %s",
                part.start,
                part.stop - 1,
                case.name,
                _describe_error(error),
            )
        return Usage(time.monotonic() - started, _peak_mb())

    def withdraw(self, case: CaseFiles, standing: Standing) -> bool:
        """Take back the record of results that are not this case's as it is now; say if it was so.

        The inputs stay those of before: that they have changed, ``run`` sees again.
        """
        before = standing.record
        if standing.damage is not None:
            self.record(case, _OUT_OF_DATE).write(self.folder)
            return True
        if before is None or before.outcome is None:
            return False
        replace(before, outcome=None, error=_OUT_OF_DATE).write(self.folder)
        return True

    def record(self, case: CaseFiles, error: str | None, worker: str | None = None) -> CaseRecord:
        """Return a record of a case that says no more than its error, if any.

        What is known of its folder stays known.
        """
        record = CaseRecord(case.name, error, self.request, self._stamp_inputs(case), worker)
        with suppress(DamagedError):
            if (before := read_record(self.folder, case.name)) is not None:
                return replace(record, begun=before.begun, run_anew=before.run_anew)
        return record

    def read(self, case: CaseFiles, before: Sequence[FileStamp] = ()) -> Case:
        """Read a case; refuse files that are no longer those of the stamps."""
        found = self.reading.read(case, keep_members=self.settings.unary.members == "cycle")
        changed = changed_files(before, self._stamp_inputs(case))
        if changed:
            raise InputError(
                f"`images` and what belongs to them must not change while they are read, got "
                f"another content of {', '.join(changed)}: the same command tries it again"
            )
        return found

    def _begin_attempt(self, case: CaseFiles) -> _Attempt:
        """Write a record that says that the case is not done, before anything of it changes."""
        standing, own = self.inspect(case), self.folder / case.name
        before = standing.record
        begun = _is_empty(own)
        if before is not None and before.begun and before.request == self.request:
            state = own / STATE / _RUN
            # A run that somebody else has put here since is not ours to replace.
            is_ours = before.run_sha256 in (None, stamp_file(state).sha256)
            begun = begun or is_ours or _is_damaged(state)
        why = standing.describe()
        if why is None and before is not None and before.outcome is None:
            why = before.run_anew  # which has not ended either
        inputs = standing.inputs or self._stamp_inputs(case)
        record = CaseRecord(
            case.name, _NOT_ENDED, self.request, inputs, _WORKER, begun=begun, run_anew=why
        )
        record.write(self.folder)
        return _Attempt(self, case, record)

    def _stamp_inputs(self, case: CaseFiles) -> tuple[FileStamp, ...]:
        """Return the stamps of every file that a case is read from."""
        archives = [path for path in case.probabilities if path.suffix == ".npz"]
        beside = [each for path in archives for each in prediction_files(path)]
        common = [each for each in (self.reading.dataset_json, self.reading.model) if each]
        paths = dict.fromkeys(each.resolve() for each in (*case.paths, *beside, *common))
        return tuple(stamp_file(path) for path in paths)


@dataclass
class _Attempt:
    """A case that is about to be run, and the record of it so far."""

    runner: CaseRunner
    case: CaseFiles
    record: CaseRecord

    def run_or_replace(self, function: Callable[..., Any], **how: bool) -> Any:  # noqa: ANN401
        """Go on with the run in the folder; where that cannot be and it is ours, begin anew."""
        runner, case = self.runner, self.case
        folder = runner.folder / case.name
        found = runner.read(case, self.record.inputs)
        about = {"title": case.name, "reading": runner.reading.describe()}
        try:
            return function(found, runner.settings, folder, **about, **how)
        except UnusableRunError as error:
            if not self.record.begun:
                raise OutputError(
                    f"`output`: {folder} holds a run that is not of this cohort: {error.reason}; "
                    "move or remove that folder, then the same command runs the case"
                ) from error
            why = self.record.run_anew or error.reason
        _LOG.info("%s is run anew: %s", case.name, why)
        self.record = replace(self.record, run_anew=why, run_sha256=None)
        self.record.write(runner.folder)
        return function(found, runner.settings, folder, **about, overwrite=True)


def _other_inputs(run: Run, record: CaseRecord) -> tuple[FileStamp, ...]:
    """Return the stamps of files that a case was read from and that only its inputs name."""
    known = {stamp.sha256 for stamp in record.inputs}
    folders = dict.fromkeys(Path(stamp.path).parent for stamp in record.inputs)
    names = [name for name, digest in run.case.hashes.items() if digest not in known]
    paths = (folder / name for name in names for folder in folders)
    return tuple(stamp_file(path) for path in paths if path.is_file())


def _is_whole(folder: Path, outputs: Sequence[str]) -> bool:
    """Whether every output is there, and a power cut emptied no file of the run."""
    listed = [folder / name for name in list_files(folder) or () if (folder / name).is_file()]
    present = all((folder / name).is_file() for name in outputs)
    return present and all(path.stat().st_size for path in listed)


def _is_empty(folder: Path) -> bool:
    """Whether a folder has nothing in it but the lock of a run that was refused."""
    return not any(path.is_file() and path.name != "lock" for path in folder.rglob("*"))


def _is_damaged(path: Path) -> bool:
    """Whether a JSON file is there and cannot be read."""
    try:
        return not isinstance(read_json(path), dict)
    except FileNotFoundError:
        return False
    except DamagedError:
        return True


@contextmanager
def _limit_threads(threads: int | None) -> Iterator[None]:
    """Limit the threads of linear algebra to those that a case may use."""
    if threads is None:
        yield
        return
    from threadpoolctl import threadpool_limits

    with threadpool_limits(limits=threads):
        yield


def _begin_with_little_memory() -> None:
    """Keep what a case frees for its own arrays, and not for the next case: a peak is its own."""
    keep_freed_memory()
    give_back()


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
        return visible_text(" ".join(str(error).split()))
    kind = "" if isinstance(error, OSError | MemoryError) else f"{type(error).__name__}: "
    return visible_text(f"{kind}{error_text(error)}")
