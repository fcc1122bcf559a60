"""Our engines on a problem, in a fresh process, so that its peak memory is theirs alone."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from lab.benchmarks.problems import CORRELATED, BenchmarkProblem, crf_of
from lab.benchmarks.worker import Answer, Worker, peak_bytes, serve

if TYPE_CHECKING:
    from perturb_mpm import DenseCRF
    from perturb_mpm.engines import Solver


class Options(TypedDict):
    """What ``prepare`` is told besides the batch."""

    engine: str
    accuracy: str
    threads: int | None


def start() -> Worker:
    return Worker(sys.executable, "lab.benchmarks.ours")


class Ours:
    """What the worker keeps between commands."""

    crf: DenseCRF
    solver: Solver

    def prepare(self, folder: str, batch: int, **options: Unpack[Options]) -> Answer:
        """Prepare a solver for the problem in ``folder`` and load a batch into it.

        What numba compiles is compiled on a tiny problem first and is not in ``setup_s``. A batch
        of more than one is perturbed, its energies U − Gumbel noise, and kept in 16 bits.
        """
        problem = BenchmarkProblem.load(Path(folder))
        compile_s = warm_up(problem, batch, options)
        input_bytes = problem.unary.nbytes + problem.images.nbytes + problem.mask.nbytes
        self.crf = crf_of(problem)
        del problem
        began = time.perf_counter()
        self.solver = solver_of(self.crf, batch, options)
        setup_s = time.perf_counter() - began
        load(self.solver, self.crf.energies, batch)
        return {
            "setup_s": setup_s,
            "compile_s": compile_s,
            "timings_s": dict(getattr(self.solver, "timings", {})),
            "input_bytes": input_bytes,
        }

    def step(self, count: int, *, watched: bool = True) -> Answer:
        times = []
        for _ in range(count):
            began = time.perf_counter()
            self.solver.step(watched=watched)
            times.append(time.perf_counter() - began)
        return {"seconds": times}

    def marginals(self, path: str, iterations: int) -> Answer:
        """Write the first problem's (L, N) marginals after so many iterations from the start."""
        self.solver.load(self.crf.energies[np.newaxis])
        for _ in range(iterations):
            self.solver.step()
        np.save(path, self.solver.marginals()[0], allow_pickle=False)
        return {}

    def filtered(self, folder: str, rows: str, path: str, **options: Unpack[Options]) -> Answer:
        """Write K·Q/K·1 of the bilateral kernel at the voxels in the file ``rows``, (R, L)."""
        crf = crf_of(BenchmarkProblem.load(Path(folder)), bilateral_only=True)
        solver = solver_of(crf, 1, options)
        solver.load(crf.energies[np.newaxis])
        chosen = np.load(rows, allow_pickle=False)
        np.save(path, 1 - solver.pairwise()[0][:, chosen].T, allow_pickle=False)
        return {}

    def sample(self, folder: str, samples: int, iterations: int, threads: int | None) -> Answer:
        """Sample the problem from its arrays to its posterior; return seconds."""
        from perturb_mpm import sample

        problem = BenchmarkProblem.load(Path(folder))
        warm_up(problem, 16, {"engine": "cpu", "accuracy": "calibrated", "threads": threads})
        seconds = {}
        for name, length in (("paper", 0.0), ("correlated", CORRELATED)):
            sample(crf_of(corner_of(problem)), 16, iterations=2, noise_length=length)
            crf = crf_of(problem)
            began = time.perf_counter()
            sample(crf, samples, iterations=iterations, threads=threads, noise_length=length)
            seconds[name] = time.perf_counter() - began
        return {"seconds": seconds}

    def memory(self) -> Answer:
        return {"peak_bytes": peak_bytes()}


def solver_of(crf: DenseCRF, batch: int, options: Options) -> Solver:
    """Return a solver as ``mean_field`` has it for one problem, and ``sample`` for a batch."""
    from perturb_mpm.engines import prepare

    return prepare(crf, batch=batch, compact=batch > 1, **options)


def warm_up(problem: BenchmarkProblem, batch: int, options: Options) -> float:
    """Solve a corner of the problem, which compiles what the whole of it needs; return seconds."""
    began = time.perf_counter()
    crf = crf_of(corner_of(problem))
    solver = solver_of(crf, batch, options)
    load(solver, crf.energies, batch)
    solver.step()
    return time.perf_counter() - began


def corner_of(problem: BenchmarkProblem) -> BenchmarkProblem:
    """Return a small piece out of the middle."""
    corner = tuple(slice(n // 2 - 6, n // 2 + 6) for n in problem.mask.shape)
    return BenchmarkProblem(
        name="corner",
        unary=problem.unary[:, *corner],
        images=problem.images[:, *corner],
        mask=np.ones_like(problem.mask[corner]),
        classes=problem.classes[corner],
        tumour=problem.tumour,
        setting=problem.setting,
    )


def load(solver: Solver, energies: NDArray[np.float32], batch: int) -> None:
    """Load one problem as it is, or a batch of perturbed ones as ``sample`` does."""
    from perturb_mpm.noise import Perturbation

    if batch == 1:
        solver.load(energies[np.newaxis])
    else:
        solver.perturb(Perturbation(seed=0), np.arange(batch))


if __name__ == "__main__":
    ours = Ours()
    serve(
        {
            "prepare": ours.prepare,
            "step": ours.step,
            "marginals": ours.marginals,
            "filtered": ours.filtered,
            "sample": ours.sample,
            "memory": ours.memory,
        }
    )
