"""Cases on the workers of Dask: of this machine, or of a scheduler that runs somewhere.

A task is one case. The worker reads its files from the file system that all share, and what comes
back is a few figures. A worker that dies loses some seconds: Dask gives its case to another one,
which goes on from the state in the case's folder.

A case may be split: one task begins it, others draw a range of its samples each and leave them in
its folder, and the last puts them together. Samples are functions of their numbers, votes are whole
numbers: the result is the same, and what a lost task did not draw, the last one draws.

A file may say which cluster to start: one of Dask's classes, and its arguments.

    class = "dask_jobqueue.SLURMCluster"
    workers = 100

    [arguments]
    cores = 8
    processes = 1
    memory = "16 GB"
"""

from __future__ import annotations

import importlib
import logging
import os
import platform
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.metadata import version as installed
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from perturb_mpm import checks
from perturb_mpm.checks import ExpectedError
from perturb_mpm.cohort.one_case import CaseRunner, Usage
from perturb_mpm.cohort.records import CaseRecord
from perturb_mpm.engines import KEEPS_FREED_MEMORY, available_cores, resolve_budget
from perturb_mpm.files import CaseFiles
from perturb_mpm.optional import optional_package
from perturb_mpm.run import RunSettings
from perturb_mpm.storage import DAMAGE, error_text, read_toml, read_yaml
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
CLUSTER_PACKAGES = ("dask", "distributed", "dask_jobqueue", "dask_cuda")
"""The packages whose classes a cluster file may name; no other code can be named."""
_BY_FUNCTION = ("SSHCluster",)  # makes a cluster, but is no class
_CLASS = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", re.ASCII)
_MOST_WORKERS = 10_000
# What a worker's process starts with: its C library reads some of it before any Python runs.
_ENVIRONMENT = "distributed.nanny.pre-spawn-environ"
_VERSIONED = ("numpy", "numba", "scipy", "nibabel")


class ClusterError(ExpectedError):
    """Workers cannot be had, or are not like this program."""


@contextmanager
def local_workers(count: int, engine: str = "auto") -> Iterator[Client]:
    """Start workers on this machine, a process each, and stop them at the end."""
    distributed = dask_distributed()
    import dask

    with (
        dask.config.set({_ENVIRONMENT: {**dask.config.get(_ENVIRONMENT), **KEEPS_FREED_MEMORY}}),
        distributed.LocalCluster(
            n_workers=count,
            threads_per_worker=1,
            processes=True,
            memory_limit=0,  # each case plans its own memory
            dashboard_address=_OWN_PORT,
            worker_dashboard_address=_OWN_PORT,
            host="127.0.0.1",
            resources=_resources(engine),
            silence_logs=logging.CRITICAL,
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


@contextmanager
def connect_scheduler(address: str) -> Iterator[Client]:
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


def share_machine(settings: RunSettings, workers: int) -> RunSettings:
    """Return settings with which so many cases at once take no more than this machine has.

    Threads and memory change no result.
    """
    compute = settings.compute
    threads = compute.threads or max(1, available_cores() // workers)
    memory = compute.memory
    if memory is None:
        memory = max(1, resolve_budget(None) // workers)
    return settings.changed(threads=threads, memory=memory)


def map_on_workers(
    client: Client, function: Callable[[Item], Result], items: Sequence[Item]
) -> list[Result]:
    """Return what a function gives for each item, in their order; the first error is raised."""
    check_versions(client)
    return client.gather(client.map(function, items, pure=False))


def run_on_workers(
    client: Client, runner: CaseRunner, cases: Sequence[CaseFiles], split: int = 1
) -> Iterator[CaseRecord]:
    """Run the cases on workers; yield the record of each as it ends, without its picture."""
    distributed = dask_distributed()
    if not cases:
        return
    check_versions(client)
    settings = runner.settings
    if settings.compute.engine == "auto":
        settings = settings.changed(engine="cpu")  # one engine for all, whoever takes a case
    check_resources(client, settings.compute.engine)
    runner = replace(
        runner, settings=settings, reading=runner.reading.resolve(), folder=runner.folder.resolve()
    )
    tasks = _Tasks(runner, worker_versions(), split)
    # The largest first: then no worker is left with a long one at the end.
    ordered = sorted(cases, key=_count_bytes, reverse=True)
    by_key = {f"perturb-mpm-{case.name}-{os.urandom(4).hex()}": case for case in ordered}
    futures = [tasks.submit(client, case.resolve(), key) for key, case in by_key.items()]
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
                record = runner.record(case, _describe_loss(error))
                record.write(runner.folder)
            yield record
            future.release()
    finally:
        left = list(ended.futures)
        if left and client.status == "running":
            with suppress(OSError):  # it may be lost just now
                client.cancel(left, force=True)


@dataclass(frozen=True)
class _Tasks:
    """What workers are asked to do for the cases of one cohort."""

    runner: CaseRunner
    versions: Mapping[str, str]
    split: int

    def submit(self, client: Client, case: CaseFiles, key: str) -> Future:
        """Give a case to the workers; the future is that of its record."""
        resources = _resources(self.runner.settings.compute.engine)

        def send(task: Callable[..., Any], *arguments: object, key: str) -> Future:
            return client.submit(task, case, *arguments, key=key, pure=False, resources=resources)

        if self.split == 1:
            return send(self.run, [], key=key)
        drawn = send(self.begin, key=f"begin-{key}")
        parts = [
            send(self.draw, drawn, part, key=f"draw-{part}-{key}") for part in range(self.split)
        ]
        return send(self.run, parts, key=key)

    def run(self, case: CaseFiles, parts: Sequence[Usage]) -> CaseRecord:
        """Run one case; wait where a worker that was given up still writes to its folder."""
        self._check_worker()
        return self.runner.run(case, parts, wait_s=_SECONDS_LOCKED).without_picture()

    def begin(self, case: CaseFiles) -> int | None:
        """Begin a case that is split; return how many samples are drawn, None where it fails."""
        self._check_worker()
        return self.runner.begin(case)

    def draw(self, case: CaseFiles, drawn: int | None, part: int) -> Usage:
        """Draw one of as many ranges as a case is split into."""
        self._check_worker()
        samples = self.runner.settings.sampling.samples
        if drawn is None or drawn >= samples:
            return Usage()
        ends = [drawn + (samples - drawn) * each // self.split for each in (part, part + 1)]
        return self.runner.draw(case, range(*ends))

    def _check_worker(self) -> None:
        """Refuse to work in a worker of other versions."""
        from distributed import get_worker

        worker = get_worker()
        _require_same(worker.address, worker_versions(), self.versions)  # it may have come late


def check_resources(client: Client, engine: str) -> None:
    """Refuse workers of which none has a GPU where the engine wants one: cases would wait."""
    if _resources(engine) is None:
        return
    offered = _ask_workers(client, _read_resources)
    if offered and not any(each.get("GPU") for each in offered.values()):
        raise ClusterError(
            '`engine` "gpu" must have a Dask worker that offers the resource GPU=1, got '
            f"{len(offered)} without"
        )


def _read_resources(dask_worker: Worker) -> dict[str, float]:
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
        **{name: installed(name) for name in _VERSIONED},
    }


def check_versions(client: Client) -> None:
    """Refuse workers whose versions are not those of this program, by name."""
    here = worker_versions()
    for address, there in sorted(_ask_workers(client, worker_versions).items()):
        if isinstance(there, Exception):
            raise ClusterError(
                f"`scheduler` must have workers with perturb-mpm {version()}, got {address} "
                f"without: {there}"
            )
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


def _ask_workers(client: Client, question: Callable[..., Any]) -> dict[str, Any]:
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


def _count_bytes(case: CaseFiles) -> int:
    """Return how much there is to read of a case; a file that is missing counts as nothing."""
    return sum(path.stat().st_size for path in case.paths if path.is_file())


def _describe_loss(error: BaseException) -> str:
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


@dataclass(frozen=True)
class ClusterFile:
    """What a file asks for."""

    path: Path
    class_name: str  # as in dask_jobqueue.SLURMCluster
    workers: int | None  # to ask for; None where the arguments say it
    arguments: Mapping[str, Any]


def read_cluster_file(path: Path) -> ClusterFile:
    """Read a TOML or YAML file with class, workers and arguments; start nothing."""
    dask_distributed()
    try:
        content = read_yaml(path) if path.suffix in (".yaml", ".yml") else read_toml(path)
    except (FileNotFoundError, *DAMAGE) as error:
        raise ClusterError(f"`cluster` must be a TOML or YAML file: {error_text(error)}") from error
    if not isinstance(content, dict):
        raise ClusterError(f"`cluster` must have class and arguments, got neither in {path}")
    unknown = sorted(set(map(str, content)) - {"class", "workers", "arguments"})
    if unknown:
        raise ClusterError(
            f"`cluster` must have class, workers and arguments, got {unknown[0]} in {path}"
        )
    name = content.get("class")
    if (
        not isinstance(name, str)
        or not _CLASS.fullmatch(name)
        or name.split(".")[0] not in CLUSTER_PACKAGES
    ):
        raise ClusterError(
            f"`cluster` must name a class of {', '.join(CLUSTER_PACKAGES)}, as in "
            f"dask_jobqueue.SLURMCluster, got {name!r} in {path}"
        )
    arguments = content.get("arguments", {})
    if not isinstance(arguments, dict) or not _is_plain(arguments):
        raise ClusterError(
            f"`cluster` must have arguments that are numbers, words, lists and tables, in {path}"
        )
    workers = content.get("workers")
    if workers is not None:
        try:
            argument = f"`cluster` workers in {path}"
            workers = checks.integer(workers, argument, minimum=1, maximum=_MOST_WORKERS)
        except (TypeError, ValueError) as error:
            raise ClusterError(str(error)) from error
    return ClusterFile(path, str(name), workers, arguments)


@contextmanager
def start_cluster(file: ClusterFile) -> Iterator[Client]:
    """Start the cluster of a file, and stop it at the end; its workers come when they can."""
    distributed = dask_distributed()
    make = _load_class(file)
    try:
        cluster = make(**file.arguments)
    except Exception as error:
        raise ClusterError(
            f"`cluster` must start {file.class_name} as {file.path} says, got "
            f"{type(error).__name__}: {error_text(error)}"
        ) from error
    with cluster:
        if file.workers is not None:
            cluster.scale(file.workers)
        with distributed.Client(cluster) as client:
            yield client


def _load_class(file: ClusterFile) -> Any:  # noqa: ANN401 - a class of Dask
    """Return the class that a file names; it must be one of Dask's clusters."""
    from distributed.deploy.cluster import Cluster

    module, _, name = file.class_name.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ClusterError(
            f"`cluster` must name a class that is installed, got {file.class_name} in "
            f"{file.path}: {error_text(error)}"
        ) from error
    own = getattr(found, "__module__", "").split(".")[0] in CLUSTER_PACKAGES
    if isinstance(found, type):
        own = own and issubclass(found, Cluster)
    else:
        own = own and getattr(found, "__name__", "") in _BY_FUNCTION
    if not own:
        raise ClusterError(
            f"`cluster` must name one of Dask's clusters, got {file.class_name} in {file.path}"
        )
    return found


def _is_plain(value: object) -> bool:
    """Whether a value is made of numbers, words, lists and tables alone."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(each) for key, each in value.items())
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, str | int | float | bool)
