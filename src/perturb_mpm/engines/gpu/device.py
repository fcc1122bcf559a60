"""Which device the engine runs on, and how much of its memory is free."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.engines.memory import available_bytes
from perturb_mpm.optional import optional_package

if TYPE_CHECKING:
    import torch


# Below so many voxels a CPU is done before a GPU's kernels are compiled.
WORTH_IT = 100_000
SHARE_OF_FREE = 0.8
PIECE_BYTES = 2**22
"""Large arrays go to the device in pieces of this size."""


def interpreted() -> bool:
    """Whether Triton's interpreter stands in for a GPU, as in the tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def choose_device() -> torch.device:
    """Return the GPU, or the CPU where Triton's interpreter runs, or say what is missing."""
    torch = optional_package("torch", 'engine "gpu"')
    optional_package("triton", 'engine "gpu"')
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    if interpreted():
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


def free_bytes(device: torch.device) -> int:
    """Return how much memory of the device may be used where no budget is given."""
    import torch

    if device.type != "cuda":
        return int(SHARE_OF_FREE * available_bytes())
    free, _ = torch.cuda.mem_get_info(device)
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(SHARE_OF_FREE * (free + cached))


def give_back(budget: int, device: torch.device) -> None:
    """Return freed memory to the device where the budget is tight, so that it is not in pieces."""
    import torch

    if device.type == "cuda" and budget < torch.cuda.mem_get_info(device)[1] // 2:
        torch.cuda.empty_cache()


def on_device(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    """Return a copy of an array on the device."""
    import torch

    native = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
    with warnings.catch_warnings():
        # PyTorch warns of read-only arrays; this one is only read.
        warnings.simplefilter("ignore", UserWarning)
        here = torch.from_numpy(native)
    if device.type != "cuda" or here.nbytes < PIECE_BYTES:
        return here.to(device, copy=True)
    # PyTorch's threads fill pinned pieces, and the device takes them meanwhile: several times
    # faster than a copy from memory that is not pinned.
    there = torch.empty(here.shape, dtype=here.dtype, device=device)
    source, target = (each.reshape(-1).view(torch.uint8) for each in (here, there))
    for first in range(0, len(source), PIECE_BYTES):
        part = source[first : first + PIECE_BYTES]
        piece = torch.empty(len(part), dtype=torch.uint8, pin_memory=True)
        target[first : first + PIECE_BYTES].copy_(piece.copy_(part), non_blocking=True)
    return there


def _has_driver() -> bool:
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True
