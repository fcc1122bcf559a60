"""The CPU engine: batches of problems on compiled filters, every core, deterministic."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.crf import DenseCRF, PairwiseTerm
from perturb_mpm.engines.convergent import convergent_marginals
from perturb_mpm.engines.cpu import row_kernels as kernels
from perturb_mpm.engines.cpu.calibration import calibrated_gain, calibrated_scale
from perturb_mpm.engines.cpu.compile import announced
from perturb_mpm.engines.cpu.exact import ExactFilter
from perturb_mpm.engines.cpu.filters import Filter, factorize, published_gain
from perturb_mpm.engines.cpu.groups import group
from perturb_mpm.engines.cpu.lattice import Blur, build
from perturb_mpm.engines.cpu.order import morton_order
from perturb_mpm.engines.cpu.plan import choose_batch, require_for_build
from perturb_mpm.engines.cpu.threads import Threads
from perturb_mpm.engines.memory import give_back
from perturb_mpm.engines.protocol import Accuracy, Change, Problems, Update, change_between

LANES = 256
LARGEST_HALF = 6e4
BLURS = {
    "plain": Blur(),
    "calibrated": Blur(fused=2, dilation=3 / 8),
    "accurate": Blur(taps=(1.5, 1.0, 0.25), dilation=1 / 8),
}


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
    ) -> None:
        self.accuracy: str = accuracy
        self._crf = crf
        self._threads = Threads(threads)
        compact = compact and accuracy != "exact"
        self._dtype = np.dtype(np.uint16 if compact else np.float32)
        self._unit = np.float32(65535 if compact else 1)
        self._rounding = np.float32(0.5 if compact else 0)
        self._order = morton_order(crf.grid)
        with announced():
            self._filters = [self._filter(term, budget) for term in crf.terms]
            self._slices, self._compatibilities = group(
                crf.terms,
                self._filters,
                crf.n_labels,
                crf.grid.voxels,
                float(self._unit),
                self_term=crf.self_term,
            )
        for f in self._filters:
            f.forget_slice()
        give_back()
        rows = [f.rows for f in self._filters]
        self._ceiling = np.float32(min(self._strongest_message() * 2 + 30, LARGEST_HALF))
        self._starts = np.concatenate([[0], np.cumsum(rows)]).astype(np.int64)
        self.batch = choose_batch(
            crf,
            batch,
            int(self._starts[-1]) + max(rows, default=0),
            self._shared_bytes(),
            self._dtype.itemsize,
            budget,
        )
        self._allocate(0)

    def load(
        self,
        energies: Problems,
        marginals: Problems | None = None,
    ) -> None:
        """Take B ≤ batch problems, started at softmax(−energies) or at the given marginals."""
        if len(energies) > self.batch:
            raise ValueError(
                f"energies must hold at most {self.batch} problems, got {len(energies)}"
            )
        self._allocate(len(energies))
        n = self._crf.grid.voxels
        with announced():
            for b, problem in enumerate(energies):
                source = self._checked(problem, "energies")
                place = (self._energies, np.int64(b), np.int64(self._problems), self._ceiling)
                self._threads.run(kernels.load_problem, n, source, self._order, *place)
            scales = (self._unit, self._rounding)
            if marginals is None:
                arguments = (self._energies, self._marginals, self._labels, *scales)
                self._threads.run(kernels.begin, len(self._energies), *arguments)
                return
            for b, problem in enumerate(marginals):
                source = self._checked(problem, "marginals")
                places = (self._marginals, self._labels, np.int64(b), *scales)
                self._threads.run(kernels.load_marginals, n, source, self._order, *places)

    def step(
        self, update: Update = "parallel", damping: float = 0.0, *, watched: bool = True
    ) -> Change:
        """Update every marginal once."""
        if update == "convergent" and not self._crf.self_term:
            return self._convergent_step(damping)
        with announced():
            self._refresh()
            changes = self._threads.run(
                kernels.update,
                len(self._energies),
                self._energies,
                self._slices,
                self._compatibilities,
                self._rows,
                self._marginals,
                self._labels,
                self._unit,
                self._rounding,
                np.float32(damping),
                watched,
            )
        overall, foreground = np.max(changes, axis=0).astype(np.float64)
        return Change(overall, foreground)

    def marginals(self) -> NDArray[np.float32]:
        """Return Q, (B, L, N)."""
        out = np.empty((self._problems, *self._crf.energies.shape), dtype=np.float32)
        self._threads.run(
            kernels.unload_marginals, out.shape[2], self._marginals, self._order, self._unit, out
        )
        return out

    def labels(self) -> NDArray[np.uint8]:
        """Return the most probable label, the lowest of equals, (B, N)."""
        out = np.empty((self._problems, len(self._order)), dtype=np.uint8)
        out[:, self._order] = self._labels.T
        return out

    def pairwise(self) -> NDArray[np.float32]:
        """Return the pairwise energies of the current Q, (B, L, N)."""
        out = np.empty((self._problems, *self._crf.energies.shape), dtype=np.float32)
        with announced():
            self._refresh()
            self._threads.run(
                kernels.pairwise,
                len(self._energies),
                np.int64(self._tile),
                self._slices,
                self._compatibilities,
                self._rows,
                self._marginals,
                self._unit,
                self._order,
                out,
            )
        return out

    def _filter(self, term: PairwiseTerm, budget: int) -> Filter | ExactFilter:
        features = term.features()[self._order]  # (N, d)
        exact = self.accuracy == "exact"
        require_for_build(self._crf, features.shape[1], budget, exact=exact)
        if exact:
            return ExactFilter(features, term.normalization, self._threads)
        narrow = features.astype(np.float32)
        del features
        blur = BLURS[self.accuracy]
        if self.accuracy != "plain":
            blur = calibrated_scale(narrow, self._unary_marginals(), blur, self._threads)
        lattice = build(narrow, blur, self._threads)
        gain = published_gain(narrow.shape[1])
        if self.accuracy != "plain" and term.normalization == "none":  # cancels in all others
            gain = calibrated_gain(narrow, lattice, self._threads)
        return factorize(lattice, term.normalization, gain, self._threads)

    def _unary_marginals(self) -> NDArray[np.float32]:
        """Return softmax(−U), (N, L), in the engine's order."""
        q = np.exp(self._crf.energies.min(axis=0) - self._crf.energies)  # (L, N)
        q /= q.sum(axis=0)
        return q.T[self._order].astype(np.float32)

    def _strongest_message(self) -> float:
        """Return a bound on how far the kernels can move the log-odds of two labels."""
        spans = [np.ptp(term.compatibility) for term in self._crf.terms]
        return float(sum(s * f.total.max() for s, f in zip(spans, self._filters, strict=True)))

    def _shared_bytes(self) -> int:
        arrays: list[Any] = [*self._slices, self._order]
        for f in self._filters:
            if isinstance(f, Filter):
                arrays += [part for stage in f.stages for part in vars(stage).values()]
        return sum(array.nbytes for array in arrays)

    def _allocate(self, problems: int) -> None:
        """Make room for so many problems; the old room is given back first."""
        n, labels = self._crf.grid.voxels, self._crf.n_labels - 1
        if problems == getattr(self, "_problems", None):
            return
        self._problems = problems
        self._energies = self._marginals = self._labels = self._rows = self._spare = np.empty(0)
        self._tile = max(1, LANES // max(1, problems))
        blocks = -(-n // self._tile)
        # 16-bit energies are the bits of half-precision floats
        self._energies = np.zeros((blocks, labels, self._tile * problems), dtype=self._dtype)
        self._marginals = np.empty((n, labels, problems), dtype=self._dtype)
        self._labels = np.empty((n, problems), dtype=np.uint8)
        width = labels * problems
        self._rows = np.empty((int(self._starts[-1]), width), dtype=self._dtype)
        most = max((f.rows for f in self._filters), default=0)
        self._spare = np.empty((most, width), dtype=self._dtype)

    def _refresh(self) -> None:
        """Filter the marginals with every kernel."""
        values = self._marginals.reshape(len(self._marginals), -1)
        for f, start, stop in zip(self._filters, self._starts[:-1], self._starts[1:], strict=True):
            f.apply(values, self._rows[start:stop], self._spare, self._threads)

    def _convergent_step(self, damping: float) -> Change:
        old = self.marginals().astype(np.float64)  # (B, L, N)
        energies = np.stack([self._problem_energies(b) for b in range(self._problems)])
        diagonals = []
        for f in self._filters:
            diagonal = np.empty(len(self._order))
            diagonal[self._order] = f.diagonal
            diagonals.append(diagonal)
        new = convergent_marginals(self._crf, -energies - self.pairwise(), old, diagonals)
        new = (1 - damping) * new + damping * old
        for b, problem in enumerate(new):
            places = (self._marginals, self._labels, np.int64(b), self._unit, self._rounding)
            source = problem.astype(np.float32)
            self._threads.run(kernels.load_marginals, source.shape[1], source, self._order, *places)
        return change_between(old, new)

    def _problem_energies(self, problem: int) -> NDArray[np.float64]:
        """Return one problem's energies against label 0's, (L, N)."""
        labels, n = self._crf.energies.shape
        out = np.zeros((labels, n))
        stored = self._energies
        if self._dtype == np.uint16:
            stored = stored.view(np.float16)
        by_label = stored.transpose(1, 0, 2).reshape(labels - 1, -1)  # (L−1, lanes)
        out[1:, self._order] = by_label[:, problem :: self._problems][:, :n]
        return out

    def _checked(self, problem: NDArray[np.floating], name: str) -> NDArray[np.float32]:
        array = np.ascontiguousarray(problem, dtype=np.float32)
        if array.shape != self._crf.energies.shape:
            raise ValueError(
                f"{name} must hold arrays of shape {self._crf.energies.shape}, got {array.shape}"
            )
        return array
