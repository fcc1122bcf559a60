"""The CPU engine's solver: batches of problems on compiled filters, every core, deterministic.

    Q ← softmax(−sharpness·(U + Σ_m μ_m K̂_m Q)),    Q, U (N, L − 1, B) against label 0

``preparation.py`` makes K̂, ``batch.py`` the updates, ``perturber.py`` the U of samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from perturb_mpm import checks
from perturb_mpm.engines.convergent import convergent_marginals
from perturb_mpm.engines.cpu import transfer
from perturb_mpm.engines.cpu.batch import Batch, SharedMemory, choose_batch
from perturb_mpm.engines.cpu.compile import announce_compilation
from perturb_mpm.engines.cpu.preparation import PreparedKernels, prepare_kernels
from perturb_mpm.engines.cpu.restricted import (
    ConstantMessages,
    CpuRestricted,
    FrozenSamples,
    reach_energies,
)
from perturb_mpm.engines.cpu.store import NO_STORE, KernelStore
from perturb_mpm.engines.cpu.threads import Threads
from perturb_mpm.engines.protocol import (
    Accuracy,
    Change,
    FrozenVoxels,
    Problems,
    Update,
    change_between,
    to_log_odds,
)
from perturb_mpm.model import DenseCRF
from perturb_mpm.noise import Perturbation


class CpuSolver:
    """The kernels of one CRF on all cores; see ``engines.protocol.Solver`` for the methods.

    ``compact`` keeps marginals and lattice values in 16 bits, exact to 1e-5, and energies in half
    precision, at half the memory: meant for many noisy problems.
    """

    engine = "cpu"

    def __init__(
        self,
        crf: DenseCRF,
        accuracy: Accuracy,
        batch: int | None,
        threads: int | None,
        budget: int,
        *,
        compact: bool,
        store: KernelStore = NO_STORE,
    ) -> None:
        self.accuracy: str = accuracy
        self._crf = crf
        self._threads = Threads(threads)
        compact = compact and accuracy != "exact"
        kernels = prepare_kernels(crf, accuracy, self._threads, budget, store, compact=compact)
        self.batch = choose_batch(crf, batch, kernels, budget)
        self._memory = SharedMemory()
        self._every_voxel: Batch | None = Batch(crf, kernels, memory=self._memory)
        self._made_frozen: FrozenSamples | None = None  # the last that was asked for
        self._next_frozen: FrozenSamples | None = None  # what ``freeze`` asks for
        self._frozen: FrozenSamples | None = None  # what the present problems are
        self._perturbation = Perturbation(scale=0.0)
        self.centre: NDArray[np.floating] | None = None
        if crf.centring > 0:
            self.load(crf.prior[np.newaxis])
            self.centre = np.float32(crf.centring) * self.pairwise()[0]
            self._whole.centre = self.centre

    @property
    def diagonal(self) -> NDArray[np.float32]:
        """What each voxel would send to itself, (N,)."""
        return self._kernels.diagonal(self._crf)

    def load(self, energies: Problems, marginals: Problems | None = None) -> None:
        """Take B ≤ batch problems, started at softmax(−energies) or at the given marginals."""
        self._frozen = None
        self._check_count(len(energies), "energies")
        self._whole.take(len(energies))
        with announce_compilation():
            for b, problem in enumerate(energies):
                self._whole.load_energies(b, self._check_problem(problem, "energies"))
            self._whole.begin()
            if marginals is not None:
                self._start_at(marginals)

    def perturb(
        self,
        perturbation: Perturbation,
        samples: NDArray[np.int64],
        marginals: NDArray[np.floating] | None = None,
        *,
        sharpness: float = 1.0,
    ) -> None:
        """Take the perturbed problems of these samples, started cold or at the given marginals."""
        self._check_count(len(samples), "samples")
        self._frozen, self._perturbation = self._next_frozen, perturbation
        if self._frozen is not None:
            start = None if marginals is None else self._check_problem(marginals, "marginals")
            self._frozen.perturb(perturbation, samples, start, sharpness)
            return
        self._whole.perturb(perturbation, samples)
        with announce_compilation():
            self._whole.begin(sharpness)
            if marginals is not None:
                self._start_at([marginals] * len(samples))

    def reweigh(self, crf: DenseCRF) -> bool:
        """Go on with other weights of the same kernels; return whether that can be done."""
        if crf.energies is not self._crf.energies or crf.centring > 0:
            return False
        weights, before = ([t.potts_weight for t in each.terms] for each in (crf, self._crf))
        if None in before or not all(before):
            return False
        factors = {float(w or 0) / float(b or 0) for w, b in zip(weights, before, strict=True)}
        factor = factors.pop()
        if factors or factor <= 0 or np.frexp(factor)[0] != 0.5:  # not a power of two
            return False
        slices = self._kernels.slices
        for each in (slices.coefficients, slices.totals, slices.diagonals):
            np.multiply(each, np.float32(factor), out=each)
        self._crf = crf
        self._every_voxel = Batch(crf, self._kernels, memory=self._memory)
        self._made_frozen = self._next_frozen = self._frozen = None
        return True

    def freeze(self, frozen: FrozenVoxels | None) -> None:
        """Update only active voxels of the problems that come next by ``perturb``."""
        if frozen is None:
            self._next_frozen = None
            return
        if self._made_frozen is None or self._made_frozen.voxels is not frozen:
            self._made_frozen = self._next_frozen = self._frozen = None  # their memory goes first
            self._made_frozen = FrozenSamples(
                self._crf, self._kernels, frozen, self.centre, self._memory
            )
        self._next_frozen = self._made_frozen

    def forget_whole(self) -> None:
        """Let go of what only problems without frozen voxels need; they cannot be asked for."""
        if self._next_frozen is not None:
            self._every_voxel = self._frozen = None
            self.__dict__.pop("_index", None)

    def find_near(
        self,
        perturbation: Perturbation,
        samples: NDArray[np.int64],
        pairwise: NDArray[np.float32],
        nats: float,
    ) -> NDArray[np.bool_]:
        """Return which voxels come near to another label in any of some samples (S,), (N,)."""
        every = ConstantMessages(self._crf, self._whole, pairwise, self._kernels.order)
        near = np.zeros(len(self._kernels.order), dtype=np.bool_)
        near[self._kernels.order] = every.find_near(perturbation, samples, nats)
        return near

    def restrict(self, voxels: NDArray[np.int64]) -> CpuRestricted:
        """Return problems of these voxels (A,), rising, whose neighbours stay as they are."""
        return CpuRestricted(self._crf, self._kernels, voxels)

    def drop_converged(self, going: NDArray[np.bool_]) -> bool:
        """Go on with some of the problems; return whether that was done."""
        (self._frozen or self._whole).narrow(np.flatnonzero(going))
        return True

    def step(
        self,
        update: Update = "parallel",
        damping: float = 0.0,
        *,
        sharpness: float = 1.0,
        watched: bool = True,
    ) -> Change:
        """Update every marginal once."""
        if update == "convergent" and not self._crf.self_term and self._frozen is None:
            return self._convergent_step(damping)
        return self._present.step(damping, sharpness, watched=watched)

    def conditional(self, chosen: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        """Return Σ_b softmax(−U − pairwise) in units of 2⁻³⁰, (L, N)."""
        taken = np.ones(self._present.problems, dtype=np.bool_) if chosen is None else chosen
        out = np.zeros(self._crf.energies.shape, dtype=np.int64)
        if self._frozen is not None:
            self._frozen.add_conditional(taken, out)
            return out
        energies = np.zeros(self._whole.buffers.energies.shape, dtype=np.float32)
        self._whole.perturb_energies(self._perturbation.without_noise(), energies)
        self._whole.add_conditional(energies, taken, out)
        return out

    def count_votes(
        self, counts: NDArray[np.uint32], chosen: NDArray[np.bool_] | None = None
    ) -> NDArray[np.int64]:
        """Add the labels of all or some to ``counts`` (L, N); return all sizes, (B, L)."""
        problems = self._present.problems
        taken = np.ones(problems, dtype=np.bool_) if chosen is None else chosen
        wanted = (("counts", counts, self._crf.energies.shape), ("chosen", taken, (problems,)))
        for name, array, shape in wanted:
            if array.shape != shape:
                raise ValueError(f"{name} must be of shape {shape}, got {array.shape}")
        total = np.zeros((problems, len(counts)), dtype=np.int64)
        for labels, voxels in self._labels if problems else ():  # without any no label is read
            arguments = (labels, voxels, taken, counts)
            sizes = self._threads.run(transfer.count_votes, len(labels), *arguments)
            total += np.sum(sizes, axis=0)
        return total

    def marginals(self) -> NDArray[np.float32]:
        """Return Q, (B, L, N)."""
        labels, voxels = self._crf.energies.shape
        out = np.empty((self._present.problems, voxels, labels), dtype=np.float32)
        if self._frozen is not None:
            self._frozen.write_marginals(out)
        else:
            self._whole.write_marginals(out, self._kernels.order)
        return out.transpose(0, 2, 1)

    def labels(self) -> NDArray[np.uint8]:
        """Return the most probable label, the lowest of equals, (B, N)."""
        out = np.empty((self._present.problems, self._crf.grid.voxels), dtype=np.uint8)
        for labels, voxels in self._labels:
            self._threads.run(transfer.unload_labels, len(labels), labels, voxels, out)
        return out

    def pairwise(self) -> NDArray[np.float32]:
        """Return the pairwise energies of the current Q, (B, L, N)."""
        if self._frozen is not None:
            raise ValueError("pairwise needs every voxel, got problems with frozen ones: load them")
        return self._whole.pairwise()

    def log_odds(self, voxels: NDArray[np.int64]) -> NDArray[np.float16]:
        """Return the log-odds of the current Q at some voxels, (V, L − 1, B)."""
        rows = self._index[voxels]
        others = self._whole.shares(rows) if self._frozen is None else self._frozen.shares(rows)
        first = np.maximum(1 - others.sum(axis=1, keepdims=True), 0)
        return to_log_odds(np.concatenate([first, others], axis=1))

    def reach(
        self, voxels: NDArray[np.int64], changes: NDArray[np.floating]
    ) -> NDArray[np.float32]:
        """Return the pairwise energies (L, N) that changes (L, V) at some voxels add."""
        index = self._index[voxels]
        rising = np.argsort(index)
        with announce_compilation():
            return reach_energies(self._kernels, index[rising], changes[:, rising])

    @property
    def _whole(self) -> Batch:
        """The problems of all voxels."""
        if self._every_voxel is None:
            raise RuntimeError("the kernels of all voxels are forgotten: prepare the engine again")
        return self._every_voxel

    @property
    def _kernels(self) -> PreparedKernels:
        """The kernels of all voxels."""
        return self._whole.kernels

    @property
    def _present(self) -> Batch:
        """The problems that are solved now."""
        return self._whole if self._frozen is None else self._frozen.batch

    @property
    def _labels(self) -> list[tuple[NDArray[np.uint8], NDArray[np.int64]]]:
        """Labels (V, B), or (V, 1) where all problems have the same, and voxels (V,), in pieces."""
        if self._frozen is not None:
            return self._frozen.labels
        return [(self._whole.buffers.labels, self._kernels.order)]

    @cached_property
    def _index(self) -> NDArray[np.int64]:
        """Where each voxel of the mask stands in the engine's order, (N,)."""
        index = np.empty_like(self._kernels.order)
        index[self._kernels.order] = np.arange(len(index))
        return index

    def _start_at(self, marginals: Problems | Sequence[NDArray[np.floating]]) -> None:
        for b, problem in enumerate(marginals):
            self._whole.load_marginals(b, self._check_problem(problem, "marginals"))

    def _convergent_step(self, damping: float) -> Change:
        order = self._kernels.order
        old = self.marginals().astype(np.float64, order="C")  # (B, L, N)
        energies = np.zeros_like(old)
        for b, problem in enumerate(energies):
            problem[1:, order] = self._whole.energies(b)
        diagonals = []
        for f in self._kernels.filters:
            diagonal = np.empty(len(order))
            diagonal[order] = f.diagonal
            diagonals.append(diagonal)
        new = convergent_marginals(self._crf, -energies - self.pairwise(), old, diagonals)
        new = (1 - damping) * new + damping * old
        self._start_at(new)
        return change_between(old, new)

    def _check_count(self, problems: int, name: str) -> None:
        if problems > self.batch:
            raise ValueError(f"{name} must hold at most {self.batch} problems, got {problems}")

    def _check_problem(self, problem: NDArray[np.floating], name: str) -> NDArray[np.float32]:
        array = np.ascontiguousarray(problem, dtype=np.float32)
        if array.shape != self._crf.energies.shape:
            raise ValueError(
                f"{name} must hold arrays of shape {self._crf.energies.shape}, got {array.shape}"
            )
        return checks.read_only(array.view())  # so that one compiled kernel serves every caller
