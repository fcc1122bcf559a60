"""Cases on the workers of Dask: of this machine, or of a scheduler that runs somewhere.

A task is one case. The worker reads its files from the file system that all share, and what comes
back is a few figures. A worker that dies loses some seconds: Dask gives its case to another one,
which goes on from the state in the case's folder.

A case may be split: one task begins it, others draw a range of its samples each and leave them in
its folder, and the last puts them together. Samples are functions of their numbers, votes are whole
numbers: the result is the same, and what a lost task did not draw, the last one draws.
"""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.metadata import version as installed
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from perturb_mpm.checks import ExpectedError
from perturb_mpm.cohort.one_case import (
    CaseReading,
    Record,
    Work,
    begin_one,
    draw_one,
    failed_record,
    run_one,
)
from perturb_mpm.engines import resolve_budget
from perturb_mpm.files import CaseFiles
from perturb_mpm.optional import optional_package
from perturb_mpm.run import RunSettings
from perturb_mpm.version import version

if TYPE_CHECKING:
    from distributed import Client, Future, Worker

Item = TypeVar("Item")
Result = TypeVar("Result")

_LOST = "Dask's scheduler was lost: the same again goes on where it stopped"
_SECONDS_TO_CONNECT = 30
_DEATHS = 10  # of workers under one case before it counts as failed
_SECONDS_LOCKED = 3600  # that a worker waits for one that was given up and still writes
_OWN_PORT = "127.0.0.1:0"  # any that is free, and for this machine alone
# Freed memory stays with the worker. Dask's own default gives every array back to the system at
# once: seven times the page faults, and those of two processes wait for each other.
_ALLOCATION = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**30)}
_PACKAGES = ("numpy", "numba", "scipy", "nibabel")


class ClusterError(ExpectedError):
    """Workers cannot be had, or are not like this program."""


@contextmanager
def local_workers(count: int, engine: str = "auto") -> Iterator[Client]:
    """Start workers on this machine, a process each, and stop them at the end."""
    distributed = dask_distributed()
    with (
        distributed.LocalCluster(
            n_workers=count,
            threads_per_worker=1,
            processes=True,
            memory_limit=0,  # each case plans its own memory
            dashboard_address=_OWN_PORT,
            worker_dashboard_address=_OWN_PORT,
            host="127.0.0.1",
            resources=_resources(engine),
            env=_ALLOCATION,
            silence_logs=logging.CRITICAL,
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


@contextmanager
def connected(address: str) -> Iterator[Client]:
    """Connect to a running scheduler; its workers must have the versions of this program."""
    distributed = dask_distributed()
    try:
        client = distributed.Client(address, timeout=_SECONDS_TO_CONNECT)
    except (OSError, ValueError, TimeoutError) as error:
        words = " ".join(str(error).split())
        raise ClusterError(
            f"`scheduler` must be the address of a running Dask scheduler, got {address}: {words}"
        ) from error
    with client:
        yield client


def shared_out(settings: RunSettings, workers: int) -> RunSettings:
    """Return settings with which so many cases at once take no more than this machine has.

    Threads and memory change no result.
    """
    compute = settings.compute
    threads = compute.threads or max(1, _cores() // workers)
    memory = compute.memory
    if memory is None:
        memory = max(1, resolve_budget(None) // workers)
    return settings.changed(threads=threads, memory=memory)


def each_on_workers(
    client: Client, function: Callable[[Item], Result], items: Sequence[Item]
) -> list[Result]:
    """Return what a function gives for each item, in their order; the first error is raised."""
    check_versions(client)
    found: list[Result] = client.gather(client.map(function, items, pure=False))
    return found


def on_workers(
    client: Client,
    cases: Sequence[CaseFiles],
    settings: RunSettings,
    reading: CaseReading,
    folder: Path,
    request: Mapping[str, Any],
    split: int = 1,
) -> Iterator[Record]:
    """Run the cases on workers; yield the record of each as it ends, its picture left out."""
    distributed = dask_distributed()
    if not cases:
        return
    check_versions(client)
    if settings.compute.engine == "auto":
        settings = settings.changed(engine="cpu")  # one engine for all, whoever takes a case
    check_resources(client, settings.compute.engine)
    reading = replace(
        reading, model=_absolute(reading.model), dataset_json=_absolute(reading.dataset_json)
    )
    job = _Job(settings, reading, folder.resolve(), dict(request), worker_versions(), split)
    # The largest first: then no worker is left with a long one at the end.
    ordered = sorted(cases, key=_bytes_of, reverse=True)
    by_key = {f"perturb-mpm-{case.name}-{os.urandom(4).hex()}": case for case in ordered}
    futures = [job.submit(client, case.resolve(), key) for key, case in by_key.items()]
    ended = distributed.as_completed(futures, raise_errors=False)
    del futures
    try:
        for future in ended:
            case = by_key[future.key]
            with _scheduler_needed():
                if future.status not in ("finished", "error"):
                    raise CancelledError(case.name)
                error = future.exception()
                record = None if error else future.result()
            if isinstance(error, ClusterError):
                raise error
            if record is None:
                words = _why(error)
                record = failed_record(case, folder, words, request, "a worker of Dask")
            yield record
            future.release()
    finally:
        left = list(ended.futures)
        if left and client.status == "running":
            with suppress(OSError):  # it may be lost just now
                client.cancel(left, force=True)


@dataclass(frozen=True)
class _Job:
    """What all cases of a cohort have in common; its methods are what workers are asked to do."""

    settings: RunSettings
    reading: CaseReading
    folder: Path
    request: Mapping[str, Any]
    versions: Mapping[str, str]
    split: int

    def submit(self, client: Client, case: CaseFiles, key: str) -> Future:
        """Give a case to the workers; the future is that of its record."""
        resources = _resources(self.settings.compute.engine)
        if self.split == 1:
            return client.submit(self.run, case, [], key=key, pure=False, resources=resources)
        begun = client.submit(self.begin, case, key=f"begin-{key}", pure=False, resources=resources)
        parts = [
            client.submit(
                *(self.draw, case, begun, place),
                key=f"draw-{place}-{key}",
                pure=False,
                resources=resources,
            )
            for place in range(self.split)
        ]
        return client.submit(self.run, case, parts, key=key, pure=False, resources=resources)

    def run(self, case: CaseFiles, parts: Sequence[Work]) -> Record:
        """Run one case; wait where a worker that was given up still writes to its folder."""
        record = run_one(
            *(case, self.settings, self.reading, self.folder),
            request=self.request,
            worker=self._worker(),
            before=parts,
            wait_s=_SECONDS_LOCKED,
        )
        return {key: value for key, value in record.items() if key != "picture"}

    def begin(self, case: CaseFiles) -> int | None:
        """Begin a case that is split; return how many samples it holds, None where it cannot."""
        self._worker()
        return begin_one(case, self.settings, self.reading, self.folder)

    def draw(self, case: CaseFiles, held: int | None, place: int) -> Work:
        """Draw one of as many ranges as a case is split into."""
        self._worker()
        samples = self.settings.sampling.samples
        if held is None or held >= samples:
            return Work()
        ends = [held + (samples - held) * each // self.split for each in (place, place + 1)]
        return draw_one(case, self.settings, self.reading, self.folder, range(*ends))

    def _worker(self) -> str:
        """Return the name of the worker that this runs in; refuse one of other versions."""
        from distributed import get_worker

        worker = get_worker()
        _require_same(worker.address, worker_versions(), self.versions)  # it may have come late
        return f"{worker.name} {worker.address}"


def check_resources(client: Client, engine: str) -> None:
    """Refuse workers of which none has a GPU where the engine wants one: cases would wait."""
    if _resources(engine) is None:
        return
    offered = _asked_of_workers(client, _offered)
    if offered and not any(each.get("GPU") for each in offered.values()):
        raise ClusterError(
            '`engine` "gpu" must have a Dask worker that offers the resource GPU=1, got '
            f"{len(offered)} without"
        )


def _offered(dask_worker: Worker) -> dict[str, float]:
    """Return the resources of the worker that this runs in."""
    return dict(dask_worker.state.total_resources)


def _resources(engine: str) -> dict[str, float] | None:
    """Return what a task of the engine takes of a worker, one GPU or nothing."""
    return {"GPU": 1} if engine == "gpu" else None


def worker_versions() -> dict[str, str]:
    """Return the versions that results depend on, of the process that this runs in."""
    return {
        "perturb-mpm": version(),
        "python": platform.python_version(),
        **{name: installed(name) for name in _PACKAGES},
    }


def check_versions(client: Client) -> None:
    """Refuse workers whose versions are not those of this program, by name."""
    here = worker_versions()
    for address, there in sorted(_versions_of_workers(client).items()):
        _require_same(address, there, here)


def _require_same(address: str, there: Mapping[str, str], here: Mapping[str, str]) -> None:
    differ = [name for name in here if there.get(name) != here[name]]
    if differ:
        wanted = ", ".join(f"{name} {here[name]}" for name in differ)
        found = ", ".join(f"{name} {there.get(name)}" for name in differ)
        raise ClusterError(
            f"`scheduler` must have workers with {wanted} as here, got {address} with {found}: "
            "install the same on every machine"
        )


def _versions_of_workers(client: Client) -> dict[str, dict[str, str]]:
    found = _asked_of_workers(client, worker_versions)
    for address, versions in found.items():
        if isinstance(versions, Exception):
            raise ClusterError(
                f"`scheduler` must have workers with perturb-mpm {version()}, got {address} "
                f"without: {versions}"
            )
    return found


def _asked_of_workers(client: Client, question: Callable[..., Any]) -> dict[str, Any]:
    """Return what each worker answers, or its error; one that dies meanwhile is left out."""
    with _scheduler_needed():
        found: dict[str, Any] = client.run(question, on_error="return")
    return {name: answer for name, answer in found.items() if not isinstance(answer, OSError)}


@contextmanager
def _scheduler_needed() -> Iterator[None]:
    """Say that the scheduler was lost where it does not answer, whenever that happens."""
    try:
        yield
    except (OSError, CancelledError) as error:
        raise ConnectionError(_LOST) from error


def _bytes_of(case: CaseFiles) -> int:
    """Return how much there is to read of a case; a file that is missing counts as nothing."""
    return sum(path.stat().st_size for path in case.paths if path.is_file())


def _absolute(path: Path | None) -> Path | None:
    return None if path is None else path.resolve()


def _why(error: BaseException) -> str:
    """Return in words why Dask gave a case up."""
    if type(error).__name__ == "KilledWorker":
        return "worker after worker died while it had this case: perhaps too little memory"
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def dask_distributed() -> Any:  # noqa: ANN401 - a module
    """Return the package distributed, set up for cohorts; ``ClusterError`` where there is none."""
    try:
        found = optional_package("distributed", "more than one worker")
    except ImportError as error:
        raise ClusterError(str(error)) from error
    import dask

    dask.config.set({"distributed.scheduler.allowed-failures": _DEATHS})
    _quiet()
    return found


def _quiet() -> None:
    """Keep Dask's own words about workers that come and go out of the terminal."""
    known = [name for name in logging.root.manager.loggerDict if name.startswith("distributed.")]
    for name in ("distributed", *known):  # Dask's configuration gives some a level of their own
        logging.getLogger(name).setLevel(logging.CRITICAL)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
