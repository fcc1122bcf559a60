"""A file that says which cluster to start: one of Dask's classes, and its arguments.

    class = "dask_jobqueue.SLURMCluster"
    workers = 100

    [arguments]
    cores = 8
    processes = 1
    memory = "16 GB"

The file names a class of Dask's own packages and gives it plain values. No other code can be named.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perturb_mpm import checks
from perturb_mpm.cohort.cluster import ClusterError, dask_distributed
from perturb_mpm.storage import DAMAGE, error_text, read_toml, read_yaml

if TYPE_CHECKING:
    from distributed import Client

PACKAGES = ("dask", "distributed", "dask_jobqueue", "dask_cuda")
_BY_FUNCTION = ("SSHCluster",)  # makes a cluster, but is no class
_CLASS = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", re.ASCII)
_MOST_WORKERS = 10_000


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
        or name.split(".")[0] not in PACKAGES
    ):
        raise ClusterError(
            f"`cluster` must name a class of {', '.join(PACKAGES)}, as in "
            f"dask_jobqueue.SLURMCluster, got {name!r} in {path}"
        )
    arguments = content.get("arguments", {})
    if not isinstance(arguments, dict) or not _plain(arguments):
        raise ClusterError(
            f"`cluster` must have arguments that are numbers, words, lists and tables, in {path}"
        )
    workers = content.get("workers")
    if workers is not None:
        try:
            name_of = f"`cluster` workers in {path}"
            workers = checks.integer(workers, name_of, minimum=1, maximum=_MOST_WORKERS)
        except (TypeError, ValueError) as error:
            raise ClusterError(str(error)) from error
    return ClusterFile(path, str(name), workers, arguments)


@contextmanager
def started_cluster(file: ClusterFile) -> Iterator[Client]:
    """Start the cluster of a file, and stop it at the end; its workers come when they can."""
    distributed = dask_distributed()
    make = _class_of(file)
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


def _class_of(file: ClusterFile) -> Any:  # noqa: ANN401 - a class of Dask
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
    own = getattr(found, "__module__", "").split(".")[0] in PACKAGES
    if isinstance(found, type):
        own = own and issubclass(found, Cluster)
    else:
        own = own and getattr(found, "__name__", "") in _BY_FUNCTION
    if not own:
        raise ClusterError(
            f"`cluster` must name one of Dask's clusters, got {file.class_name} in {file.path}"
        )
    return found


def _plain(value: object) -> bool:
    """Whether a value is made of numbers, words, lists and tables alone."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and _plain(each) for key, each in value.items())
    if isinstance(value, list):
        return all(map(_plain, value))
    return value is None or isinstance(value, str | int | float | bool)
