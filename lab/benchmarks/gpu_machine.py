"""What the GPU figures were measured on, and what it can do at most."""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton

from lab.benchmarks import machine

COPY_BYTES = 4 * 10**9
MATRIX = 8192


def describe() -> dict[str, object]:
    """Return the machine, with a copy and a matrix product as yardsticks."""
    device = torch.cuda.get_device_properties(0)
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    copy_s = seconds(lambda: target.copy_(source))
    a, b = torch.randn((2, MATRIX, MATRIX), device="cuda").half()
    product_s = seconds(lambda: torch.matmul(a, b))
    return {
        **machine.describe(),
        "gpu": device.name,
        "gpu_memory_gb": round(device.total_memory / 1e9, 1),
        "multiprocessors": device.multi_processor_count,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "triton": triton.__version__,
        "copy_tb_per_s": 2 * COPY_BYTES / copy_s / 1e12,
        "half_matmul_tflop_per_s": 2 * MATRIX**3 / product_s / 1e12,
    }


def seconds(work: Callable[[], object], rounds: int = 5) -> float:
    """Return the median time of some work on the device."""
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
