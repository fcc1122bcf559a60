"""The command: which problems are measured on the GPU, and where the figures go."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from lab.benchmarks import files, gpu_machine, gpu_pack
from lab.benchmarks.gpu_measure import Plan, measure

ROOT = Path(__file__).resolve().parents[2]

PEERS = (
    "No other dense CRF for GPUs could be built on this machine: MONAI is not installed on it, and "
    "nothing can be."
)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="The GPU engine: correctness, speed and memory, on the synthetic brain and, "
        "where it is at hand, the real case.",
        epilog="example: python -m lab.benchmarks.gpu --packed packed-problems --json gpu.json",
    )
    parser.add_argument(
        "--packed", type=Path, help="a folder that python -m lab.benchmarks.gpu_pack has filled"
    )
    parser.add_argument("--samples", type=int, default=Plan.samples)
    parser.add_argument("--iterations", type=int, default=Plan.iterations)
    parser.add_argument("--rounds", type=int, default=Plan.rounds)
    parser.add_argument(
        "--without-exact", action="store_true", help="leave out all pairs, which take minutes"
    )
    parser.add_argument("--json", type=Path, default=ROOT / "lab/benchmarks/results/gpu.json")
    return parser.parse_args()


def problems(folder: Path | None) -> list[gpu_pack.Packed]:
    if folder is None:
        return [gpu_pack.with_cpu_labels(packed) for packed in gpu_pack.problems()]
    return [gpu_pack.Packed.load(path) for path in sorted(folder.glob("*.npz"))]


def main() -> None:
    options = arguments()
    plan = Plan(options.samples, options.iterations, options.rounds, not options.without_exact)
    began = time.perf_counter()
    rows: list[dict[str, Any]] = []
    about = {"machine": gpu_machine.describe(), "plan": vars(plan), "peers": PEERS}
    for packed in problems(options.packed):
        for number in range(len(packed.settings)):
            row = measure(packed, number, plan)
            rows.append(row)
            print(f"{time.perf_counter() - began:6.1f} s  {row['problem']}, {row['setting']}")
            for key, value in row.items():
                print(f"    {key}: {value}", flush=True)
            seconds = time.perf_counter() - began
            files.write_json(options.json, {**about, "seconds": seconds, "rows": rows})
