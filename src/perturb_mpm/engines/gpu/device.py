"""Which device the engine runs on, and how much of its memory is free."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache, wraps
from threading import Thread
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.engines.compute import available_bytes
from perturb_mpm.optional import optional_package

if TYPE_CHECKING:
    import torch

# Below so many voxels a CPU is done before a GPU's kernels are compiled.
WORTH_IT = 100_000
SHARE_OF_FREE = 0.8
LARGE_BYTES = 2**23
"""Arrays from this size on go through pinned memory, which takes a fraction of the time."""
PINNED_BYTES = 2**26
THREADS = 8
IMPATIENT_SECONDS = 1e-4
FULL = (
    "the GPU has no memory left beside what other programs take of it: run fewer at once, or give "
    "each its share as `memory`"
)

P = ParamSpec("P")
R = TypeVar("R")


def is_interpreted() -> bool:
    """Whether Triton's interpreter stands in for a GPU, as in the tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def choose_device() -> torch.device:
    """Return the GPU, or the CPU where Triton's interpreter runs, or say what is missing."""
    torch = optional_package("torch", 'engine "gpu"')
    optional_package("triton", 'engine "gpu"')
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    if is_interpreted():
        return torch.device("cpu")
    raise RuntimeError(
        'engine "gpu" needs an NVIDIA GPU that PyTorch can use, and there is none: '
        'use engine="cpu", or "auto" to take what there is'
    )


def is_worth_it(voxels: int) -> bool:
    """Whether there is a GPU and a problem of this size is solved sooner on it.

    PyTorch takes seconds to import: it is asked last.
    """
    if voxels < WORTH_IT or not _has_driver():
        return False
    if any(importlib.util.find_spec(name) is None for name in ("torch", "triton")):
        return False
    import torch

    return torch.cuda.is_available()


@cache
def load_ahead() -> None:
    """Import PyTorch and the solver on a thread: it takes seconds in which others can compute.

    A first small kernel opens the device, its driver and its assembler there too. What is missing
    is said where the engine is prepared.
    """

    def load() -> None:
        # Threads that read images hold the interpreter for 5 ms at a time; importing asks for it
        # again after every file.
        usual = sys.getswitchinterval()
        sys.setswitchinterval(IMPATIENT_SECONDS)
        try:
            with suppress(ImportError, RuntimeError):
                importlib.import_module("perturb_mpm.engines.gpu.solver")
                _open(choose_device())
        finally:
            sys.setswitchinterval(usual)

    if _has_driver():
        Thread(target=load, name="perturb-mpm-load", daemon=True).start()


def _open(device: torch.device) -> None:
    """Find the first of some sorted keys, which takes every part of the engine that loads late."""
    import torch

    from perturb_mpm.engines.gpu.lattice import missing_neighbours

    missing_neighbours(*(torch.zeros(1, dtype=torch.int64, device=device) for _ in range(2)))


def free_bytes(device: torch.device) -> int:
    """Return how much memory of the device may be used where no budget is given."""
    import torch

    if device.type != "cuda":
        return int(SHARE_OF_FREE * available_bytes())
    free, _ = torch.cuda.mem_get_info(device)
    in_use = torch.cuda.memory_stats_as_nested_dict(device)  # each number alone takes as long
    reserved, allocated = (
        in_use[f"{kind}_bytes"]["all"]["current"] for kind in ("reserved", "allocated")
    )
    return int(SHARE_OF_FREE * (free + reserved - allocated))


def give_back(budget: int, device: torch.device) -> None:
    """Return freed memory to the device where the budget is tight, so that it is not in pieces."""
    import torch

    if device.type != "cuda":
        return
    if budget < torch.cuda.get_device_properties(device).total_memory // 2:
        torch.cuda.empty_cache()


def on_device(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    """Return a copy of an array on the device."""
    import torch

    native = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
    with warnings.catch_warnings():
        # PyTorch warns of read-only arrays; this one is only read.
        warnings.simplefilter("ignore", UserWarning)
        here = torch.from_numpy(native)
    if device.type != "cuda" or here.nbytes < LARGE_BYTES:
        return here.to(device, copy=True)
    there = torch.empty(here.shape, dtype=here.dtype, device=device)
    source, target = (each.view(-1).view(torch.uint8) for each in (here, there))
    for first in range(0, len(source), PINNED_BYTES):
        part, wanted = (each[first : first + PINNED_BYTES] for each in (source, target))
        pinned = torch.empty(part.shape, dtype=part.dtype, pin_memory=True)
        for share in _copy(part.numpy(), pinned.numpy()):
            wanted[share].copy_(pinned[share], non_blocking=True)
    return there


def on_host(values: torch.Tensor) -> NDArray[Any]:
    """Return a copy of values on the device."""
    import torch

    if values.device.type != "cuda" or values.nbytes < LARGE_BYTES:
        return values.cpu().numpy()
    here = torch.empty(values.shape, dtype=values.dtype)
    source, target = (each.view(-1).view(torch.uint8) for each in (values.contiguous(), here))
    for first in range(0, len(source), PINNED_BYTES):
        part, wanted = (each[first : first + PINNED_BYTES] for each in (source, target))
        pinned = torch.empty(part.shape, dtype=part.dtype, pin_memory=True).copy_(part)
        for _ in _copy(pinned.numpy(), wanted.numpy()):
            pass
    return here.numpy()


def _copy(source: NDArray[np.uint8], target: NDArray[np.uint8]) -> Iterator[slice]:
    """Copy bytes on several threads, and say which part has been copied.

    One thread takes several times as long, to touch new memory above all. PyTorch's own threads
    wait for each other, and so for whatever else runs on the machine.
    """
    size = -(-len(source) // THREADS)
    shares = [slice(first, first + size) for first in range(0, len(source), size)]

    def copy_share(share: slice) -> slice:
        np.copyto(target[share], source[share])
        return share

    return threads().map(copy_share, shares)


@cache
def threads() -> ThreadPoolExecutor:
    """Return the threads that move arrays, which stay for the next ones."""
    return ThreadPoolExecutor(THREADS, "perturb-mpm-gpu")


def says_when_full(work: Callable[P, R]) -> Callable[P, R]:
    """Let ``work`` raise MemoryError, as on other engines, where the device has no memory left."""

    @wraps(work)
    def known(*arguments: P.args, **options: P.kwargs) -> R:
        try:
            return work(*arguments, **options)
        except RuntimeError as error:
            import torch  # which may be missing, as ``choose_device`` says

            if not isinstance(error, torch.OutOfMemoryError):
                raise
            raise MemoryError(FULL) from error

    return known


def in_current_stream(work: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    """Return work for another thread that queues where this one does, on the same device."""
    import torch

    if device.type != "cuda":
        return work
    stream = torch.cuda.current_stream(device)  # each thread has its own

    def there(*arguments: object) -> Any:
        with torch.cuda.stream(stream):
            return work(*arguments)

    return there


def _has_driver() -> bool:
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True
