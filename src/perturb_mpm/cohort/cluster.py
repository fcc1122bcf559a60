"""Cases on the workers of Dask: of this machine, or of a scheduler that runs somewhere.

A task is one case. The worker reads its files from the file system that all share, and what comes
back is a few figures. A worker that dies loses some seconds: Dask gives its case to another one,
which goes on from the state in the case's folder.
"""

from __future__ import annotations

import logging
import os
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version as installed
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perturb_mpm.checks import ExpectedError
from perturb_mpm.cohort.cases import CohortCase
from perturb_mpm.cohort.one_case import CaseReading, Record, failed_record, run_one
from perturb_mpm.engines import resolve_budget
from perturb_mpm.optional import optional_package
from perturb_mpm.run import RunSettings
from perturb_mpm.version import version

if TYPE_CHECKING:
    from distributed import Client

_SECONDS_TO_CONNECT = 30
_DEATHS = 10  # of workers under one case before it counts as failed
_SECONDS_LOCKED = 3600  # that a worker waits for one that was given up and still writes
_OWN_PORT = "127.0.0.1:0"  # any that is free, and for this machine alone
_PACKAGES = ("numpy", "numba", "scipy", "nibabel")


class ClusterError(ExpectedError):
    """Workers cannot be had, or are not like this program."""


@contextmanager
def local_workers(count: int) -> Iterator[Client]:
    """Start workers on this machine, a process each, and stop them at the end."""
    distributed = _distributed()
    _quiet()
    with (
        distributed.LocalCluster(
            n_workers=count,
            threads_per_worker=1,
            processes=True,
            memory_limit=0,  # each case plans its own memory
            dashboard_address=_OWN_PORT,
            worker_dashboard_address=_OWN_PORT,
            host="127.0.0.1",
            silence_logs=logging.CRITICAL,
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


@contextmanager
def connected(address: str) -> Iterator[Client]:
    """Connect to a running scheduler; its workers must have the versions of this program."""
    distributed = _distributed()
    _quiet()
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


def on_workers(
    client: Client,
    cases: Sequence[CohortCase],
    settings: RunSettings,
    reading: CaseReading,
    folder: Path,
    request: Mapping[str, Any],
) -> Iterator[Record]:
    """Run the cases on workers; yield the record of each as it ends, its picture left out."""
    distributed = _distributed()
    if not cases:
        return
    check_versions(client)
    if settings.compute.engine == "auto":
        settings = settings.changed(engine="cpu")  # one engine for all, whoever takes a case
    resources = {"GPU": 1} if settings.compute.engine == "gpu" else None
    by_key = {f"perturb-mpm-{case.name}-{os.urandom(4).hex()}": case for case in cases}
    out = folder.resolve()
    reading = replace(
        reading, model=_absolute(reading.model), dataset_json=_absolute(reading.dataset_json)
    )
    futures = [
        client.submit(
            run_on_worker,
            _resolved(case),
            settings,
            reading,
            out,
            request,
            worker_versions(),
            key=key,
            pure=False,
            resources=resources,
        )
        for key, case in by_key.items()
    ]
    ended = distributed.as_completed(futures, raise_errors=False)
    del futures
    try:
        for future in ended:
            case = by_key[future.key]
            if future.status == "finished":
                yield future.result()
            elif future.status == "error":
                error = future.exception()
                if isinstance(error, ClusterError):
                    raise error
                words = _why(error)
                yield failed_record(case, folder, words, request, "a worker of Dask")
            else:
                raise ConnectionError(
                    "Dask's scheduler was lost: the same again goes on where it stopped"
                )
            future.release()
    finally:
        left = list(ended.futures)
        if left and client.status == "running":
            client.cancel(left, force=True)


def run_on_worker(
    case: CohortCase,
    settings: RunSettings,
    reading: CaseReading,
    folder: Path,
    request: Mapping[str, Any],
    versions: Mapping[str, str],
) -> Record:
    """Run one case in a worker; wait where one that was given up still writes to its folder."""
    from distributed import get_worker

    worker = get_worker()
    name = f"{worker.name} {worker.address}"
    _require_same(worker.address, worker_versions(), versions)  # it may have come late
    until = time.monotonic() + _SECONDS_LOCKED
    while True:
        record = run_one(case, settings, reading, folder, request=request, worker=name)
        busy = record["error"] is not None and "must not be in use" in record["error"]
        if not busy or time.monotonic() > until:
            return {key: value for key, value in record.items() if key != "picture"}
        time.sleep(1)


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
    try:
        found: dict[str, dict[str, str]] = client.run(worker_versions)
    except (ImportError, AttributeError) as error:
        raise ClusterError(
            f"`scheduler` must have workers with perturb-mpm {version()}, got one without: {error}"
        ) from error
    return found


def _resolved(case: CohortCase) -> CohortCase:
    """Return a case whose paths hold in any working folder."""
    return replace(
        case,
        images=tuple(path.resolve() for path in case.images),
        probabilities=tuple(path.resolve() for path in case.probabilities),
        mask=_absolute(case.mask),
        truth=_absolute(case.truth),
    )


def _absolute(path: Path | None) -> Path | None:
    return None if path is None else path.resolve()


def _why(error: BaseException) -> str:
    """Return in words why Dask gave a case up."""
    if type(error).__name__ == "KilledWorker":
        return "worker after worker died while it had this case: perhaps too little memory"
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _distributed() -> Any:  # noqa: ANN401 - a module
    try:
        found = optional_package("distributed", "more than one worker")
    except ImportError as error:
        raise ClusterError(str(error)) from error
    import dask

    dask.config.set({"distributed.scheduler.allowed-failures": _DEATHS})
    return found


def _quiet() -> None:
    """Keep Dask's own words about workers that come and go out of the terminal."""
    for name in ("distributed", "distributed.nanny", "distributed.worker", "distributed.scheduler"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
