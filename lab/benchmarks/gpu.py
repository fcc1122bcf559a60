"""Measure the GPU engine, everything in one call: ``python -m lab.benchmarks.gpu --help``.

For every problem: speed, memory, bits, and every filter against all pairs.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from lab.benchmarks import gpu_pack, machine
from lab.benchmarks.gpu_pack import CPU_SAMPLES, SEED, PackedProblem
from lab.benchmarks.problems import CORRELATED, BenchmarkSetting

if TYPE_CHECKING:
    from perturb_mpm import DenseCRF
    from perturb_mpm.noise import NoiseLength


PEERS = (
    "No other dense CRF for GPUs could be built on this machine: MONAI is not installed on it, and "
    "nothing can be."
)


ACCURACIES = ("plain", "calibrated", "accurate")
SMALL_GB = 8
ERROR_ROWS = 512
ERROR_SEED = 1658


@dataclass(frozen=True)
class GpuPlan:
    samples: int = 200
    iterations: int = 10
    rounds: int = 5
    exact: bool = True


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="The GPU engine: correctness, speed and memory, on the synthetic brain and, "
        "where it is at hand, the real case.",
        epilog="example: python -m lab.benchmarks.gpu --packed packed-problems --json gpu.json",
    )
    parser.add_argument(
        "--packed", type=Path, help="a folder that python -m lab.benchmarks.gpu_pack has filled"
    )
    parser.add_argument("--samples", type=int, default=GpuPlan.samples)
    parser.add_argument("--iterations", type=int, default=GpuPlan.iterations)
    parser.add_argument("--rounds", type=int, default=GpuPlan.rounds)
    parser.add_argument(
        "--without-exact", action="store_true", help="leave out all pairs, which take minutes"
    )
    parser.add_argument("--json", type=Path, default=machine.RESULTS / "gpu.json")
    return parser.parse_args()


def problems(folder: Path | None) -> list[PackedProblem]:
    if folder is None:
        return [gpu_pack.with_cpu_labels(packed) for packed in gpu_pack.packed_problems()]
    return [PackedProblem.load(path) for path in sorted(folder.glob("*.npz"))]


def main() -> None:
    options = arguments()
    plan = GpuPlan(options.samples, options.iterations, options.rounds, not options.without_exact)
    began = time.perf_counter()
    rows: list[dict[str, Any]] = []
    about = {"machine": machine.describe_gpu(), "plan": vars(plan), "peers": PEERS}
    for packed in problems(options.packed):
        for number in range(len(packed.settings)):
            row = measure(packed, number, plan)
            rows.append(row)
            print(f"{time.perf_counter() - began:6.1f} s  {row['problem']}, {row['setting']}")
            for key, value in row.items():
                print(f"    {key}: {value}", flush=True)
            seconds = time.perf_counter() - began
            machine.write_results(options.json, {**about, "seconds": seconds, "rows": rows})


@dataclass
class Job:
    """One run from a CRF's arrays on the host to its votes on the host."""

    counts: NDArray[np.uint32]
    sizes: list[NDArray[np.int64]] = field(default_factory=list)
    parts_s: dict[str, float] = field(default_factory=dict)
    batch: int = 0

    @property
    def seconds(self) -> float:
        return sum(self.parts_s.values())

    @property
    def labels(self) -> NDArray[np.int64]:
        """The most frequent label of each voxel."""
        return self.counts.argmax(axis=0)

    @property
    def volumes(self) -> NDArray[np.float64]:
        """The mean size of each label, in voxels."""
        return np.concatenate(self.sizes).mean(axis=0)


def run(
    crf: DenseCRF,
    accuracy: str,
    plan: GpuPlan,
    *,
    seed: int = SEED,
    samples: int = 0,
    **options: object,
) -> Job:
    """Do what ``sample`` does of votes: build, perturb, iterate, count."""
    from perturb_mpm.engines import prepare
    from perturb_mpm.noise import Perturbation

    job = Job(np.zeros(crf.energies.shape, dtype=np.uint32))
    wanted = samples or plan.samples
    with timed(job, "prepare"):
        solver = prepare(crf, "gpu", accuracy, compact=True, **options)  # type: ignore[arg-type]
    job.batch = min(solver.batch, wanted)
    for first in range(0, wanted, solver.batch):
        numbers = np.arange(first, min(first + solver.batch, wanted))
        with timed(job, "perturb"):
            solver.perturb(Perturbation(seed), numbers)
        with timed(job, "iterate"):
            for left in range(plan.iterations - 1, -1, -1):
                solver.step(watched=left < 2)
        with timed(job, "count"):
            job.sizes.append(solver.count_votes(job.counts))
    return job


@contextmanager
def timed(job: Job, part: str) -> Iterator[None]:
    began = time.perf_counter()
    yield
    torch.cuda.synchronize()
    job.parts_s[part] = job.parts_s.get(part, 0.0) + time.perf_counter() - began


def measure(packed: PackedProblem, number: int, plan: GpuPlan) -> dict[str, Any]:
    """Return every figure of one problem at one of its settings."""
    setting = packed.settings[number]
    began = time.perf_counter()
    crf = packed.crf(setting)
    row: dict[str, Any] = {
        "problem": packed.name,
        "setting": str(setting),
        "voxels": crf.grid.voxels,
        "labels": crf.n_labels,
        "tumour_voxels": int(packed.in_tumour.sum()),
        "make_crf_s": time.perf_counter() - began,
    }
    jobs = {accuracy: speed(crf, accuracy, plan, row) for accuracy in ACCURACIES}
    row["sample_s"] = whole_sample(crf, plan)
    row["sample_correlated_s"] = whole_sample(crf, plan, CORRELATED)
    row["bits"] = bits(crf, plan, jobs["calibrated"])
    row["small_memory"] = small_memory(crf, plan, jobs["calibrated"])
    few = run(crf, "plain", plan, samples=CPU_SAMPLES)
    same = few.labels == packed.cpu_labels[number]
    row["plain_equals_cpu"] = {
        "samples": CPU_SAMPLES,
        "share": float(same.mean()),
        "share_in_tumour": float(same[packed.in_tumour].mean()),
    }
    other = run(crf, "calibrated", plan, seed=SEED + 1)
    row["two_seeds"] = differences(other, jobs["calibrated"], packed)
    row["filter_error"] = filter_error(packed, setting)
    if plan.exact:
        exact = run(crf, "exact", plan)
        row["exact"] = {"job_s": exact.seconds, "parts_s": exact.parts_s, "batch": exact.batch}
        channels = plan.samples * (crf.n_labels - 1)
        useful = 2.0 * crf.grid.voxels**2 * channels * plan.iterations
        row["exact"]["useful_tflop_per_s"] = useful / exact.parts_s["iterate"] / 1e12
        row["against_exact"] = {
            accuracy: differences(job, exact, packed) for accuracy, job in jobs.items()
        }
    return row


def speed(crf: DenseCRF, accuracy: str, plan: GpuPlan, row: dict[str, Any]) -> Job:
    """Time a filter after a run that compiles it; note medians and the peak of memory."""
    began = time.perf_counter()
    run(crf, accuracy, plan)
    first_s = time.perf_counter() - began
    torch.cuda.reset_peak_memory_stats()
    runs = [run(crf, accuracy, plan) for _ in range(plan.rounds)]
    row[accuracy] = {
        "job_s": statistics.median(job.seconds for job in runs),
        "job_s_all": [job.seconds for job in runs],
        "parts_s": {
            part: statistics.median(job.parts_s[part] for job in runs) for part in runs[0].parts_s
        },
        "first_job_s": first_s,
        "peak_gb": torch.cuda.max_memory_allocated() / 1e9,
        "batch": runs[0].batch,
    }
    return runs[-1]


def whole_sample(crf: DenseCRF, plan: GpuPlan, noise_length: NoiseLength = 0.0) -> float:
    """Time ``sample`` from its CRF to its posterior, the mean field and its digest included."""
    import perturb_mpm as pm

    times = []
    for _ in range(plan.rounds):
        began = time.perf_counter()
        pm.sample(
            crf,
            plan.samples,
            iterations=plan.iterations,
            engine="gpu",
            noise_length=noise_length,
        )
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def bits(crf: DenseCRF, plan: GpuPlan, job: Job) -> dict[str, bool]:
    """Whether runs repeat bit for bit, and whatever the chunks."""
    again, chunked, odd = (
        run(crf, "calibrated", plan, batch=batch) for batch in (None, plan.samples // 4, 37)
    )
    return {
        "repeated": equal(again, job),
        "four_chunks": equal(chunked, job),
        "chunks_of_37": equal(odd, job),
    }


def equal(one: Job, other: Job) -> bool:
    sizes = np.array_equal(np.concatenate(one.sizes), np.concatenate(other.sizes))
    return sizes and np.array_equal(one.counts, other.counts)


def small_memory(crf: DenseCRF, plan: GpuPlan, job: Job) -> dict[str, Any]:
    """Run in 8 GB, with PyTorch refusing to take more."""
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(SMALL_GB * 1e9 / total)
    try:
        run(crf, "calibrated", plan, memory=f"{SMALL_GB} GB")
        torch.cuda.reset_peak_memory_stats()
        runs = [run(crf, "calibrated", plan, memory=f"{SMALL_GB} GB") for _ in range(3)]
        peak = torch.cuda.max_memory_reserved() / 1e9
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    return {
        "job_s": statistics.median(each.seconds for each in runs),
        "batch": runs[0].batch,
        "peak_reserved_gb": peak,
        "same_bits": equal(runs[-1], job),
    }


def differences(job: Job, truth: Job, packed: PackedProblem) -> dict[str, Any]:
    """Return the share of voxels whose modal label differs, and each label's bias of volume."""
    differ = job.labels != truth.labels
    return {
        "share": float(differ.mean()),
        "share_in_tumour": float(differ[packed.in_tumour].mean()),
        "volume_bias": (job.volumes / truth.volumes - 1).tolist(),
    }


def filter_error(packed: PackedProblem, setting: BenchmarkSetting) -> dict[str, float]:
    """Return the error of the bilateral K·Q / K·1, Q = softmax(−U), on rows summed in float64.

    K·Q / K·1 is a probability, so 0.01 is one per cent.
    """
    from perturb_mpm.engines import prepare

    crf = packed.bilateral_crf(setting)
    rows = np.random.default_rng(ERROR_SEED).choice(crf.grid.voxels, ERROR_ROWS, replace=False)
    truth = exact_means(crf, rows)
    errors = {}
    for accuracy in (*ACCURACIES, "exact"):
        solver = prepare(crf, "gpu", accuracy, batch=1, compact=True)
        solver.load(crf.energies[np.newaxis])
        found = 1 - solver.pairwise()[0][:, rows].T
        errors[f"{accuracy}_rms"] = float(np.sqrt(((found - truth) ** 2).mean()))
        errors[f"{accuracy}_maximum"] = float(np.abs(found - truth).max())
    return errors


def exact_means(crf: DenseCRF, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return K·Q / K·1 at some voxels, (R, L), all in float64 on the device."""
    q = torch.softmax(-torch.from_numpy(np.array(crf.energies)).cuda().double(), 0).T  # (N, L)
    features = torch.from_numpy(crf.terms[0].features()).cuda()
    means = []
    for query in features[torch.from_numpy(rows).cuda()]:
        kernel = torch.exp(-((features - query) ** 2).sum(1) / 2)  # (N,)
        means.append(kernel @ q / kernel.sum())
    return torch.stack(means).cpu().numpy()


if __name__ == "__main__":
    main()
