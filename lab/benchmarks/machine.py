"""What the figures were measured on, and where they go."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from lab.benchmarks.worker import ROOT

RESULTS = ROOT / "lab" / "benchmarks" / "results"

COPY_BYTES = 4 * 10**9
MATRIX = 8192


def read_results(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_bytes())
    return content


def write_results(path: Path, content: dict[str, Any]) -> None:
    """Write the figures whole or not at all, in a folder that is made where it is missing."""
    from perturb_mpm.storage import write_json

    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, content)


def describe() -> dict[str, object]:
    return {
        "cpu": cpu_model(),
        "cores": cores(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: version_of(name) for name in ("perturb-mpm", "numpy", "numba")},
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "load_average_at_start": round(os.getloadavg()[0], 2),
    }


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0))


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def describe_gpu() -> dict[str, object]:
    """Return the machine and its GPU, with a copy and a matrix product as yardsticks."""
    import torch
    import triton

    device = torch.cuda.get_device_properties(0)
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    copy_s = gpu_seconds(lambda: target.copy_(source))
    a, b = torch.randn((2, MATRIX, MATRIX), device="cuda").half()
    product_s = gpu_seconds(lambda: torch.matmul(a, b))
    return {
        **describe(),
        "gpu": device.name,
        "gpu_memory_gb": round(device.total_memory / 1e9, 1),
        "multiprocessors": device.multi_processor_count,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "triton": triton.__version__,
        "copy_tb_per_s": 2 * COPY_BYTES / copy_s / 1e12,
        "half_matmul_tflop_per_s": 2 * MATRIX**3 / product_s / 1e12,
    }


def gpu_seconds(work: Callable[[], object], rounds: int = 5) -> float:
    """Return the median time of some work on the device."""
    import torch

    work()
    times = []
    for _ in range(rounds):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        stop.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(stop) / 1e3)
    return sorted(times)[rounds // 2]
