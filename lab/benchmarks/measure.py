"""Measure one problem: the peer and our engine take turns, then both are compared with exact rows.

Turns are short and interleaved (peer, plain, calibrated, accurate, peer, …) because the machine's
speed changes from second to second: a ratio is taken within a round, and the median round counts.
The error of a filter is that of K·Q/K·1 on sampled rows of the exact kernel.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from lab.benchmarks import ours, peer
from lab.benchmarks.problems import BenchmarkProblem, crf_of
from lab.benchmarks.worker import Answer, Worker

ROWS = 512
"""Rows sampled in the whole brain, and as many at the tumour's border.

The error has heavy tails, from voxels that resemble no other: two draws of 256 rows of the real
case gave an rms of 0.006 and 0.012.
"""

SEED = 1658
"""Not the seed of the rows that our engine is calibrated on: those would flatter it."""

STEPS = 3
"""Iterations in a turn; the fastest of them counts."""

COMPARED_ITERATIONS = 5
"""After so many iterations our marginals are compared with the peer's."""

SAMPLE_ITERATIONS = 10

PEER_SAMPLES = 2
"""So many of the peer's samples are timed before ours and as many after, the median counts."""

BILATERAL = 1
"""The bilateral kernel's place among the CRF's kernels."""


@dataclass(frozen=True)
class SampledRows:
    """Voxels, by their index inside the mask."""

    anywhere: NDArray[np.int64]
    border: NDArray[np.int64]

    @property
    def all(self) -> NDArray[np.int64]:
        return np.concatenate([self.anywhere, self.border])


@dataclass(frozen=True)
class FilterError:
    """Over the sampled rows and all labels; K·Q/K·1 is a probability, so 0.01 is one per cent."""

    rms: float
    rms_border: float
    maximum: float


def sample_rows(problem: BenchmarkProblem, seed: int = SEED) -> SampledRows:
    """Draw voxels anywhere in the mask, and tumour voxels with a neighbour of another class."""
    rng = np.random.default_rng(seed)
    border = np.flatnonzero(tumour_border(problem)[problem.mask])
    return SampledRows(
        anywhere=rng.choice(problem.voxels, min(ROWS, problem.voxels), replace=False),
        border=rng.choice(border, min(ROWS, len(border)), replace=False),
    )


def tumour_border(problem: BenchmarkProblem) -> NDArray[np.bool_]:
    """Return the tumour's voxels of which one of the six neighbours has another class."""
    cross = ndimage.generate_binary_structure(problem.classes.ndim, 1)
    highest = ndimage.maximum_filter(problem.classes, footprint=cross, mode="nearest")
    lowest = ndimage.minimum_filter(problem.classes, footprint=cross, mode="nearest")
    border: NDArray[np.bool_] = problem.mask & np.isin(problem.classes, problem.tumour)
    border &= highest != lowest
    return border


def exact_rows(
    features: NDArray[np.floating],
    marginals: NDArray[np.floating],
    rows: NDArray[np.int64],
    columns: int = 2048,
) -> NDArray[np.float64]:
    """Return (K·Q/K·1) at ``rows``, (R, L), from all pairs.

    ``features`` are (N, d) in units of sigma, ``marginals`` (L, N). Distances and the sums over
    blocks of columns are in float64; within a block exponentials and products are in float32,
    which is good to about 1e-6.
    """
    centred = features - features.mean(axis=0)  # (N, d), small numbers lose less
    centred = np.asarray(centred, dtype=np.float64)
    half_square = 0.5 * np.einsum("nd,nd->n", centred, centred)
    queries, query_half_square = centred[rows], half_square[rows, np.newaxis]
    values = np.vstack([marginals, np.ones(len(centred))]).T.astype(np.float32)  # (N, L + 1)
    sums = np.zeros((len(rows), values.shape[1]))
    for first in range(0, len(centred), columns):
        block = slice(first, first + columns)
        exponent = queries @ centred[block].T  # (R, columns)
        exponent -= query_half_square
        exponent -= half_square[block]
        kernel = np.exp(exponent.astype(np.float32))
        sums += kernel @ values[block]
    return sums[:, :-1] / sums[:, -1:]


def filter_error(
    filtered: NDArray[np.floating], exact: NDArray[np.float64], rows: SampledRows
) -> FilterError:
    """Compare (R, L) filter outputs at ``rows.all`` with the exact ones."""
    square = np.square(filtered - exact)
    return FilterError(
        rms=float(np.sqrt(square[: len(rows.anywhere)].mean())),
        rms_border=float(np.sqrt(square[len(rows.anywhere) :].mean())),
        maximum=float(np.sqrt(square.max())),
    )


def softmax(energies: NDArray[np.floating]) -> NDArray[np.float32]:
    """Return Q = softmax(−U), (L, N)."""
    q: NDArray[np.float32] = np.exp(energies.min(axis=0) - energies).astype(np.float32)
    q /= q.sum(axis=0)
    return q


@dataclass(frozen=True)
class CpuPlan:
    engine: str = "cpu"
    accuracies: tuple[str, ...] = ("plain", "calibrated", "accurate")
    batch: int = 16
    rounds: int = 5
    threads: int | None = None
    samples: int = 0
    """How many samples to draw in full; 0 leaves that out."""


@dataclass
class BenchmarkRow:
    """One engine on one problem. Times are wall times; whatever was not measured is None."""

    problem: str
    voxels: int
    labels: int
    setting: str
    engine: str
    setup_s: float | None = None
    setup_parts_s: dict[str, float] = field(default_factory=dict)
    one_s: float | None = None
    """Seconds per iteration of one problem."""
    batch_s: float | None = None
    """Seconds per problem and iteration in a batch; the peer solves it one by one."""
    one_speedup: float | None = None
    """How many times faster than the peer."""
    batch_speedup: float | None = None
    one_to_plain: float | None = None
    """Time relative to the accuracy ``plain`` in the same rounds."""
    batch_to_plain: float | None = None
    input_gb: float | None = None
    one_peak_gb: float | None = None
    batch_peak_gb: float | None = None
    sample_s: float | None = None
    """Seconds for all samples, from arrays to posterior; the peer's loop is timed on a few."""
    sample_correlated_s: float | None = None
    """The same with noise that is correlated over 20 mm and 60 mm."""
    sample_speedup: float | None = None
    sample_peak_gb: float | None = None
    error: FilterError | None = None
    largest_difference: float | None = None
    """Largest |Q − peer's Q| after ``COMPARED_ITERATIONS``."""
    note: str = ""


def measure(
    problem: BenchmarkProblem, plan: CpuPlan, peer_python: str | None, log: Callable[[str], None]
) -> list[BenchmarkRow]:
    """Return a row for the peer and one for each accuracy of our engine.

    ``peer_python`` is the peer's interpreter, if there is one; ``log`` is told what is being done.
    """
    with tempfile.TemporaryDirectory(prefix="perturb-mpm-bench-") as home, ExitStack() as stack:
        worker = stack.enter_context(peer.start(peer_python)) if peer_python else None
        return _Bench(problem, plan, worker, log, Path(home)).rows()


class _Bench:
    def __init__(
        self,
        problem: BenchmarkProblem,
        plan: CpuPlan,
        worker: Worker | None,
        log: Callable[[str], None],
        home: Path,
    ) -> None:
        self.plan, self.log, self.home = plan, log, home
        self.peer_row = self._row(problem, peer.NAME)
        self.our_rows = {a: self._row(problem, f"{plan.engine} {a}") for a in plan.accuracies}
        self.peer = worker
        problem.save(home)
        crf = crf_of(problem)
        features = [term.features().astype(np.float32) for term in crf.terms]  # (N, d) each
        if worker is None:
            self.peer_row.note = "not installed: make bench, or PERTURB_MPM_PEER_PYTHON"
        else:
            weights = [problem.setting.spatial_weight, problem.setting.weight]
            energies = np.ascontiguousarray(crf.energies, dtype=np.float32)
            matrices = [np.ascontiguousarray(f.T) for f in features]
            peer.save(home, energies, list(zip(weights, matrices)))
        sampled = sample_rows(problem)
        np.save(home / "rows.npy", sampled.all, allow_pickle=False)
        self.sampled = sampled
        self.exact = exact_rows(features[BILATERAL], softmax(crf.energies), sampled.all)

    @staticmethod
    def _row(problem: BenchmarkProblem, engine: str) -> BenchmarkRow:
        return BenchmarkRow(
            problem.name, problem.voxels, problem.labels, str(problem.setting), engine
        )

    def rows(self) -> list[BenchmarkRow]:
        if self.peer is not None:
            self.log(f"{peer.NAME}: set-up")
            answer = self.peer.ask("prepare", folder=str(self.home))
            self.peer_row.setup_s = answer["setup_s"]
            self.peer_row.note = f"version {answer['version']}, one thread, no batches"
        self._one_problem()
        self._batch()
        self._sample()
        if self.peer is not None:
            self.log(f"{peer.NAME}: error")
            request = {"folder": str(self.home), "kernel": BILATERAL}
            self.peer_row.error = self._error(self.peer, **request)
        return [self.peer_row, *self.our_rows.values()]

    def _one_problem(self) -> None:
        with ExitStack() as stack:
            workers, answers = self._start(stack, batch=1)
            for accuracy, answer in answers.items():
                row = self.our_rows[accuracy]
                row.setup_s = answer["setup_s"]
                row.setup_parts_s = answer["timings_s"]
                row.input_gb = answer["input_bytes"] / 1e9
            turns = self._turns(workers, watched=False)  # as all but a mean field's last two
            if peer.NAME in turns:
                self.peer_row.one_s = median(turns[peer.NAME])
            for accuracy, row in self.our_rows.items():
                row.one_s = median(turns[accuracy])
                row.one_speedup = _ratio(turns, peer.NAME, accuracy)
                row.one_to_plain = _ratio(turns, accuracy, "plain")
                row.one_peak_gb = _peak_gb(workers[accuracy])
            if self.peer is not None:
                self.peer_row.one_peak_gb = _peak_gb(self.peer)
            self._compare(workers)

    def _sample(self) -> None:
        """Sample as a user would; the peer's loop is timed on a few samples before and after."""
        if not self.plan.samples or "calibrated" not in self.our_rows:
            return
        row = self.our_rows["calibrated"]
        request = {"folder": str(self.home), "iterations": SAMPLE_ITERATIONS}
        theirs = []
        if self.peer is not None:
            theirs += self.peer.ask("sample", samples=PEER_SAMPLES, **request)["seconds"]
        self.log(f"{self.plan.samples} samples of {SAMPLE_ITERATIONS} iterations, twice")
        with ours.start() as worker:
            answer = worker.ask(
                "sample", samples=self.plan.samples, threads=self.plan.threads, **request
            )
            row.sample_s = answer["seconds"]["paper"]
            row.sample_correlated_s = answer["seconds"]["correlated"]
            row.sample_peak_gb = _peak_gb(worker)
        if self.peer is not None:
            theirs += self.peer.ask("sample", samples=PEER_SAMPLES, **request)["seconds"]
            self.peer_row.sample_s = median(theirs) * self.plan.samples
            row.sample_speedup = self.peer_row.sample_s / row.sample_s

    def _batch(self) -> None:
        size = self.plan.batch
        with ExitStack() as stack:
            workers, _ = self._start(stack, batch=size)
            turns = self._turns(workers, watched=False)  # as all but a sample's last two
            if peer.NAME in turns:
                self.peer_row.batch_s = median(turns[peer.NAME])
            for accuracy, row in self.our_rows.items():
                row.batch_s = median(turns[accuracy]) / size
                speedup = _ratio(turns, peer.NAME, accuracy)
                row.batch_speedup = None if speedup is None else speedup * size
                row.batch_to_plain = _ratio(turns, accuracy, "plain")
                row.batch_peak_gb = _peak_gb(workers[accuracy])

    def _start(self, stack: ExitStack, batch: int) -> tuple[dict[str, Worker], dict[str, Answer]]:
        """Start a worker for each accuracy, one after the other, so that set-ups are alone."""
        workers = {}
        answers = {}
        for accuracy in self.plan.accuracies:
            self.log(f"{self.plan.engine} {accuracy}: set-up for a batch of {batch}")
            worker = stack.enter_context(ours.start())
            answers[accuracy] = worker.ask(
                "prepare", folder=str(self.home), batch=batch, **self._options(accuracy)
            )
            workers[accuracy] = worker
        return workers, answers

    def _options(self, accuracy: str) -> dict[str, object]:
        return {
            "engine": self.plan.engine,
            "accuracy": accuracy,
            "threads": self.plan.threads,
        }

    def _turns(self, workers: dict[str, Worker], *, watched: bool = True) -> dict[str, list[float]]:
        """Let everyone take turns; return the fastest iteration of each turn, in seconds."""
        self.log(f"{self.plan.rounds} rounds of {STEPS} iterations each")
        everyone = dict(workers)
        if self.peer is not None:
            everyone[peer.NAME] = self.peer
        options = {name: {} if name == peer.NAME else {"watched": watched} for name in everyone}
        for worker in everyone.values():
            worker.ask("step", count=1)
        turns: dict[str, list[float]] = {name: [] for name in everyone}
        for _ in range(self.plan.rounds):
            for name, worker in everyone.items():
                answer = worker.ask("step", count=STEPS, **options[name])
                turns[name].append(min(answer["seconds"]))
        return turns

    def _compare(self, workers: dict[str, Worker]) -> None:
        """Compare our filters with exact rows, and our marginals with the peer's."""
        theirs = self._marginals(self.peer) if self.peer is not None else None
        for accuracy, worker in workers.items():
            self.log(f"{self.plan.engine} {accuracy}: error")
            row = self.our_rows[accuracy]
            if theirs is not None:
                row.largest_difference = float(np.abs(self._marginals(worker) - theirs).max())
            request = {"folder": str(self.home), **self._options(accuracy)}
            row.error = self._error(worker, **request)

    def _marginals(self, worker: Worker) -> NDArray[np.floating]:
        path = self.home / "marginals.npy"
        worker.ask("marginals", path=str(path), iterations=COMPARED_ITERATIONS)
        marginals: NDArray[np.floating] = np.load(path, allow_pickle=False)
        return marginals

    def _error(self, worker: Worker, **request: object) -> FilterError:
        path = self.home / "filtered.npy"
        worker.ask("filtered", rows=str(self.home / "rows.npy"), path=str(path), **request)
        return filter_error(np.load(path, allow_pickle=False), self.exact, self.sampled)


def _ratio(turns: dict[str, list[float]], above: str, below: str) -> float | None:
    if above not in turns or below not in turns:
        return None
    return median(a / b for a, b in zip(turns[above], turns[below]))


def _peak_gb(worker: Worker) -> float:
    return float(worker.ask("memory")["peak_bytes"]) / 1e9
